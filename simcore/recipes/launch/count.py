"""Number of processes that launchers in one another start, one a GPU; what they say must agree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.launch.options import NUMBER, Number, Options
from simcore.recipes.launch.slurm import Allocation, allocation_of
from simcore.recipes.launch.starters import NEMO_RL, Starter

__all__ = ["expect_visible", "processes_of", "visible_gpus"]

_DEVICE: Final = re.compile(r"-1|[0-9]*|(?:GPU|MIG)-[\w/-]+")
_EACH: Final = ("--nproc-per-node", "--nproc_per_node")
_COPIES: Final = ("-np", "-n", "--np", "-c")


def processes_of(starters: Sequence[Starter], path: str, headers: Allocation,
                 visible: Number | None = None) -> Number | None:
    """Number of processes; None if the command leaves it to the machine, to a further file, or to the recipe.

    `headers`: sizes that `#SBATCH` lines give; `visible`: GPUs of a node that CUDA_VISIBLE_DEVICES leaves.

    InputError for numbers that contradict each other, or that are no
    numbers, such as a range of nodes.
    """
    last = starters[-1]
    job = headers
    for starter in starters:
        if starter.kind == "srun":
            job = allocation_of(starter.options, path, headers)
    if visible and job.gpus_per_node and visible.value < job.gpus_per_node.value:
        job = replace(job, gpus_per_node=visible)
    options = Options(last.options, path, last.kind)
    where = f"{path}:{last.word.line} {last.kind}"
    if last.kind == NEMO_RL:
        return None
    if last.kind == "python":
        return _alone(visible, where)
    if last.kind == "srun":
        return Number(_of_tasks(job, where), where)
    if last.kind == "mpirun":
        processes = options.number(*_COPIES)
        if processes is None:
            raise options.problem(last.word.line, "-np is missing: the number of processes is left to the machine")
        return Number(processes.value, where)
    around = {starter.kind: Options(starter.options, path, starter.kind) for starter in starters[:-1]}
    copies = around["mpirun"].number(*_COPIES) if "mpirun" in around else None
    if last.kind == "accelerate":
        machines = options.number("--num_machines", "--num-machines")
        _expect_copies(last, machines, job.tasks if "srun" in around else None, copies, where)
        return _of_accelerate(options, job, where)
    if last.kind in ("torchrun", "automodel") and (each := _each(options, last)) is not None:
        expect_visible(each.value, visible, each.where)
    return _of_nodes(last, options, job, where, copies, by_slurm="srun" in around)


def _alone(visible: Number | None, where: str) -> Number:
    """One process of a program without a launcher; InputError where it sees several GPUs."""
    if visible is not None and visible.value > 1:
        raise InputError(Problem(where, f"not yet: one process over {visible.value} GPUs ({visible.where}), to which "
                                        "the Trainer gives copies of the model (torch's DataParallel)"))
    return Number(1, where)


def visible_gpus(text: str) -> int | None:
    """Number of GPUs that a value of CUDA_VISIBLE_DEVICES leaves, None for a text that is no list of them.

    Those behind one that there cannot be, such as -1, are not visible either (CUDA C++ Programming Guide, CUDA
    Environment Variables).
    """
    names = text.replace(" ", "").split(",")
    if not all(_DEVICE.fullmatch(name) for name in names):
        return None
    return next((number for number, name in enumerate(names) if name in ("", "-1")), len(names))


def expect_visible(processes: int, visible: Number | None, where: str) -> None:
    """Raises InputError for more processes of a node than GPUs that CUDA_VISIBLE_DEVICES leaves: each takes its own."""
    if visible is not None and processes > visible.value:
        raise InputError(Problem(where, f"starts {processes} processes a node, to which {visible.where} leaves "
                                        f"{visible.value} GPUs"))


def _of_tasks(job: Allocation, where: str) -> int:
    nodes = job.nodes.value if job.nodes else 1
    tasks = job.tasks.value if job.tasks else nodes * (job.tasks_per_node.value if job.tasks_per_node else 1)
    gpus = job.gpus or (Number(nodes * job.gpus_per_node.value, job.gpus_per_node.where) if job.gpus_per_node else None)
    if gpus is not None and gpus.value != tasks:
        raise InputError(Problem(where, f"starts {tasks} processes, the job has {gpus.value} GPUs ({gpus.where}): "
                                        "one process a GPU is read"))
    return tasks


def _of_accelerate(options: Options, job: Allocation, where: str) -> Number | None:
    processes = options.number("--num_processes", "--num-processes")
    if processes is None:
        return None
    if job.nodes and job.gpus_per_node and job.nodes.value * job.gpus_per_node.value != processes.value:
        raise InputError(Problem(processes.where, f"--num_processes {processes.value}, the job has {job.nodes.value} x "
                                                  f"{job.gpus_per_node.value} GPUs ({job.gpus_per_node.where})"))
    return Number(processes.value, where)


def _expect_copies(starter: Starter, nodes: Number | None, tasks: Number | None, copies: Number | None,
                   where: str) -> None:
    """Raises InputError if srun or mpirun starts a launcher another number of times than it has nodes.

    Without a number of its own a launcher is of one node: each copy is then a job by itself.
    """
    for name, found in (("srun", tasks), ("mpirun", copies)):
        count = nodes.value if nodes else 1
        if found is not None and found.value != count:
            raise InputError(Problem(nodes.where if nodes else where, f"{starter.kind} is of {count} nodes, and {name} "
                                                                      f"starts it {found.value} times ({found.where})"))


def _of_nodes(starter: Starter, options: Options, job: Allocation, where: str, copies: Number | None, *,
              by_slurm: bool) -> Number | None:
    """Processes of torchrun, deepspeed and automodel: those of a node times the nodes."""
    if starter.kind == "deepspeed":
        options.refuse("which GPUs of which hosts", "--exclude", "-e", "--hostfile", "-H")
        each, nodes = _included(options) or options.number("--num_gpus"), options.number("--num_nodes")
    else:
        each = _each(options, starter)
        nodes = _nodes(options)
    if each is None:
        return None
    count = nodes.value if nodes else 1
    if job.nodes and job.nodes.value != count:
        said = nodes.where if nodes else where
        raise InputError(Problem(said, f"{starter.kind} is of {count} nodes, the job has {job.nodes.value} "
                                       f"({job.nodes.where})"))
    tasks = job.tasks_per_node or job.tasks
    if tasks and job.tasks_on_node() not in (None, 1) and by_slurm:
        raise InputError(Problem(where, f"starts the processes of a node, and srun {job.tasks_on_node()} tasks on each "
                                        f"({tasks.where})"))
    if starter.kind == "torchrun":
        _expect_copies(starter, nodes, job.tasks if by_slurm else None, copies, where)
    if job.gpus_per_node and job.gpus_per_node.value != each.value:
        raise InputError(Problem(each.where, f"{each.value} processes a node, which has {job.gpus_per_node.value} GPUs "
                                             f"({job.gpus_per_node.where})"))
    return Number(each.value * count, where)


def _included(options: Options) -> Number | None:
    """GPUs of the one host that `--include HOST:0,1,2` lists (deepspeed 0.19.6 launcher/runner.py); None without it."""
    word = options.word("--include", "-i")
    if word is None:
        return None
    host, _, listed = word.text.partition(":")
    count = visible_gpus(listed) if host == "localhost" and listed else None
    if not count:
        options.refuse("which GPUs of which hosts", "--include", "-i")
    return Number(count or 1, f"{options.path}:{word.line} --include")


def _each(options: Options, starter: Starter) -> Number | None:
    """Processes of a node; torchrun's default is 1, automodel's is left to the machine."""
    word = options.word(*_EACH)
    if word is None:
        if starter.kind != "torchrun":
            return None
        return Number(1, f"{options.path}:{starter.word.line}")
    if word.text in ("gpu", "auto", "cpu"):
        raise options.problem(word.line, f"{_EACH[0]} {word.text} leaves the number to the machine: give --gpus N "
                                         "instead of this file, or write the number")
    return options.number(*_EACH)


def _nodes(options: Options) -> Number | None:
    word = options.word("--nnodes")
    if word is None:
        return None
    least, is_range, most = word.text.partition(":")
    if is_range and least != most:
        raise options.problem(word.line, f"not yet: --nnodes {word.text}: a number of nodes that may change")
    if not NUMBER.fullmatch(least):
        raise options.problem(word.line, f"--nnodes: expected a number of nodes, got {word.text!r}")
    return Number(int(least), f"{options.path}:{word.line}")
