"""`rankscope calibrate`: reads arguments, measures, writes. PyTorch and the engine are imported when it is called."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.errors import InputError, Problem
from simcore.inputs.paths import exists, is_dir, unusable

if TYPE_CHECKING:
    from simcore.calibration.bench import Bench
    from simcore.calibration.calibrate import Calibration
    from simcore.hardware.topology import Topology

__all__ = ["calibrate"]


class On(StrEnum):
    """Choice of `calibrate --device`: the device that is measured."""

    CUDA = "cuda"
    CPU = "cpu"


def calibrate(
    *,
    out: Annotated[Path, typer.Option(help="The efficiency file to write; a topology names it.")],
    topology_out: Annotated[Path | None, typer.Option(help="A copy of the topology that names it, links too.")] = None,
    model: Annotated[str, typer.Option(help="Model whose shapes are measured.")] = "nemotron-3-nano-30b-a3b",
    topology: Annotated[str, typer.Option(help="Topology with the peaks that shares refer to.")] = "dgx-h100",
    device: Annotated[On, typer.Option(help="cpu: only to try the path out.")] = On.CUDA,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes and repeats.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print every reading as JSON, nothing else.")] = False,
) -> None:
    """Measure this machine's kernels at a model's shapes, into an efficiency file (needs PyTorch and a GPU).

    What cannot be measured keeps the topology's value, marked as assumed. Links and memory are measured too; they are
    written with --topology-out, collectives into NAME-curves.yaml beside it. Exit code 0, or 2 for wrong arguments.
    """
    from simcore.calibration.calibrate import calibrate as measure
    from simcore.hardware.topology import load_topology

    base = load_topology(topology, where="--topology")
    _check_free(out, topology_out, _curves_beside(topology_out), force=force)
    bench = _bench(model, base, device, quick=quick)
    done = measure(bench, base, lambda line: typer.echo(line, err=True))
    written = _write(out, topology_out, base, done, bench)
    typer.echo(done.as_json(bench.machine.told) if json else "\n".join(f"wrote {path}" for path in written))


def _check_free(*asked: Path | None, force: bool) -> None:
    """Raises InputError for outputs that cannot be written, before minutes are spent on measuring."""
    paths = [path for path in asked if path]
    problems = [Problem(str(path), f"there is no folder {path.parent}") for path in paths if not is_dir(path.parent)]
    problems += [Problem(str(path), f"cannot be written: {why}") for path in paths if (why := unusable(path))]
    problems += [Problem(str(path), "is a folder") for path in paths if is_dir(path)]
    if not force:
        problems += [Problem(str(path), "exists already; --force overwrites it") for path in paths if exists(path)]
    if len({path.resolve() for path in paths}) < len(paths):
        problems.append(Problem("--topology-out", "is the same file as --out"))
    if problems:
        raise InputError(problems)


def _curves_beside(topology_out: Path | None) -> Path | None:
    """Path for measured curves of collectives, next to a written topology that can name them."""
    return topology_out and topology_out.with_name(f"{topology_out.stem}-curves.yaml")


def _bench(model: str, base: Topology, device: str, *, quick: bool) -> Bench:
    from datetime import UTC, datetime

    from simcore.calibration.bench import Bench, extent_of
    from simcore.calibration.machine import find_machine
    from simcore.calibration.sizes import sizes_of
    from simcore.calibration.stopwatch import Stopwatch

    sizes = sizes_of(model, "--model")
    machine = find_machine(device, base, f"{datetime.now(UTC):%Y-%m-%d}")
    extent = extent_of(machine, quick=quick)
    return Bench(machine, sizes, extent, Stopwatch(machine, extent.warmup, extent.repeats))


def _write(out: Path, topology_out: Path | None, base: Topology, done: Calibration, bench: Bench) -> list[Path]:
    """Writes the files and returns their paths."""
    from simcore.calibration.ranks import library
    from simcore.calibration.write import curves_text, efficiency_text, topology_text

    machine = bench.machine.told
    texts = {out: efficiency_text(out.stem, base.efficiency, done.efficiency, done.reasons, machine)}
    curves = _curves_beside(topology_out) if done.points else None
    if curves is not None:
        texts[curves] = curves_text(done.points, bench.machine.name, library(bench), machine)
    if topology_out is not None:
        texts[topology_out] = topology_text(topology_out.stem, base, _from(topology_out, out),
                                            curves.name if curves else "", done.topology, machine)
    return _put_down(texts)


def _from(file: Path, other: Path) -> str:
    """Name of `other` inside `file`: relative if both are in one folder."""
    return other.name if file.resolve().parent == other.resolve().parent else str(other.resolve())


def _put_down(texts: dict[Path, str]) -> list[Path]:
    from simcore.cli.output import write_new

    for path, text in texts.items():
        write_new(path, text, force=True)  # `_check_free` has asked
    return list(texts)
