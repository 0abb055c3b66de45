"""Variables of the environment that a recipe sets: those that change memory, and the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.imported import Left
from simcore.recipes.reader import Taken

__all__ = ["READ", "expect_backend", "write_environment"]

_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_ATTENTION: Final[Mapping[str, tuple[str, ...]]] = {
    "NVTE_FLASH_ATTN": ("flash", "auto"), "NVTE_FUSED_ATTN": ("fused", "auto"),
    "NVTE_UNFUSED_ATTN": ("unfused", "auto")}
"""Variables of TransformerEngine, and the backends that set them to 1."""
_BACKENDS: Final = ("local", "flash", "fused", "unfused", "auto")
READ: Final = (_CUBLAS, *_ALLOCATOR)
"""Variables that decide keys of the scenario."""


def write_environment(draft: Draft, variables: Mapping[str, Taken[str]], *, captures: bool = True) -> None:
    """Writes the variables that the simulation knows. `variables`: by name; `captures`: whether graphs may be."""
    if _CUBLAS in variables:
        draft.put("environment.cublas_workspace_config", variables[_CUBLAS])
    for name in _ALLOCATOR:
        if name not in variables:
            continue
        settings = dict(part.partition(":")[::2] for part in variables[name].value.split(","))
        if settings.pop("expandable_segments", "").lower() != "true":
            if any(settings):
                draft.unmodelled(variables[name], "settings of the allocator other than expandable_segments")
            else:
                draft.use(variables[name], why="segments do not expand, as without it")
            continue
        draft.put("environment.expandable_segments", variables[name], value=True)
        for setting, value in settings.items():
            _leave_setting(draft, variables[name], setting, value, captures=captures)


def expect_backend(draft: Draft, variables: Mapping[str, Taken[str]], backend: str) -> None:
    """Records variables of TransformerEngine that the model does not start with.

    Rule: core 0.16.1 and main `core/models/common/language_module/language_module.py` _set_attention_backend: each of
    the three is missing, or as the backend has it.
    """
    for name, backends in _ATTENTION.items():
        found, expected = variables.get(name), "1" if backend in backends else "0"
        if found is not None and backend in _BACKENDS and found.value != expected:
            draft.fail(found.where, f"{name} is {found.value}, and --attention-backend {backend} does not start unless "
                                    f"it is {expected} or missing (language_module.py, _set_attention_backend)")


def _leave_setting(draft: Draft, variable: Taken[str], setting: str, value: str, *, captures: bool) -> None:
    """Lists a setting of the allocator beside expandable_segments."""
    if setting == "graph_capture_record_stream_reuse" and not captures:
        draft.left.append(Left("no effect", variable.where, f"{variable.key}.{setting}", value, "nothing is captured"))
        return
    why = ("blocks that other streams have used are given out again within a capture (PyTorch's notes on CUDA, "
           "graph_capture_record_stream_reuse): they wait for its end" if setting == "graph_capture_record_stream_reuse"
           else "a setting of the allocator other than expandable_segments")
    draft.left.append(Left("not modelled", variable.where, f"{variable.key}.{setting}", value, why))
