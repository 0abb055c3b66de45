"""A memory snapshot next to the simulated step: by quantity, and by group of allocations.

[Note: the same quantity]
A snapshot counts all memory that torch's allocator handed out, with workspaces of cuBLAS; if the report counts these
outside of tensors, they are added, but not for a snapshot that rankscope wrote. Megatron's buffers hold parameters and
gradients in one function, so if a snapshot has them, these two are compared together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simcore.results.report import Peak, Report
from simcore.validation.memory_snapshot import Dump
from simcore.validation.side_by_side import Beside, SideBySide, band, beside, of_rank
from simcore.validation.stack_frames import BUFFERS, MAIN_GRADS, PARAMETERS, WORKSPACES, group_of_category

__all__ = ["beside_dump"]


def beside_dump(name: str, dump: Dump, report: Report, rank: int | None) -> SideBySide:
    """Comparison of a snapshot's fullest device with the class of ranks that has `rank`; None: with the fullest class.

    `name`: of the file. InputError if there is no such rank; NotYet for a report without a peak of a training step.
    """
    rank_class, peak = of_rank(report, rank)
    apart = 0 if dump.ours else peak.outside.get("workspace", 0)
    added = "with workspaces, which the report counts beside tensors" if apart else ""
    quantities = (
        beside("peak allocated", "bytes", dump.peak_bytes, peak.allocated_bytes + apart, added),
        beside("allocated at the end", "bytes", dump.end_bytes,
                None if rank_class.end_bytes is None else rank_class.end_bytes + apart),
        beside("reserved", "bytes", dump.reserved_bytes, peak.reserved_bytes, band(peak)))
    return SideBySide(measured=name, source="memory snapshot", scenario=report.name, ranks=rank_class.ranks,
                      verdict=report.verdict or "", quantities=quantities, groups=tuple(_groups(dump, peak, apart)),
                      notes=tuple(_of_dump(dump)))


def _groups(dump: Dump, peak: Peak, apart: int) -> Iterator[Beside]:
    if not dump.has_frames and not dump.ours:
        return
    simulated: Counter[str] = Counter({WORKSPACES: apart})
    for category, size in peak.by_category.items():
        simulated[group_of_category(category)] += size
    measured = Counter(dump.groups)
    if measured[BUFFERS]:
        for side in (measured, simulated):
            side[BUFFERS] += side.pop(PARAMETERS, 0) + side.pop(MAIN_GRADS, 0)
    names = [name for name in dict.fromkeys((*measured, *simulated)) if measured[name] or simulated[name]]
    for name in sorted(names, key=lambda name: (-abs(simulated[name] - measured[name]), name)):
        yield beside(name, "bytes", measured[name], simulated[name])


def _of_dump(dump: Dump) -> Iterator[str]:
    if dump.ours:
        yield "rankscope wrote this snapshot: simulated stands beside simulated"
    else:
        yield f"the highest moment of the {dump.num_events:,} events that it has; what came before is not in it"
    if len(dump.devices) > 1:
        yield f"it has devices {', '.join(map(str, dump.devices))}; device {dump.device}, the fullest, is compared"
    if dump.refused and not dump.ours:
        yield "an allocation failed in it (oom): the measured peak is what there was room for"
    if not dump.has_frames and not dump.ours:
        yield "it has no frames, so what its bytes are for cannot be told: record with context='all'"
