"""The end of a run that ran out of memory next to the simulated step: sizes in the phase that failed, and what asked.

[Note: the same quantity]
What torch has allocated when a request fails, and the request, are at most what the phase needs, so they stand beside
the highest simulated allocation of that phase; of several phases together, if the text does not tell one, beside the
peak. torch has returned all blocks that it could before it fails, so what it holds and has not handed out are blocks
that do not fit together; they stand beside the same of the report. As in a snapshot, torch's count includes workspaces
of cuBLAS. What its process holds beside that stands beside the report's memory outside the allocator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from simcore.results.detail import ClassDetail, TensorRow
from simcore.results.phases import PhaseReport
from simcore.results.report import HostPhase, Peak, RankReport, Report
from simcore.units import format_bytes
from simcore.validation.out_of_memory.block import block_bytes, is_printed_as
from simcore.validation.out_of_memory.message import OutOfMemory
from simcore.validation.out_of_memory.other_texts import Told
from simcore.validation.side_by_side import Asked, Beside, Failure, SideBySide, beside, of_rank
from simcore.validation.stack_frames import ACTIVATIONS, BACKWARD, GROUP_OF, RECOMPUTED

__all__ = ["POSTINGS", "beside_failure"]

POSTINGS: Final = 2_000_000
"""Births and deaths of allocations up to which a report keeps each one, so that they can be searched for a size."""
_SOURCE: Final = "out-of-memory error"
_SHOWN: Final = 5
_OF_TOKENS: Final = (ACTIVATIONS, RECOMPUTED, BACKWARD)
_GRADIENTS: Final = ("unsharded_grad", "ignored_grad")
_BYTES: Final = (4, 2, 1, 8)
"""Bytes of an element, the most likely of large tensors first."""
_MIB: Final = 2**20
_SMALL: Final = 20 * _MIB
"""Blocks up to this size are shared by small tensors: their size tells nothing."""
_APART: Final = 0.1
"""Share by which a run and its simulation differ before a remark is made."""
_SEVERAL: Final = 0.05
"""Share of the capacity from which memory of other processes is worth a remark."""
_PHASES: Final = {"forward": ("forward",), "loss": ("loss",), "backward": ("backward", "recompute"),
                  "optimizer": ("optimizer",)}
_HOSTED: Final = {"save": "save", "load": "load", "setup": "load", "generation": "generate"}


def beside_failure(name: str, messages: Sequence[OutOfMemory], others: Sequence[Told], report: Report, rank: int | None
                   ) -> SideBySide:
    """Comparison of the first message (of `rank`, if some are of it) with the class of ranks that has its rank.

    `others`: texts of other programs, which become remarks; without a message only these. `report`: with lifetimes of
    allocations, for the tensors of the size that was asked for. InputError if there is no such rank; NotYet for a
    report without a peak of a training step.
    """
    of_that = [message for message in messages if rank is not None and message.rank == rank]
    message = next(iter(of_that or messages), None)
    notes = [f"{told.meaning} ({told.lines} line{'s' * (told.lines > 1)}: {told.line})" for told in others]
    if message is None:
        return _of_others(name, others, notes, report, rank)
    rank_class, peak = of_rank(report, message.rank if rank is None else rank)
    failure = Failure(kind="PyTorch", phase=message.phase, place=message.place, rank=message.rank,
                      device=message.device, num_failed=len(messages), asked_bytes=message.asked_bytes)
    detail = _detail(report, rank_class)
    asked = tuple(_asked(message, detail, report)) if detail else ()
    return SideBySide(
        measured=name, source=_SOURCE, scenario=report.name, ranks=rank_class.ranks, verdict=report.verdict or "",
        quantities=tuple(_rows(message, report, peak)), failure=failure, asked=asked,
        notes=(*_remarks(message, messages, report, peak), *_of_asked(message, asked, detail), *notes))


def _of_others(name: str, others: Sequence[Told], notes: Sequence[str], report: Report, rank: int | None) -> SideBySide:
    """Comparison of texts without sizes: what the simulated step holds outside of torch's allocator."""
    failure = Failure(kind=others[0].kind if others else "", num_failed=sum(told.lines for told in others))
    ranks: tuple[str, ...] = tuple(ranks for one in report.ranks for ranks in one.ranks)
    rows: tuple[Beside, ...] = ()
    if report.peak_rank is not None:
        rank_class, peak = of_rank(report, rank)
        ranks, rows = rank_class.ranks, (
            beside("outside of torch's allocator", "bytes", None, _outside(peak), _parts(peak)),)
    return SideBySide(measured=name, source=_SOURCE, scenario=report.name, ranks=ranks, verdict=report.verdict or "",
                      quantities=rows, notes=(*notes, *_verdict(report)), failure=failure)


