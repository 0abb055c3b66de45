"""Detail of a finished simulation: data that its pictures need, added to the report."""

from __future__ import annotations

from functools import partial
from typing import Final

from simcore.memory.inventory import holders, kinds_by_path, tensor_rows
from simcore.memory.ledger import balance
from simcore.memory.lifetimes import lifetimes
from simcore.memory.series import memory_by_part
from simcore.placement.fold import RankClass
from simcore.placement.plan import Plan
from simcore.results.detail import AxisDigit, ClassDetail, Detail, Span
from simcore.results.report import Report
from simcore.simulation.simulation import Simulation
from simcore.timing.spans import MAX_SPANS, spans
from simcore.timing.timeline import rendezvous_key

__all__ = ["with_detail", "with_streams"]

_AXES: Final = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "expert_dp", "ep", "etp")
_EVERY: Final = 1 << 20
"""More owners than any peak has that fits into a page."""

_FEWEST: Final = 1200
"""Spans that a class has however many classes there are."""


def with_detail(simulation: Simulation, report: Report, most: int | None = None, postings: int = 0) -> Report:
    """Copy of the report with `detail`, the data that pictures need.

    `most`: limit of timeline intervals over all classes of ranks (each may keep 1,200 all the same), None or 0 for as
    many as a page can bear. `postings` > 0: also keeps lifetimes of allocations, up to so many births and deaths over
    all classes.
    """
    classes = tuple(_class(simulation, number, *each, most, postings // len(simulation.classes))
                    for number, each in enumerate(zip(simulation.classes, simulation.plans, strict=True)))
    return report.model_copy(update={"detail": _detail(simulation, classes)})


def with_streams(simulation: Simulation, report: Report, most: int | None = None) -> Report:
    """Copy of the report with a `detail` that has the streams alone. `most`: as in `with_detail`."""
    classes = tuple(ClassDetail(spans=_spans(simulation, number, ranks, most))
                    for number, ranks in enumerate(simulation.classes))
    return report.model_copy(update={"detail": _detail(simulation, classes)})


def _detail(simulation: Simulation, classes: tuple[ClassDetail, ...]) -> Detail:
    mesh, clocked = simulation.job.mesh, simulation.timing
    axes = (mesh.axis(name) for name in _AXES)
    return Detail(
        axes=tuple(AxisDigit(name=axis.name, size=axis.size, stride=axis.stride) for axis in axes if axis.size > 1),
        ranks_per_node=min(simulation.topology.gpus_taken(mesh.size), mesh.size),
        num_microbatches=simulation.job.scenario.num_microbatches, written_out=simulation.num_written,
        end_s=None if clocked is None else max(times.end for times in clocked.times) / 1e9,
        layers={} if not simulation.plans else kinds_by_path(simulation.plans[0]), classes=classes)


def _class(simulation: Simulation, number: int, ranks: RankClass, plan: Plan, most: int | None, postings: int
           ) -> ClassDetail:
    program, clocked, kinds = simulation.programs.get(ranks.representative), simulation.timing, kinds_by_path(plan)
    if program is None:
        return ClassDetail(tensors=tensor_rows(plan))
    row_ns = None if clocked is None else clocked.row_ns[number]
    return ClassDetail(
        tensors=tensor_rows(plan), holders=holders(balance(program, _EVERY), kinds),
        by_part=memory_by_part(program, row_ns, kinds), spans=_spans(simulation, number, ranks, most),
        lifetimes=lifetimes(program, row_ns, postings) if postings else None)


def _spans(simulation: Simulation, number: int, ranks: RankClass, most: int | None) -> tuple[Span, ...]:
    program, clocked = simulation.programs.get(ranks.representative), simulation.timing
    if program is None or clocked is None:
        return ()
    return spans(program, clocked.tracks[number], clocked.times[number], clocked.row_ns[number],
                 max(_FEWEST, (most or MAX_SPANS) // len(simulation.classes)),
                 partial(rendezvous_key, clocked.wiring, number))
