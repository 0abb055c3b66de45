"""Variables that a recipe sets for its workers (`env_vars`), as far as they change memory."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_environment"]

_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"


def read_environment(reader: Reader, draft: Draft, block: str) -> None:
    """Reads the variables of the workers that `block` describes."""
    for name in _ALLOCATOR:
        said = reader.text(f"{block}.env_vars.{name}")
        settings = {part.partition(":")[0]: part.partition(":")[2].lower() for part in said.value.split(",")
                    if part} if said else {}
        grows = settings.pop("expandable_segments", "") == "true"
        if settings:
            draft.unmodelled(said, "settings of the allocator other than expandable_segments")
            if grows:
                draft.infer("environment.expandable_segments", value=True, rule=f"{name} says so",
                            where=said.where if said else "")
        elif grows:
            draft.put("environment.expandable_segments", said, value=True)
        else:
            draft.idle(said, "the default")
    draft.put("environment.cublas_workspace_config", reader.text(f"{block}.env_vars.{_CUBLAS}"))
    draft.unmodelled(reader.matching(f"{block}.env_vars.*"), "other variables of the workers' environment")