def _detail(report: Report, rank_class: RankReport) -> ClassDetail | None:
    if report.detail is None:
        return None
    return report.detail.classes[report.ranks.index(rank_class)]


# ---- sizes ----------------------------------------------------------------------------------------------------------
def _rows(message: OutOfMemory, report: Report, peak: Peak) -> Iterator[Beside]:
    hosted = _hosted(message, report)
    in_phase, where = _in_phase(message, peak)
    allocated, asked, unused = message.allocated_bytes, message.asked_bytes, message.unused_bytes
    if asked is not None:
        yield beside("asked for", "bytes", asked, None)
    if allocated is not None:
        step = None if hosted or message.phase in _HOSTED else in_phase
        told = f"simulated: the most {where}"
        yield beside("allocated, and asked for", "bytes", allocated + (asked or 0), step, told if step else "")
        if message.private_bytes:
            yield beside("of it in CUDA graphs' pools", "bytes", message.private_bytes, None)
    if unused is not None:
        yield beside("blocks that do not fit together", "bytes", unused, _blocks(peak))
    if message.outside_bytes is not None:
        yield beside("outside of torch's allocator", "bytes", message.outside_bytes, _outside(peak), _parts(peak))
    elif message.rest_bytes is not None:
        told = f"measured with other processes on the GPU; simulated {_parts(peak)}"
        yield beside("outside of torch's allocator", "bytes", message.rest_bytes, _outside(peak), told)
    if message.others_bytes is not None:
        yield beside("other processes on the GPU", "bytes", message.others_bytes, None)
    if message.free_bytes is not None:
        yield beside("free", "bytes", message.free_bytes, None)
    whole = [one for one in (allocated, asked, unused, message.outside_bytes) if one is not None]
    if allocated is not None and asked is not None:
        simulated, told = (hosted.device_bytes, f"simulated: in phase {hosted.phase}") if hosted else (
            peak.device_bytes, "")
        yield beside("needed, at least", "bytes", sum(whole), simulated, told)
    if message.capacity_bytes is not None:
        yield beside("capacity", "bytes", message.capacity_bytes, report.capacity_bytes)


def _hosted(message: OutOfMemory, report: Report) -> HostPhase | PhaseReport | None:
    """Simulated phase beside the step, such as saving, in which the run failed; None in a step."""
    wanted = _HOSTED.get(message.phase)
    if message.phase == "generation" and report.phases:
        return next((phase for phase in report.phases if phase.phase == "generation"), None)
    phases = report.host.phases if report.host else ()
    return next((phase for phase in phases if phase.phase == wanted), None)


def _in_phase(message: OutOfMemory, peak: Peak) -> tuple[int, str]:
    """(highest allocated bytes of the phase that failed, or of the step if it is not told; where that is)."""
    apart = peak.outside.get("workspace", 0)
    found = [peak.by_phase[name] for name in _PHASES.get(message.phase, ()) if name in peak.by_phase]
    if found:
        return apart + max(found), f"in {message.phase}"
    return apart + max(peak.allocated_bytes, peak.first_step_bytes or 0), "of the step"


