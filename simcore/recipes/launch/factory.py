"""Number of processes that `llamafactory-cli train` starts by torchrun, which variables say.

Rule: LLaMA-Factory ff6d4d12 `launcher.py`: NNODES times NPROC_PER_NODE, which is the number of visible GPUs where it is
not set: those of CUDA_VISIBLE_DEVICES, or the node's of the Slurm job. Without FORCE_TORCHRUN one visible GPU is one
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.launch.count import visible_gpus
from simcore.recipes.launch.options import NUMBER, Number
from simcore.recipes.launch.slurm import Allocation, allocation_of
from simcore.recipes.launch.starters import Starter
from simcore.recipes.shell.pieces import Word

__all__ = ["kind_of", "processes_by_variables"]

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def processes_by_variables(variables: Mapping[str, Sequence[Word]], starters: Sequence[Starter], path: str,
                           headers: Allocation) -> Number | None:
    """Number of processes; None if it is left to the machine.

    `headers`: sizes that `#SBATCH` lines give. InputError for a number that may change, is not known, or contradicts
    the job around the command.
    """
    elastic = next((name for name in ("MIN_NNODES", "MAX_NNODES") if _text(variables, name, path)), "")
    if elastic:
        raise InputError(Problem(f"{path}:{variables[elastic][0].line}", f"not yet: {elastic}: a number of nodes that "
                                                                         "may change"))
    visible = _visible(variables, path)
    job = next((allocation_of(one.options, path, headers) for one in starters if one.kind == "srun"), headers)
    of_node = job.gpus_per_node.value if job.gpus_per_node else None
    seen = visible if visible is not None else of_node
    each, nodes = _number(variables, "NPROC_PER_NODE", path) or seen, _number(variables, "NNODES", path) or 1
    where = f"{path}:{starters[-1].word.line} llamafactory-cli"
    if visible is not None and each is not None and each > visible:
        raise InputError(Problem(where, f"{each} processes a node (NPROC_PER_NODE), to which {_VISIBLE} leaves "
                                        f"{visible} GPUs"))
    by_torchrun = _is_on(_text(variables, "FORCE_TORCHRUN", path)) or seen != 1
    _expect_agreement(job, nodes if by_torchrun else 1, each, where, by_srun=starters[0].kind == "srun")
    return None if each is None else Number(each * nodes if by_torchrun else 1, where)


def _visible(variables: Mapping[str, Sequence[Word]], path: str) -> int | None:
    """GPUs that CUDA_VISIBLE_DEVICES leaves; None where it is not set, or lists none by number or name."""
    if _VISIBLE not in variables:
        return None
    count = visible_gpus(_text(variables, _VISIBLE, path))
    if count == 0:
        where = next((f"{path}:{word.line}" for word in variables[_VISIBLE]), path)
        raise InputError(Problem(where, f"not yet: {_VISIBLE} leaves no GPU: a run on the CPU"))
    return count


def _expect_agreement(job: Allocation, nodes: int, each: int | None, where: str, *, by_srun: bool) -> None:
    """Raises InputError unless the nodes, tasks and GPUs of the job are those of the variables."""
    if job.nodes and job.nodes.value != nodes:
        raise InputError(Problem(where, f"is of {nodes} nodes (NNODES), the job has {job.nodes.value} "
                                        f"({job.nodes.where})"))
    tasks = job.tasks_on_node()
    if by_srun and tasks not in (None, 1):
        raise InputError(Problem(where, f"starts the processes of a node, and srun {tasks} tasks on each"))
    if job.gpus_per_node and each is not None and each > job.gpus_per_node.value:
        raise InputError(Problem(where, f"{each} processes a node, which has {job.gpus_per_node.value} GPUs "
                                        f"({job.gpus_per_node.where})"))


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
