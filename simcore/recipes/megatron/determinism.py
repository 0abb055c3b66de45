"""Rules of Megatron for a run whose kernels repeat bit by bit (--deterministic-mode).

Megatron-LM main 2026-08-22 `megatron/training/determinism.py`; core 0.16.1 `megatron/training/arguments.py:1073` and
`megatron/core/extensions/transformer_engine.py`, whose attention raises; torch's cuBLAS raises (`aten/src/ATen/
Context.cpp`, alertCuBLASConfigNotDeterministic).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.imported import Left
from simcore.recipes.megatron.arguments import MAIN, ArgumentFields
from simcore.recipes.reader import Taken

__all__ = ["DETERMINISTIC", "expect_determinism", "expect_variables", "is_main"]

_NCCL: Final = "NCCL_ALGO"
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_ALGORITHMS: Final = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
_ACCEPTED: Final[Mapping[str, tuple[str, ...]]] = {
    _NCCL: _ALGORITHMS, "NVTE_ALLOW_NONDETERMINISTIC_ALGO": ("0",), _CUBLAS: (":4096:8", ":16:8")}
"""Values with which a run of core 0.16.1 or of Bridge (training/config.py:1057) starts; main sets them itself."""
DETERMINISTIC: Final = tuple(_ACCEPTED)
"""Variables that a deterministic run needs."""
_OF_MAMBA: Final = ("MAMBA_DETERMINISTIC", "CAUSAL_CONV1D_DETERMINISTIC")
_SOURCE: Final = "--deterministic-mode, megatron/training/determinism.py"


def is_main(draft: Draft) -> bool:
    """True if what is simulated is the main branch: an argument of it, or an answer, asks for it."""
    asked = draft.answers.settings.get("framework_version", draft.values.get("framework_version"))
    return str(asked) == MAIN


def expect_determinism(draft: Draft, fields: ArgumentFields, variables: Mapping[str, Taken[str]]) -> None:
    """Records what a deterministic run does not start with, and writes the workspace of cuBLAS that main sets."""
    said, newest = fields.flag("deterministic_mode"), is_main(draft)
    if not said.value:
        return
    for name in ("cross_entropy_loss_fusion", "tp_comm_overlap" if newest else "use_flash_attn"):
        one = fields.flag(name)
        if one.value:
            draft.fail(one.taken[0].where if one.taken else draft.path, f"--deterministic-mode requires: {name}=False "
                       "(got True) [megatron/training/arguments.py, validate_args]")
    if not newest:
        has_engine = fields.text("transformer_impl").value != "local"
        expect_variables(draft, variables, names=DETERMINISTIC if has_engine else (_NCCL, _CUBLAS))
        return
    for name, taken in variables.items():
        words = [word.strip() for word in taken.value.split(",") if word.strip()]
        if name == _NCCL and not (words and set(words) <= set(_ALGORITHMS[1:])):
            draft.fail(taken.where, f"{name}={taken.value!r}: each token must be in {sorted(_ALGORITHMS[1:])} "
                                    f"[{_SOURCE}]")
        elif name in _ACCEPTED and name != _NCCL and taken.value not in _ACCEPTED[name]:
            draft.fail(taken.where, f"{name}={taken.value!r} is not a deterministic setting. Accepted: "
                                    f"{list(_ACCEPTED[name])} [{_SOURCE}]")
        elif name in _OF_MAMBA and taken.value and not taken.value.startswith("1"):
            draft.fail(taken.where, f"{name}={taken.value!r} disables SSM determinism [{_SOURCE}]")
    if _CUBLAS not in variables:
        draft.infer("environment.cublas_workspace_config", _ACCEPTED[_CUBLAS][0], "--deterministic-mode sets it where "
                    "nothing else does", *said.taken, source="megatron/training/determinism.py")


def expect_variables(draft: Draft, variables: Mapping[str, Taken[Any]], prefix: str = "",
                     names: Sequence[str] = DETERMINISTIC) -> None:
    """Records variables with which a deterministic run of core 0.16.1 or Bridge does not start, and tells missing ones.

    `prefix`: of the keys of variables in the recipe.
    """
    for name in names:
        accepted = _ACCEPTED[name]
        found = variables.get(name)
        if found is None:
            draft.left.append(Left("not modelled", draft.path, f"{prefix}{name}", "not set", "a deterministic run "
                                   f"starts with {' or '.join(accepted)} alone: the shell is taken to set it"))
        elif str(found.value) not in accepted:
            draft.fail(found.where, f"{name} must be one of {list(accepted)} where the mode is deterministic, "
                                    f"got {found.value!r}")