def _outside(peak: Peak) -> int:
    """Memory outside of torch's allocator, without workspaces, which torch allocates in a run."""
    return sum(size for name, size in peak.outside.items() if name != "workspace")


def _parts(peak: Peak) -> str:
    parts = {name: size for name, size in peak.outside.items() if size and name != "workspace"}
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())


def _blocks(peak: Peak) -> int:
    return peak.device_bytes - peak.allocated_bytes - sum(peak.outside.values())


# ---- remarks --------------------------------------------------------------------------------------------------------
def _remarks(message: OutOfMemory, messages: Sequence[OutOfMemory], report: Report, peak: Peak) -> Iterator[str]:
    if len(messages) > 1:
        ranks = sorted({one.rank for one in messages if one.rank is not None})
        told = f" (ranks {', '.join(map(str, ranks))})" if ranks else ""
        yield f"{len(messages)} messages{told}: the first one is compared, because the others may follow from it"
    if message.phase == "" and message.place:
        yield f"none of the stack frames tells the phase that failed; the innermost is {message.place}"
    elif message.phase == "":
        yield "no stack frames tell the phase that failed: give the text with its traceback"
    if message.asked_bytes is None:
        yield "the size that was asked for is not one of a tensor: a damaged or uninitialised size, not a full GPU"
    yield from _of_device(message, report)
    yield from _of_room(message)
    yield from _of_verdict(message, report, peak)


def _of_device(message: OutOfMemory, report: Report) -> Iterator[str]:
    capacity, simulated, others = message.capacity_bytes, report.capacity_bytes, message.others_bytes
    if capacity and simulated and abs(capacity - simulated) > _APART * simulated:
        yield (f"the GPU of the text has {format_bytes(capacity)}, the scenario's {format_bytes(simulated)}: "
               "another topology was run")
    if message.allowed_bytes is not None:
        yield f"the program limited itself to {format_bytes(message.allowed_bytes)} (set_per_process_memory_fraction)"
    if capacity and others and others > _SEVERAL * capacity:
        yield f"other processes hold {format_bytes(others)} of this GPU, which no scenario has"


def _of_room(message: OutOfMemory) -> Iterator[str]:
    asked, unused = message.asked_bytes, message.unused_bytes
    if asked and unused and unused >= asked:
        yield (f"{format_bytes(unused)} are reserved and not handed out, not less than the {format_bytes(asked)} asked "
               "for: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (in the scenario: expandable_segments: true) may "
               "be enough")


def _verdict(report: Report) -> Iterator[str]:
    need, capacity = report.highest_bytes, report.capacity_bytes
    words = {"fits": "fits", "oom": "does not fit either", "unsure": "does not surely fit"}
    if need is not None and capacity is not None and report.verdict:
        yield f"simulated: {words[report.verdict]}, {format_bytes(need)} of {format_bytes(capacity)}"


def _of_verdict(message: OutOfMemory, report: Report, peak: Peak) -> Iterator[str]:
    yield from _verdict(report)
    allocated, (step, where) = message.allocated_bytes, _in_phase(message, peak)
    if allocated is None or message.phase in _HOSTED:
        return
    measured = allocated + (message.asked_bytes or 0)
    if measured > step * (1 + _APART):
        yield (f"the run holds {format_bytes(measured - step)} more than is simulated {where}: longer or more "
               "sequences than the scenario has, another loss or attention, tensors that the trainer keeps, or another "
               "layout")


