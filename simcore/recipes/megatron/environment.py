"""Variables of the environment that a recipe sets: those that change memory, and the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken

__all__ = ["READ", "write_environment"]

_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
READ: Final = (_CUBLAS, *_ALLOCATOR)
"""Variables that decide keys of the scenario."""


def write_environment(draft: Draft, variables: Mapping[str, Taken[str]]) -> None:
    """Writes the variables that the simulation knows. `variables`: by name."""
    if _CUBLAS in variables:
        draft.put("environment.cublas_workspace_config", variables[_CUBLAS])
    for name in _ALLOCATOR:
        if name not in variables:
            continue
        settings = dict(part.partition(":")[::2] for part in variables[name].value.split(","))
        if settings.get("expandable_segments", "").lower() == "true":
            draft.put("environment.expandable_segments", variables[name], value=True)
        else:
            draft.unmodelled(variables[name], "settings of the allocator other than expandable_segments")
