"""Number of GPUs of a launch command: torchrun's, srun's and mpirun's options, and `#SBATCH` lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.answers import Answer
from simcore.recipes.launch.count import expect_visible
from simcore.recipes.launch.launch_of import visible_in
from simcore.recipes.launch.options import Number
from simcore.recipes.launch.starters import starters_of
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.script import Script, Started

__all__ = ["agreed", "expect_launcher", "gpus_of", "split_launch"]

_RUNNERS: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "torch/distributed/run.py")
_RUNNER_OPTIONS: Final = frozenset({
    "--nproc_per_node", "--nproc-per-node", "--nnodes", "--node_rank", "--node-rank", "--master_addr", "--master-addr",
    "--master_port", "--master-port", "--rdzv_id", "--rdzv-id", "--rdzv_backend", "--rdzv-backend", "--rdzv_endpoint",
    "--rdzv-endpoint", "--standalone", "--log_dir", "--log-dir", "--tee", "--redirects", "--max_restarts",
    "--max-restarts"})
"""Options of torchrun; all but --standalone take a value."""
_PROCESSES: Final = ("--nproc_per_node", "--nproc-per-node")
_NODES: Final = ("--nnodes",)
_COPIES: Final = ("-np", "-n", "--np")
_COUNT: Final = re.compile(r"(?:gpu:)?(?:[A-Za-z]\w*:)?([1-9][0-9]{0,6})")
_BEFORE: Final = re.compile(r"srun|mpirun|mpiexec|orterun|accelerate|launch|deepspeed|python[0-9.]*|env|exec|time|"
                            r"nohup|numactl|nsys|profile|uv|run|poetry|bash|sudo|command|stdbuf|\w+=.*", re.DOTALL)
"""Launchers, and words that stand before them."""
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


def expect_launcher(launch: Sequence[Word], path: str) -> None:
    """Raises InputError for words before the arguments that are no launcher, no script and none of their options."""
    starters = starters_of(launch)
    launch = starters[-1].rest if starters else launch
    is_option = [word.text.startswith("-") for word in launch]
    stray = [word for number, word in enumerate(launch) if not is_option[number] and not any(is_option[:number])
             and not (word.unknown and not word.may_hold) and not _BEFORE.fullmatch(word.text.rpartition("/")[2])
             and not word.text.endswith((*_RUNNERS, ".py"))]
    if stray:
        reasons = [f": {word.unknown}" if word.unknown else "" for word in stray]
        raise InputError([Problem(f"{path}:{word.line}", f"{word.text[:60]!r} before Megatron's arguments is no "
                                                         f"launcher and no Python script{reason}")
                          for word, reason in zip(stray, reasons, strict=True)])


def gpus_of(command: Started, script: Script, path: str) -> Answer | None:
    """Number of GPUs that a command starts processes for; None if it does not say it in numbers.

    InputError, with both places, for numbers that contradict each other.
    """
    launch, _ = split_launch(command.words)
    around = [*script.sbatch, *command.around, *launch]
    job = _job(command, script, path)
    runner = next((word for word in launch if word.text.endswith(_RUNNERS)), None)
    if runner is not None:
        processes, own_nodes = _option(launch, _PROCESSES), _option(launch, _NODES)
        count = "1" if own_nodes is None else own_nodes if own_nodes.isdigit() else _text(job.nodes)
        _expect_agreement(job, processes, own_nodes, f"{path}:{runner.line}")
        return _answer(processes or "1", count, f"{path}:{runner.line}", "torchrun")
    mpirun = next((word for word in around if word.text.rpartition("/")[2] in ("mpirun", "mpiexec")), None)
    if mpirun is not None:
        return _answer(_option(around, _COPIES) or "", "1", f"{path}:{mpirun.line}", "mpirun")
    return _of_slurm(around, job, path)


def agreed(answer: Answer | None, told: Answer | None) -> Answer | None:
    """Number of GPUs that the user answers, or a launch tells; InputError, with both places, if they differ."""
    if answer and told and answer.value != told.value:
        raise InputError(Problem(told.where, f"starts {told.value} processes, which contradicts {answer.where}"))
    return answer or told


@dataclass(frozen=True, slots=True)
class _Job:
    """Numbers around a program, None where nothing says them; `copies`: of mpirun; `by_slurm`: srun starts it.

    `visible`: GPUs of a node that CUDA_VISIBLE_DEVICES leaves.
    """

    nodes: Number | None
    tasks: Number | None
    tasks_per_node: Number | None
    gpus_per_node: Number | None
    copies: Number | None
    by_slurm: bool
    visible: Number | None = None


def _job(command: Started, script: Script, path: str) -> _Job:
    """Reads `#SBATCH` lines and the options of srun, which go before them, and of mpirun."""
    starters = starters_of([*command.around, *command.words])
    options = {starter.kind: starter.options for starter in starters if starter.kind in ("srun", "mpirun")}

    def said(name: str) -> Number | None:
        return _number(options.get("srun", ()), _SLURM[name], path, "srun") or _number(
            script.sbatch, _SLURM[name], path, "#SBATCH")

    gpus, visible = said("gpus_per_node"), visible_in(script, path)
    gpus = visible if gpus and visible and visible.value < gpus.value else gpus
    return _Job(said("nodes"), said("tasks"), said("tasks_per_node"), gpus,
                _number(options.get("mpirun", ()), _COPIES, path, "mpirun"), "srun" in options, visible)


def _expect_agreement(job: _Job, processes: str | None, nodes: str | None, where: str) -> None:
    """Raises InputError unless torchrun's numbers are those of the job around it."""
    count = 1 if nodes is None else int(nodes) if nodes.isdigit() else None
    if count is not None and job.nodes and job.nodes.value != count:
        own = "" if nodes else ", as it has no --nnodes"
        raise InputError(Problem(where, f"torchrun is of {count} nodes{own}, the job has {job.nodes.value} "
                                        f"({job.nodes.where})"))
    if job.copies and count is not None and job.copies.value != count:
        raise InputError(Problem(where, f"torchrun is of {count} nodes, and mpirun starts it {job.copies.value} times "
                                        f"({job.copies.where})"))
    each = job.tasks_per_node
    if job.by_slurm and each and each.value != 1:
        raise InputError(Problem(where, "torchrun starts the processes of a node, and srun "
                                        f"{each.value} of it on each ({each.where})"))
    if job.by_slurm and job.tasks and count is not None and job.tasks.value != count:
        raise InputError(Problem(where, f"torchrun is of {count} nodes, and srun starts it {job.tasks.value} times "
                                        f"({job.tasks.where})"))
    gpus, started = job.gpus_per_node, int(processes) if processes and processes.isdigit() else None
    if gpus and started is not None and gpus.value != started:
        raise InputError(Problem(where, f"{started} processes a node, which has {gpus.value} GPUs ({gpus.where})"))
    if started is not None:
        expect_visible(started, job.visible, where)


