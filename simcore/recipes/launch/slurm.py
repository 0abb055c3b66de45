"""Nodes, tasks and GPUs of a job under Slurm: options of srun, and the `#SBATCH` lines that they begin from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.launch.job_option import JobOption
from simcore.recipes.launch.options import NUMBER, Number, Options
from simcore.recipes.launch.starters import Starter
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.script import Script, read_script

__all__ = ["Allocation", "allocation_of", "job_of", "options_of_launchers", "read_job"]

_SIZES: Final = frozenset({"--nodes", "-N", "--ntasks", "-n", "--ntasks-per-node", "--tasks-per-node", "--gpus", "-G",
                           "--gpus-per-node", "--gres", "--gpus-per-task", "--nproc-per-node", "--nproc_per_node",
                           "--nnodes", "--num_gpus", "--num_nodes", "-np", "--np"})
"""Options that say how many ranks there may be."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Sizes of a job, None where nothing says them; `gpus`: of all nodes."""

    nodes: Number | None = None
    tasks: Number | None = None
    tasks_per_node: Number | None = None
    gpus: Number | None = None
    gpus_per_node: Number | None = None

    def tasks_on_node(self) -> int | None:
        """Tasks of a node; None if nothing says them, or they are not alike on all."""
        if self.tasks_per_node is not None or self.tasks is None or self.nodes is None:
            return self.tasks_per_node.value if self.tasks_per_node else None
        return None if not self.nodes.value or self.tasks.value % self.nodes.value else (
            self.tasks.value // self.nodes.value)

    def variables(self) -> dict[str, int]:
        """Variables that Slurm sets in a job, as far as its sizes are known."""
        tasks = self.tasks.value if self.tasks else (
            self.tasks_per_node.value * self.nodes.value if self.tasks_per_node and self.nodes else None)
        sizes = {"SLURM_NNODES": self.nodes, "SLURM_JOB_NUM_NODES": self.nodes, "SLURM_NTASKS_PER_NODE":
                 self.tasks_per_node, "SLURM_GPUS_ON_NODE": self.gpus_per_node, "SLURM_GPUS_PER_NODE":
                 self.gpus_per_node}
        known = {name: size.value for name, size in sizes.items() if size is not None}
        return known | ({"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks} if tasks else {})


def allocation_of(words: Sequence[Word], path: str, before: Allocation | None = None) -> Allocation:
    """Reads options of sbatch or srun. `before`: what the job has, which they change."""
    options, outer = Options(words, path, "Slurm"), before or Allocation()
    options.refuse("GPUs of a socket", "--gpus-per-socket", "--ntasks-per-gpu")
    nodes = options.number("--nodes", "-N")
    tasks, each = options.number("--ntasks", "-n"), options.number("--ntasks-per-node", "--tasks-per-node")
    of_node = _gpus(options, "--gpus-per-node") or _gpus(options, "--gres")
    job = Allocation(nodes or outer.nodes, tasks or (None if each else outer.tasks), each or outer.tasks_per_node,
                     _gpus(options, "--gpus", "-G") or outer.gpus, of_node or outer.gpus_per_node)
    of_task, on_node = _gpus(options, "--gpus-per-task"), job.tasks_on_node()
    if of_task is not None and of_node is None and on_node:
        return replace(job, gpus_per_node=Number(of_task.value * on_node, of_task.where))
    return job


def read_job(text: str, path: str, variables: Mapping[str, str] | None = None,
             beside: Mapping[str, str] | None = None) -> Script:
    """Script with the variables that Slurm sets by its `#SBATCH` lines; arguments as of `read_script`.

    Sizes that are no numbers, as templates have them, set none.
    """
    script = read_script(text, path, variables, beside)
    try:
        sizes = allocation_of(script.sbatch, path).variables()
    except InputError:
        return script
    set_by_slurm = {name: str(size) for name, size in sizes.items()}
    return read_script(text, path, set_by_slurm | dict(variables or {}), beside) if sizes else script


def options_of_launchers(starters: Sequence[Starter], path: str) -> tuple[JobOption, ...]:
    """Own options of srun, mpirun, torchrun and deepspeed; those of others are keys that a recipe has."""
    return tuple(replace(one, launcher=starter.kind) for starter in starters
                 if starter.kind in ("srun", "mpirun", "torchrun", "deepspeed")
                 for one in job_of(starter.options, path))


def job_of(words: Sequence[Word], path: str) -> tuple[JobOption, ...]:
    """Options of `#SBATCH` lines, in order."""
    found: list[JobOption] = []
    for word in words:
        where = f"{path}:{word.line}"
        name, has_value, value = word.text.partition("=")
        glued = re.fullmatch(r"(-[A-Za-z])([0-9].*)", word.text)
        if not word.text.startswith("-"):
            if found and not found[-1].value:
                found[-1] = replace(found[-1], value=word.text)
        elif glued and not word.text.startswith("--"):
            found.append(JobOption(glued[1], glued[2], where, glued[1] in _SIZES))
        else:
            found.append(JobOption(name, value if has_value else "", where, name in _SIZES))
    return tuple(found)


def _gpus(options: Options, *names: str) -> Number | None:
    """GPUs of `8`, `h100:8`, `gpu:8` or `gpu:h100:8`; None for another resource."""
    word = options.word(*names)
    if word is None:
        return None
    parts = next((part for part in word.text.split(",") if names != ("--gres",) or part.split(":")[0] == "gpu"), None)
    if parts is None:
        return None
    count = parts.rpartition(":")[2]
    if count == "gpu":
        return Number(1, f"{options.path}:{word.line}")
    if not NUMBER.fullmatch(count):
        raise InputError(Problem(f"{options.path}:{word.line}", f"{names[0]}: expected a number of GPUs, got "
                                                                f"{word.text!r}"))
    return Number(int(count), f"{options.path}:{word.line}")
