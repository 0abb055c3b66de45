"""Option of a job under Slurm, as a value: what was read of a script, without what reads it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobOption"]


@dataclass(frozen=True, slots=True)
class JobOption:
    """An option of a `#SBATCH` line, or of a launcher, which it names: name, value, place.

    `is_size`: it says nodes, tasks, processes or GPUs.
    """

    name: str
    value: str
    where: str
    is_size: bool
    launcher: str = ""
