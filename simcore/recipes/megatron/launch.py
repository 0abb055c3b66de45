"""Number of GPUs of a launch command: torchrun's, srun's and mpirun's options, and `#SBATCH` lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.shell.expansion import Word
from simcore.recipes.shell.script import Script, Started

__all__ = ["gpus_of", "split_launch"]

_RUNNERS: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "torch/distributed/run.py")
_RUNNER_OPTIONS: Final = frozenset({
    "--nproc_per_node", "--nproc-per-node", "--nnodes", "--node_rank", "--node-rank", "--master_addr", "--master-addr",
    "--master_port", "--master-port", "--rdzv_id", "--rdzv-id", "--rdzv_backend", "--rdzv-backend", "--rdzv_endpoint",
    "--rdzv-endpoint", "--standalone", "--log_dir", "--log-dir", "--tee", "--redirects", "--max_restarts",
    "--max-restarts"})
"""Options of torchrun; all but --standalone take a value."""
_PROCESSES: Final = ("--nproc_per_node", "--nproc-per-node")
_NODES: Final = ("--nnodes",)
_SLURM: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": ("--nodes", "-N"), "tasks": ("--ntasks", "-n"), "tasks_per_node": ("--ntasks-per-node",),
    "gpus_per_node": ("--gpus-per-node", "--gres")}


def split_launch(words: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Words of a launch command up to the training script (`*.py`, or `-m MODULE`), and the script's arguments.

    Of a command without a script the arguments begin behind the options of torchrun, or with the first option.
    """
    for number, word in enumerate(words):
        is_script = word.text.endswith(".py") and not word.text.startswith("-") and "torch/distributed" not in word.text
        is_module = number > 0 and words[number - 1].text == "-m" and not word.text.startswith("torch.distributed")
        if is_script or is_module:
            return list(words[:number + 1]), list(words[number + 1:])
    runner = next((number for number, word in enumerate(words) if word.text.endswith(_RUNNERS)), None)
    first = 0 if runner is None else runner + 1
    while runner is not None and first < len(words) and words[first].text.partition("=")[0] in _RUNNER_OPTIONS:
        first += 1 if "=" in words[first].text or words[first].text == "--standalone" else 2
    while first < len(words) and not words[first].text.startswith("--"):
        first += 1
    return list(words[:first]), list(words[first:])


def gpus_of(command: Started, script: Script, path: str) -> Answer | None:
    """Number of GPUs that a command starts processes for; None if it does not say it in numbers."""
    launch, _ = split_launch(command.words)
    around = [*script.sbatch, *command.around, *launch]
    runner = next((word for word in launch if word.text.endswith(_RUNNERS)), None)
    nodes = _slurm_nodes(around)
    if runner is not None:
        processes, own_nodes = _option(launch, _PROCESSES), _option(launch, _NODES)
        count = own_nodes if own_nodes and own_nodes.isdigit() else nodes or ("1" if own_nodes is None else "")
        return _answer(processes or "1", count, f"{path}:{runner.line}", "torchrun")
    mpirun = next((word for word in around if word.text.rpartition("/")[2] in ("mpirun", "mpiexec")), None)
    if mpirun is not None:
        return _answer(_option(around, ("-np", "-n", "--np")) or "", "1", f"{path}:{mpirun.line}", "mpirun")
    return _of_slurm(around, nodes, path)


def _of_slurm(around: Sequence[Word], nodes: str, path: str) -> Answer | None:
    """Srun starts one process a GPU: all tasks, or tasks of each node."""
    slurm = next((word for word in around if word.text == "srun"), None)
    tasks, each = _option(around, _SLURM["tasks"]), _option(around, _SLURM["tasks_per_node"])
    if slurm is None:
        return None
    if tasks:
        return _answer(tasks, "1", f"{path}:{slurm.line}", "srun")
    return _answer(each or "", nodes, f"{path}:{slurm.line}", "srun")


def _slurm_nodes(around: Sequence[Word]) -> str:
    return _option(around, _SLURM["nodes"]) or ""


def _option(words: Sequence[Word], names: tuple[str, ...]) -> str | None:
    """Last value of an option, "?" if it is not known; None if no word is the option."""
    value: str | None = None
    for number, word in enumerate(words):
        name, has_value, inner = word.text.partition("=")
        if name not in names:
            continue
        following = words[number + 1] if number + 1 < len(words) else Word("", word.line, "nothing")
        given = word if has_value else following
        value = "?" if given.unknown else (inner if has_value else given.text)
    return value


def _answer(each: str, count: str, where: str, runner: str) -> Answer | None:
    if not (re.fullmatch(r"[0-9]{1,7}", each) and re.fullmatch(r"[0-9]{1,7}", count)):
        return None
    return Answer(int(each) * int(count), f"{where} {runner}")