def _of_slurm(around: Sequence[Word], job: _Job, path: str) -> Answer | None:
    """Srun starts one process a GPU: all tasks, or tasks of each node."""
    slurm = next((word for word in around if word.text == "srun"), None)
    if slurm is None:
        return None
    where = f"{path}:{slurm.line}"
    nodes, tasks, each, gpus = job.nodes, job.tasks, job.tasks_per_node, job.gpus_per_node
    if tasks and nodes and each and tasks.value != nodes.value * each.value:
        raise InputError(Problem(where, f"{tasks.value} tasks ({tasks.where}), and {nodes.value} x {each.value} of the "
                                        f"nodes ({each.where})"))
    found = _answer(_text(tasks), "1", where, "srun") if tasks else _answer(_text(each), _text(nodes), where, "srun")
    if found is not None and nodes and gpus and found.value != nodes.value * gpus.value:
        raise InputError(Problem(where, f"starts {found.value} processes, the job has {nodes.value} x {gpus.value} "
                                        f"GPUs ({gpus.where})"))
    return found


def _text(number: Number | None) -> str:
    return str(number.value) if number else ""


def _number(words: Sequence[Word], names: tuple[str, ...], path: str, who: str) -> Number | None:
    """Number that an option says (`8`, `gpu:8`, `gpu:h100:8`), None if it is not there or not known."""
    found: Number | None = None
    for number, word in enumerate(words):
        name, has_value, inner = word.text.partition("=")
        glued = name not in names and word.text[:2] in names and not word.text.startswith("--")
        if name not in names and not glued:
            continue
        following = words[number + 1] if number + 1 < len(words) else Word("", word.line, "nothing")
        given = word if has_value or glued else following
        text = inner if has_value else word.text[2:] if glued else following.text
        digits = _COUNT.fullmatch(text)
        found = Number(int(digits[1]), f"{path}:{word.line} {who}") if digits and not given.unknown else None
    return found


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
