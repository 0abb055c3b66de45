"""Why a number is what it is: from the number to what it is made of, by which formula, after which rule.

Comes in: a report with `detail`. Goes out: a tree of `Step`s. Every sum is of numbers of the report, so what a step is
made of adds up to it; what is too small to name is one step with the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict

from simcore.docgen.glossary import CATEGORIES, COMPONENTS
from simcore.errors import InputError, Problem
from simcore.frameworks.registry import framework_file
from simcore.results.detail import ClassDetail, Holder, TensorRow
from simcore.results.phases import ACTIVITIES, PHASE_PARTS, PHASES, PhaseReport
from simcore.results.report import RankReport, Report
from simcore.results.time import StepTime
from simcore.timing.breakdown import PARTS
from simcore.units import format_bytes, format_seconds

__all__ = ["Step", "check_rank", "class_of", "explain_peak", "explain_step", "explain_trainable"]

_MOST: Final = 6
"""Largest number of parts of a step that are named."""
_ROUNDED_S: Final = 1e-6
"""Seconds by which sums of rounded durations may differ."""


class Step(BaseModel):
    """One number and its explanation, with the numbers that it is the sum of.

    `words`: name of the number; `amount`: its value as text; `how`: formula; `source`: file or rule of the formula;
    `inside`: its parts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    words: str
    amount: str
    how: str = ""
    source: str = ""
    inside: tuple[Step, ...] = ()


def class_of(report: Report, rank: int | None) -> tuple[RankReport, ClassDetail]:
    """Class of ranks that has `rank`, with its detail; the class with the highest peak if `rank` is None.

    InputError for a rank that does not exist, or for a report without `detail`.
    """
    if report.detail is None or not report.ranks:
        told = "; ".join(problem.message for problem in report.problems) or "holds no simulation to explain"
        raise InputError(Problem(report.name, told))
    pairs = list(zip(report.ranks, report.detail.classes, strict=True))
    if rank is None:
        return max(pairs, key=lambda pair: pair[0].peak.device_bytes if pair[0].peak else 0)
    check_rank(report, rank)
    return next(pair for pair in pairs if pair[0].has_rank(rank))


def check_rank(report: Report, rank: int) -> None:
    """Raises InputError for a rank that the job does not have."""
    if not any(one.has_rank(rank) for one in report.ranks):
        raise InputError(Problem("--rank", f"no rank {rank}: there are {sum(r.num_ranks for r in report.ranks)}"))


# ---- memory ---------------------------------------------------------------------------------------------------------
def explain_peak(report: Report, rank: RankReport, detail: ClassDetail) -> Step:
    """Explanation of the device memory of a class of ranks at its highest moment, by category and tensor.

    InputError if the report has no peak.
    """
    peak = rank.peak
    if peak is None:
        raise InputError(Problem(report.name, "has no peak to explain"))
    blocks = peak.device_bytes - peak.allocated_bytes - sum(peak.outside.values())
    beside = [_beside(report, name, size) for name, size in peak.outside.items() if size]
    if blocks:
        held = _value(report, "reserved_bytes")
        how = f"{blocks / peak.allocated_bytes:.1%} of what is allocated; torch holds {held}"
        beside.append(Step(words="blocks that do not fit together", amount=format_bytes(blocks), how=how,
                           source=_source(report, "reserved_bytes")))
    told = "the highest running sum of what the program allocates and frees, in issue order"
    whole = Step(words="allocated", amount=format_bytes(peak.allocated_bytes), how=told,
                 source="simcore/memory/ledger.py",
                 inside=tuple(_category(report, detail, *each) for each in peak.by_category.items()))
    where = f"{peak.phase}, microbatch {peak.microbatch}" + (f", at {peak.layer}" if peak.layer else "")
    ends = f"of {format_bytes(report.capacity_bytes)}" if report.capacity_bytes else ""
    return Step(words=f"ranks {', '.join(rank.ranks)} at their highest: {where} ({peak.event})",
                amount=format_bytes(peak.device_bytes), how=ends, inside=(whole, *beside))


def _category(report: Report, detail: ClassDetail, name: str, num_bytes: int) -> Step:
    mine = [one for one in detail.holders if one.category == name]
    inside = _named([_holder(report, detail, one) for one in mine], [one.bytes for one in mine], format_bytes)
    return Step(words=name, amount=format_bytes(num_bytes), how=CATEGORIES.get(name, ""), inside=inside)