# ---- what asked -----------------------------------------------------------------------------------------------------
def _asked(message: OutOfMemory, detail: ClassDetail, report: Report) -> Iterator[Asked]:
    """Simulated allocations of the size that was asked for, those of the phase that failed first."""
    lives, phases = detail.lifetimes, _PHASES.get(message.phase, ())
    if lives is None or lives.merged or message.asked_bytes is None or message.asked_bytes <= _SMALL:
        return
    kinds = report.detail.layers if report.detail else {}
    right = {size for size in set(lives.bytes) if is_printed_as(size, message.asked)}
    every: Counter[tuple[str, str, str, int]] = Counter()
    inside: Counter[tuple[str, str, str, int]] = Counter()
    for owner, size, born in zip(lives.owner, lives.bytes, lives.born, strict=True):
        if size in right:
            path, tensor, category = lives.owners[owner]
            key = (tensor, kinds.get(path, path), category, size)
            every[key] += 1
            inside[key] += born >= 0 and lives.phases[born] in phases
    order = sorted(every, key=lambda key: (-inside[key], abs(block_bytes(key[3]) - (message.asked_bytes or 0)), key))
    for key in order[:_SHOWN]:
        tensor, layer, category, size = key
        whose = f"{tensor} of {layer}" if layer else tensor
        yield Asked(owner=whose, category=category, num_bytes=size, times=every[key], in_phase=inside[key],
                    shape=_shape(tensor, layer, category, size, detail, report))


def _shape(tensor: str, layer: str, category: str, size: int, detail: ClassDetail, report: Report) -> str:
    """Factors of an allocation: of activations tokens by a width of the layer, else a parameter's; "" if unknown."""
    rows = [row for row in detail.tensors if row.layers == layer]
    if GROUP_OF.get(category) in _OF_TOKENS and category not in _GRADIENTS:
        return _of_tokens(size, rows or list(detail.tensors), report)
    for each in _BYTES:
        for row in sorted(rows, key=lambda row: row.name != tensor):
            for part, cuts in ((math.prod(row.shape) * row.copies, ()), (row.num_elements, row.cut)):
                if part and size == part * each:
                    return f"{row.name}: {_factors(row, cuts)} x {each} B"
    return ""


def _factors(row: TensorRow, cuts: Sequence[str]) -> str:
    """Edges of a parameter, its number of copies, and the mesh axes by which it is cut."""
    copies = f"{row.copies:,} x " if row.copies > 1 else ""
    return f"{copies}{' x '.join(f'{edge:,}' for edge in row.shape)}" + "".join(
        f" / {cut.partition(':')[0]}" for cut in cuts)


def _of_tokens(size: int, rows: Sequence[TensorRow], report: Report) -> str:
    training, mesh = report.scenario.get("training", {}), report.scenario.get("mesh", {})
    tokens = training.get("seq_len", 0) * training.get("micro_batch_size", 1) // max(1, mesh.get("cp", 1))
    if not tokens or size % tokens:
        return ""
    widths = sorted(_widths(rows, mesh.get("tp", 1)), reverse=True)
    fitting = ((width, each) for each in _BYTES for width in widths if tokens * width * each == size)
    width, each = next(fitting, (0, 0))
    return f"{tokens:,} tokens x {width:,} x {each} B" if width else f"{tokens:,} tokens x {size // tokens:,} B"


def _widths(rows: Sequence[TensorRow], tp: int) -> set[int]:
    """Edges of a layer's matrices, and those cut by tensor parallelism."""
    edges = {edge for row in rows if len(row.shape) > 1 for edge in row.shape}
    return edges | {math.ceil(edge / tp) for edge in edges}


def _of_asked(message: OutOfMemory, asked: Sequence[Asked], detail: ClassDetail | None) -> Iterator[str]:
    lives = detail.lifetimes if detail else None
    if message.asked_bytes is None or asked:
        return
    if message.asked_bytes <= _SMALL:
        yield f"a block of {format_bytes(message.asked_bytes)} is shared by small tensors: its size tells none of them"
    elif lives is not None and lives.merged:
        yield f"the step has too many allocations ({lives.merged:,}) to look for one of the size that was asked for"
    elif lives is not None:
        yield (f"no simulated tensor has the size that was asked for ({message.asked}): the run's shapes are "
               "others, or it allocates what is not simulated")
