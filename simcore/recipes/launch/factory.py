"""Number of processes that `llamafactory-cli train` starts by torchrun, which variables say.

Rule: LLaMA-Factory ff6d4d12 `launcher.py`: NNODES times NPROC_PER_NODE, which is the number of visible GPUs where it is
not set. Without FORCE_TORCHRUN one visible GPU is one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcore.errors import InputError, Problem
from simcore.recipes.launch.options import NUMBER, Number
from simcore.recipes.launch.starters import Starter
from simcore.recipes.shell.pieces import Word

__all__ = ["kind_of", "processes_by_variables"]


def processes_by_variables(variables: Mapping[str, Sequence[Word]], starter: Starter, path: str) -> Number | None:
    """Number of processes; None if it is left to the machine. InputError for one that may change, or is not known."""
    elastic = next((name for name in ("MIN_NNODES", "MAX_NNODES") if _text(variables, name, path)), "")
    if elastic:
        raise InputError(Problem(f"{path}:{variables[elastic][0].line}", f"not yet: {elastic}: a number of nodes that "
                                                                         "may change"))
    visible = _text(variables, "CUDA_VISIBLE_DEVICES", path)
    each = _number(variables, "NPROC_PER_NODE", path) or (len(visible.split(",")) if visible else None)
    nodes = _number(variables, "NNODES", path) or 1
    if each is None:
        return None
    by_torchrun = _is_on(_text(variables, "FORCE_TORCHRUN", path)) or not visible or len(visible.split(",")) > 1
    return Number(each * nodes if by_torchrun else 1, f"{path}:{starter.word.line} llamafactory-cli")


def kind_of(variables: Mapping[str, Sequence[Word]], path: str) -> str:
    """Launcher that sets the variables of the ranks: its own, or plain torchrun with OPTIM_TORCH=0."""
    said = _text(variables, "OPTIM_TORCH", path)
    return "torchrun" if said and not _is_on(said) else "llamafactory"


def _is_on(text: str) -> bool:
    return text.lower() in ("true", "y", "1")


def _text(variables: Mapping[str, Sequence[Word]], name: str, path: str) -> str:
    word = next(iter(variables.get(name, ())), None)
    if word is not None and word.unknown:
        raise InputError(Problem(f"{path}:{word.line}", f"{name} is {word.text}: not known from the script alone: "
                                                        f"{word.unknown}"))
    return word.text if word else ""


def _number(variables: Mapping[str, Sequence[Word]], name: str, path: str) -> int | None:
    text = _text(variables, name, path)
    if not text:
        return None
    if not NUMBER.fullmatch(text):
        raise InputError(Problem(f"{path}:{variables[name][0].line}", f"{name}: expected a number of processes or "
                                                                      f"nodes, got {text!r}"))
    return int(text)
