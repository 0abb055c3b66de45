"""Options of `run` and `search` for work beyond one process: `--on`, `--shard`, `--from`."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.executors.executor import Open
    from simcore.executors.shard import Shard

__all__ = ["Elsewhere", "From", "On", "Part", "elsewhere"]

On = Annotated[str, typer.Option("--on", metavar="PLACE", help="A cluster: dask, ray, each with ://HOST:PORT or a new "
                                                               "one on this machine.")]
Part = Annotated[str, typer.Option("--shard", metavar="I/N", help="With -o: only part I of N, for a job array.")]
From = Annotated[list[str] | None, typer.Option(
    "--from", metavar="DIR", help="Folders or globs of all N shards: put together instead of simulated.")]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Place of the work of a command.

    `place`: opens the executor, None: this machine; `shard`: the only part to do; `parts`: folders of all shards.
    """

    place: Open[Any] | None
    shard: Shard | None
    parts: Sequence[Path]


def elsewhere(on: str, shard: str, parts: Sequence[str], jobs: int | None, output: Path | None) -> Elsewhere:
    """Place, shard and folders of the three options. InputError for each that is wrong, and for a shard without -o."""
    from simcore.executors.places import place_named
    from simcore.executors.shard import shard_of

    if shard and parts:
        raise InputError(Problem("--from", "expected this or --shard, got both"))
    if shard and output is None:
        raise InputError(Problem(f"--shard {shard}"[:120], "expected -o DIR too: the folder of this shard"))
    return Elsewhere(place_named(on, jobs) if on else None, shard_of(shard, "--shard") if shard else None,
                     [folder for text in parts for folder in _folders(text)])


def _folders(text: str) -> list[Path]:
    """Folders of a name or glob, in order."""
    found = [Path(name) for name in sorted(glob.glob(text))]  # noqa: PTH207 - of any path if glob.has_magic(text) else [Path(text)]
    if not found:
        raise InputError(Problem(f"--from {text}"[:120], "no folder has such a name"))
    return found