def _named(steps: Sequence[Step], amounts: Sequence[int], show: Callable[[int], str]) -> tuple[Step, ...]:
    """The first, and the rest as one."""
    rest = steps[_MOST:]
    if not rest:
        return tuple(steps)
    left = Step(words=f"{len(rest):,} more", amount=show(sum(amounts[_MOST:])))
    return (*steps[:_MOST], left)


def _holder(report: Report, detail: ClassDetail, one: Holder) -> Step:
    """An owner: of a parameter or what belongs to it, its elements; of anything else bytes of a layer."""
    many = f"{one.num_layers} layers of kind {one.layers}" if one.num_layers > 1 else one.layers
    row = _tensor_of(detail, one)
    if row is None:
        each = f"{one.num_layers} \u00d7 {format_bytes(one.bytes / one.num_layers)}" if one.num_layers > 1 else ""
        return Step(words=f"{one.owner}, {many}", amount=format_bytes(one.bytes), how=each)
    size = one.bytes // (row.num_elements * row.num_layers)
    layers = f"{row.num_layers} layers \u00d7 " if row.num_layers > 1 else ""
    each = f"\u00d7 {size} B" if one.owner == row.name else f"elements, and {size} B for each that rests here"
    return Step(words=f"{one.owner}, {many}", amount=format_bytes(one.bytes), how=f"{layers}{_elements(row)} {each}",
                source=_rule(report, row))


def _tensor_of(detail: ClassDetail, one: Holder) -> TensorRow | None:
    """The tensor that an owner is, or is a state or gradient of, where its bytes are so many a whole element."""
    for row in detail.tensors:
        named = row.layers == one.layers and (one.owner == row.name or one.owner.startswith(f"{row.name}."))
        count = row.num_elements * row.num_layers
        if named and count and row.num_layers == max(1, one.num_layers) and one.bytes % count == 0:
            return row
    return None


def _elements(row: TensorRow) -> str:
    """`128 copies of 1,856 x 2,688 / ep 4`, and what that comes to."""
    copies = f"{row.copies:,} copies of " if row.copies > 1 else ""
    whole = " \u00d7 ".join(f"{n:,}" for n in row.shape) or "1"
    cuts = "".join(f" / {cut.partition(':')[0]}" for cut in row.cut)
    if not cuts and row.copies == 1 and len(row.shape) < 2:
        return f"{row.num_elements:,}"
    # A rank past the last row of an uneven cut holds no element.
    is_even = row.num_elements > 0 and math.prod(row.shape) * row.copies % row.num_elements == 0
    return f"({copies}{whole}{cuts} {'=' if is_even else 'in rows, here'} {row.num_elements:,})"


def _rule(report: Report, row: TensorRow) -> str:
    return f"{framework_file(report.scenario['framework'])}, life {row.life!r}"


def _beside(report: Report, name: str, num_bytes: int) -> Step:
    found = [a for a in report.assumptions if a.what == name]
    kind = f"{found[0].kind}, outside the allocator" if found else "outside the allocator"
    return Step(words=name, amount=format_bytes(num_bytes), how=kind, source=_source(report, name))


def _value(report: Report, what: str) -> str:
    return next((a.value for a in report.assumptions if a.what == what), "")


def _source(report: Report, what: str) -> str:
    return next((a.source for a in report.assumptions if a.what == what), "")


# ---- parameters -----------------------------------------------------------------------------------------------------
def explain_trainable(report: Report, rank: RankReport, detail: ClassDetail) -> Step:
    """Explanation of the number of trained parameters on each rank of a class, by component and tensor."""
    trained = [row for row in detail.tensors if row.trainable]
    names = dict.fromkeys(row.component for row in trained)
    inside = tuple(_component(report, name, [row for row in trained if row.component == name]) for name in names)
    method = report.scenario.get("training", {}).get("method", "")
    every = sum(c.num_params for c in rank.at_rest.values())
    return Step(words=f"trainable parameters on each of ranks {', '.join(rank.ranks)}, method {method}",
                amount=f"{sum(map(_numel, trained)):,}", how=f"of {every:,} that rest there", inside=inside,
                source=_matched(report))


def _matched(report: Report) -> str:
    found = report.adapters
    return "" if found is None else f"adapters on {', '.join(f'{path} ({n})' for path, n in found.adapted.items())}"


def _numel(row: TensorRow) -> int:
    return row.num_elements * row.num_layers


