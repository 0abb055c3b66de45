"""`rankscope calibrate`: reads arguments, measures, writes. PyTorch and the engine are imported when it is called."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from simcore.errors import InputError, Problem

__all__ = ["calibrate"]


class On(StrEnum):
    """What is measured."""

    CUDA = "cuda"
    CPU = "cpu"


def calibrate(
    *,
    out: Annotated[Path, typer.Option(help="The efficiency file to write; a topology names it.")],
    model: Annotated[str, typer.Option(help="Whose shapes are measured.")] = "nemotron-3-nano-30b-a3b",
    topology: Annotated[str, typer.Option(help="Whose peaks shares are of.")] = "dgx-h100",
    device: Annotated[On, typer.Option(help="cpu: only to try the path out.")] = On.CUDA,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes and repeats.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print nothing on standard output.")] = False,
) -> None:
    """Measure this machine's kernels at a model's shapes, into an efficiency file (needs PyTorch and a GPU)."""
    from datetime import UTC, datetime

    from simcore.calibration.bench import Bench, extent_of
    from simcore.calibration.calibrate import calibrate as measure
    from simcore.calibration.machine import find_machine
    from simcore.calibration.sizes import sizes_of
    from simcore.calibration.stopwatch import Stopwatch
    from simcore.calibration.write import efficiency_text
    from simcore.output import write_new
    from simcore.topology import load_topology

    sizes, cluster = sizes_of(model, "--model"), load_topology(topology, where="--topology")
    if out.exists() and not force:  # before minutes are spent on it
        raise InputError(Problem(str(out), "exists already; --force overwrites it"))
    machine = find_machine(device, cluster, f"{datetime.now(UTC):%Y-%m-%d}")
    extent = extent_of(machine, quick=quick)
    bench = Bench(machine, sizes, extent, Stopwatch(machine, extent.warmup, extent.repeats))
    done = measure(bench, cluster, lambda line: typer.echo(line, err=True))
    write_new(out, efficiency_text(out.stem, cluster.efficiency, done.found, done.reasons, machine.told), force=force)
    if not json:
        typer.echo(f"wrote {out}; next: name it under efficiency: in a topology file")
