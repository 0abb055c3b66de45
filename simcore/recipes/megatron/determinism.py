"""What Megatron-LM asks of a run whose kernels repeat bit by bit (--deterministic-mode).

Megatron-LM main 2026-08-22 `megatron/training/determinism.py`; core 0.16.1 `megatron/training/arguments.py:1073`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.megatron.arguments import ArgumentFields
from simcore.recipes.reader import Taken

__all__ = ["ALGORITHMS", "expect_determinism"]

ALGORITHMS: Final = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
"""What NCCL_ALGO may be under core 0.16.1, and under Bridge (training/config.py:1057)."""
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_ACCEPTED: Final[Mapping[str, tuple[str, ...]]] = {
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",), _CUBLAS: (":4096:8", ":16:8")}
_OF_MAMBA: Final = ("MAMBA_DETERMINISTIC", "CAUSAL_CONV1D_DETERMINISTIC")
_SOURCE: Final = "megatron/training/determinism.py"


def expect_determinism(draft: Draft, fields: ArgumentFields, variables: Mapping[str, Taken[str]]) -> None:
    """Records what a deterministic run does not start with, and writes the workspace of cuBLAS that it sets."""
    said = fields.flag("deterministic_mode")
    if not said.value:
        return
    is_main = not str(draft.answers.settings.get("framework_version", "main")).startswith("core")
    for name in ("cross_entropy_loss_fusion", *(("tp_comm_overlap",) if is_main else ())):
        one = fields.flag(name)
        if one.value:
            draft.fail(one.taken[0].where if one.taken else draft.path,
                       f"--deterministic-mode requires: {name}=False (got True) [{_SOURCE}]")
    if not is_main:
        _expect_algorithm(draft, variables)
        return
    for name, taken in variables.items():
        words = [word.strip() for word in taken.value.split(",") if word.strip()]
        if name == "NCCL_ALGO" and not (words and set(words) <= set(ALGORITHMS[1:])):
            draft.fail(taken.where, f"NCCL_ALGO={taken.value!r}: each token must be in {sorted(ALGORITHMS[1:])} "
                       f"[--deterministic-mode, {_SOURCE}]")
        elif name in _ACCEPTED and taken.value not in _ACCEPTED[name]:
            draft.fail(taken.where, f"{name}={taken.value!r} is not a deterministic setting. Accepted: "
                       f"{list(_ACCEPTED[name])} [--deterministic-mode, {_SOURCE}]")
        elif name in _OF_MAMBA and taken.value and not taken.value.startswith("1"):
            draft.fail(taken.where, f"{name}={taken.value!r} disables SSM determinism under --deterministic-mode "
                       f"[{_SOURCE}]")
    if _CUBLAS not in variables:
        draft.infer("environment.cublas_workspace_config", ":4096:8", "--deterministic-mode sets it where nothing "
                    "else does", *said.taken, source=_SOURCE)


def _expect_algorithm(draft: Draft, variables: Mapping[str, Taken[str]]) -> None:
    found = variables.get("NCCL_ALGO")
    if found is not None and found.value not in ALGORITHMS:
        draft.fail(found.where, f"NCCL_ALGO must be one of {list(ALGORITHMS)} [--deterministic-mode, core 0.16.1 "
                                "megatron/training/arguments.py:1077]")
