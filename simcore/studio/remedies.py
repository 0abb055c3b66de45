"""Questions that take many simulations: changes that make a job fit, limits of a quantity, jobs side by side, runs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Final, cast, get_args

from simcore.batch.advice import advise, may_be_tried
from simcore.batch.measured import beside_scenario
from simcore.batch.solve import keys_of, limit_of
from simcore.errors import InputError, Problem
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.limit import QUANTITIES, Quantity
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.studio.faster import faster, further, on_fewer, on_more, on_whole_hosts, plainer
from simcore.studio.others import sharding
from simcore.studio.question import Question, price_of
from simcore.studio.views import priced
from simcore.units import format_bytes, format_seconds
from simcore.validation.side_by_side import Beside, SideBySide
from viz.markup import element
from viz.pages import studio

__all__ = ["advice", "beside", "compared", "limit", "quicker"]

_TOO_LARGE: Final = "This job is too large to try every change on it: more GPUs and plainer layouts were tried."
_MOST: Final = 5
"""Jobs side by side: four pins and the job in view."""
_MOST_MARKS: Final = 3
_STEP: Final = 64
"""Tokens between lengths of samples that a row is told to have."""
_BOUNDS: Final = ("allocated, and asked for", "needed, at least")
_TOTALS: Final = ("peak", "needed", "allocated")
"""Words in the names of quantities that say how full a device was."""


def advice(question: Question) -> dict[str, Any]:
    """Part of the page with changes that make the job fit; each was simulated. Plainer layouts come last.

    Where nothing else does, other frameworks that shard what this one copies.
    """
    scenario = question.scenario()
    found = [on_whole_hosts(scenario, one) for one in advise(scenario)]
    known = [one.changes for one in found]
    others = further(scenario, found)
    larger = on_more(scenario, (*found, *others))
    further_ones = (*on_fewer(scenario, (*found, *larger)), *others, *larger, *plainer(scenario),
                    *sharding(scenario, found))
    more = [one for one in further_ones if one.changes not in known]
    told = studio.advice_part((*found, *more))
    few = "" if may_be_tried(scenario) else str(element("p", _TOO_LARGE, class_="note"))
    return {"parts": {"advice": f"{told or ''}{few}"}}


def quicker(question: Question) -> dict[str, Any]:
    """Part of the page with changes that make the step of a job that fits shorter; each was simulated."""
    scenario = question.scenario()
    base = simulate(scenario)
    found = faster(scenario, base)
    return {"parts": {"advice": str(studio.advice_part(found, base.time.step_s if base.time else None) or "")}}


def limit(question: Question) -> dict[str, Any]:
    """Limit of one quantity, such as the longest sequence, and the keys that set it.

    `rows`: the longest sequence of a job that packs several samples into a row, in samples of one length.
    """
    asked = question.rest.get("quantity")
    if asked not in get_args(Quantity) or asked in ("machine", "cost"):
        raise InputError(Problem("quantity", "expected gpus, micro_batch, global_batch or sequence"))
    quantity = cast(Quantity, asked)
    scenario = question.scenario()
    found = limit_of(scenario, quantity, checked=False)
    beyond = keys_of(scenario, quantity, found.beyond) if isinstance(found.beyond, int) else {}
    batch = beyond.get("training.global_batch_size", scenario.training.global_batch_size)
    rows = list(_rows(scenario, found.value)) if quantity == "sequence" and isinstance(found.value, int) else []
    return {"words": QUANTITIES[quantity], **found.model_dump(), "rows": rows,
            "beyond_batch": batch if batch != scenario.training.global_batch_size else None,
            "peak": format_bytes(found.peak_bytes) if found.peak_bytes else "",
            "beyond_peak": format_bytes(found.beyond_bytes) if found.beyond_bytes else ""}


def _rows(scenario: Scenario, longest: int) -> Iterator[dict[str, Any]]:
    """Rows of whole samples no longer than `longest` that surely fit: as many as now, then as long as now."""
    training = scenario.training
    one = training.packed_length
    if one is None or one >= training.seq_len or training.seq_len % one:
        return
    number = training.seq_len // one
    for samples, length in dict.fromkeys(((number, longest // number // _STEP * _STEP), (longest // one, one))):
        keys = {"training.seq_len": samples * length, "training.packed_length": length}
        try:
            report = simulate(changed(scenario, keys), timed=False) if samples and length else None
        except InputError:
            continue
        if report and report.job_verdict == "fits" and report.highest_bytes is not None:
            yield {"samples": samples, "length": length, "keys": keys, "peak": format_bytes(report.highest_bytes)}


def compared(question: Question) -> dict[str, Any]:
    """Part of the page with several jobs side by side: keys that differ, numbers, charts on one scale."""
    jobs = question.rest.get("jobs")
    if not isinstance(jobs, list) or not 2 <= len(jobs) <= _MOST or not all(isinstance(job, dict) for job in jobs):
        raise InputError(Problem("jobs", f"expected 2 to {_MOST} jobs"))
    reports = [priced(_report(Question(f"{letter}.yaml", None, job, question.files), letter), price_of(question))
               for letter, job in zip("ABCDE", jobs, strict=False)]
    return {"parts": {"versus": studio.versus_part(reports)}}


def _report(question: Question, letter: str) -> Report:
    report = simulate(question.scenario(), detail=True)
    if report.status != "ok":
        raise InputError([Problem(row.where, f"{letter}: {row.message}", row.rule) for row in report.problems])
    return report


def beside(question: Question) -> dict[str, Any]:
    """A dropped run beside the job: its quantities and those simulated, marks for the bars, a snapshot's curve."""
    try:
        content = base64.b64decode(str(question.rest.get("content", "")), validate=True)
    except (binascii.Error, ValueError):
        raise InputError(Problem("content", "expected a file as base64")) from None
    curve: list[int] = []
    found = beside_scenario(content, question.name, question.scenario, seen=lambda dump: curve.extend(dump.curve))
    marks = [{"words": row.what, "num_bytes": row.measured} for one in found for row in one.quantities
             if row.unit == "bytes" and row.measured and any(word in row.what for word in _TOTALS)]
    return {"parts": {"measured": "".join(map(_table, found))}, "marks": marks[:_MOST_MARKS], "curve": curve}


def _table(run: SideBySide) -> str:
    rows = [[row.what, _text(row.measured, row.unit), _text(row.simulated, row.unit), _difference(run, row), row.told]
            for row in run.quantities]
    asked = (f"asked for, of that size in the simulated step: {one.owner}, {one.category} {format_bytes(one.num_bytes)}"
             f"{f' ({one.shape})' if one.shape else ''}" for one in run.asked[:_MOST_MARKS])
    return studio.measured_part(f"{run.source} {run.measured}", rows, (*asked, *run.notes), run.advice,
                                run.differs)


def _difference(run: SideBySide, row: Beside) -> str:
    """Share by which a simulated quantity is off; what a run had reached when it failed is a lower bound."""
    is_bound = run.failure is not None and row.what in _BOUNDS and (row.error or 0) > 0
    return "it ended there" if is_bound else "" if row.error is None else f"{row.error:+.1%}"


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "\u2013"
    if unit in ("bytes", "seconds"):
        return format_bytes(value) if unit == "bytes" else format_seconds(value)
    return f"{value:.1%}" if unit == "share" else f"{value:,.1f}"
