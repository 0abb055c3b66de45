"""Variables of the environment that a launch script sets, as far as they change memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simcore.inputs.document import Document
from simcore.recipes.imported import Imported, Left, Origin, overruled

__all__ = ["with_environment"]

_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"


def with_environment(imported: Imported, variables: Sequence[tuple[str, str, str]]) -> Imported:
    """Copy of an imported recipe with the variables (name, value, place) of its launch script.

    They go before what the recipe itself sets (Megatron-Bridge 067f987d training/config.py:1984).
    """
    document, left = Document(imported.path, dict(imported.values)), list[Left]()
    for name, value, where in variables:
        key = ("environment", "cublas_workspace_config" if name == _CUBLAS else "expandable_segments")
        settings = dict(part.partition(":")[::2] for part in value.split(","))
        is_expandable = settings.pop("expandable_segments", "").lower() == "true"
        goes_before = imported.values.get("environment", {}).get("expandable_segments", False)
        if name == _CUBLAS or is_expandable or goes_before:
            document = document.with_value(key, value if name == _CUBLAS else is_expandable, where)
            imported = overruled(imported, key, f"{name} of the launch goes before it ({where})")
            imported = replace(imported, origins={**imported.origins, key: Origin("recipe", where, name)})
        if name != _CUBLAS and settings:
            left.append(Left("not modelled", where, name, value, "settings of the allocator other than "
                                                                 "expandable_segments"))
    return replace(imported, values=document.data, left=(*imported.left, *left))