def _component(report: Report, name: str, rows: Sequence[TensorRow]) -> Step:
    order = sorted(rows, key=lambda row: -_numel(row))
    steps = [Step(words=f"{row.name}, {row.num_layers} \u00d7 {row.layers}", amount=f"{_numel(row):,}",
                  how=f"{row.num_layers} \u00d7 {_elements(row)}", source=_rule(report, row)) for row in order]
    return Step(words=name, amount=f"{sum(map(_numel, rows)):,}", how=COMPONENTS.get(name, ""),
                inside=_named(steps, [_numel(row) for row in order], lambda n: f"{n:,}"))


# ---- time -----------------------------------------------------------------------------------------------------------
def explain_step(report: Report, rank: int | None = None) -> Step:
    """Explanation of the time of a step: its parts on the ranks that end last, and what they consist of.

    A step with phases: its phases in the order of time on the rank `rank`, or on the fullest that trains. InputError if
    the report has no time.
    """
    time = report.time
    if time is None:
        raise InputError(Problem(report.name, "has no time to explain: it was not simulated"))
    if report.phases:
        return _in_phases(report, time, rank)
    inside = tuple(_parts(report, time))
    bound = f"bound by {time.roofline.bound.replace('_', ' ')}" if time.roofline else ""
    return Step(words=f"a step, on ranks {', '.join(time.ranks)}, which end last", amount=format_seconds(time.step_s),
                how=bound, source="simcore/timing/breakdown.py", inside=inside)


def _parts(report: Report, time: StepTime) -> Iterator[Step]:
    """Parts of the training in a step."""
    for part, seconds in time.parts.items():
        if seconds and part not in PHASE_PARTS:
            yield Step(words=part, amount=format_seconds(seconds), how=f"{seconds / time.step_s:.1%}: {PARTS[part]}",
                       inside=tuple(_of_part(report, part)))


def _in_phases(report: Report, time: StepTime, rank: int | None) -> Step:
    phases = next((one.phases for one in report.ranks if rank is not None and one.has_rank(rank)), report.phases)
    where = "the fullest rank" if rank is None else f"rank {rank}"
    inside = [Step(words=f"{phase.phase}, from {format_seconds(phase.start_s)}", amount=format_seconds(phase.seconds),
                   how=f"{phase.seconds / time.step_s:.1%}: {PHASES[phase.phase]}{_sent(phase)}",
                   inside=tuple(_activities(report, time, phase))) for phase in phases]
    waits = time.step_s - sum(phase.seconds for phase in phases)
    if waits > _ROUNDED_S:
        inside.append(Step(words="waits for slower ranks", amount=format_seconds(waits),
                           how=f"{waits / time.step_s:.1%}: other ranks copy more"))
    return Step(words=f"a step, phase after phase on {where}", amount=format_seconds(time.step_s),
                source="simcore/rl/step/phases.py", inside=tuple(inside))


def _activities(report: Report, time: StepTime, phase: PhaseReport) -> Iterator[Step]:
    for name, seconds in phase.parts.items():
        trains = phase.phase == "training" and name == "training steps"
        yield Step(words=name, amount=format_seconds(seconds), how=ACTIVITIES[name],
                   inside=tuple(_parts(report, time)) if trains else ())


def _sent(phase: PhaseReport) -> str:
    sizes = [f"{format_bytes(size)} over {name}" for name, size in phase.sent_bytes.items()]
    return f"; the rank sends {', '.join(sizes)}" if sizes else ""


def _of_part(report: Report, part: str) -> Iterable[Step]:
    """Kernels of a pass, and collectives that are waited for, the longest first."""
    time = report.time
    assert time is not None
    if part == "communication":
        sent = sorted(time.communication, key=lambda one: -one.exposed_s)
        return [Step(words=f"{one.collective} {one.axis} over {one.link}", amount=format_seconds(one.exposed_s),
                     how=f"exposed, of {format_seconds(one.alone_s)} in {one.calls:,} calls")
                for one in sent[:_MOST] if one.exposed_s]
    if part in ("forward", "backward", "optimizer"):
        return list(_kernels(report, part))
    return []


def _kernels(report: Report, part: str) -> Iterator[Step]:
    assert report.time is not None
    found = [(float(getattr(one, f"{part}_s")), one) for one in report.time.kernels]
    for seconds, one in sorted(found, key=lambda each: -each[0])[:_MOST]:
        if seconds:
            yield Step(words=f"{one.kernel} {one.dtype}", amount=format_seconds(seconds))
