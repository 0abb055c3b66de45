"""Gates: findings in results, with their exit codes, as text for users, GitHub and JUnit readers.

    problem     wrong input, or the framework refuses the file's own layout   exit code 2
    refused     the framework refuses what a sweep made: an answer            exit code 0
    adapters    LoRA targets without a match, adapters without a gradient     exit code 0
    idle        blocks that have no effect on a training step                 exit code 0
    no step     only the placement is served, not a step                      exit code 0
    crash       a bug of ours                                                 exit code 3
    oom         more than the device has                                      exit code 1
    unsure      measured errors reach across the device's limit               exit code 0 or 1, as `unsure` says
    host        a phase of the job needs more than the host's memory          exit code 1
    phase       evaluation, a merge or an export needs more than the device   exit code 1
    fill        more of the device than `--max-fill` allows                   exit code 1
    regression  worse than `--baseline` by more than `TOLERANCE`              exit code 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from simcore.batch.run import Outcome
from simcore.batch.stored import read_results
from simcore.errors import InputError, Problem
from simcore.results.report import BESIDE_STEPS, NO_STEP, Peak, Report
from simcore.results.verdict import SEVERITY
from simcore.units import format_bytes, format_seconds, parse_quantity

__all__ = ["IN_TABLES", "TOLERANCE", "Decided", "Finding", "Gate", "annotation", "gates", "github", "junit", "merged",
           "unmatched"]

TOLERANCE = 0.01
IN_TABLES = frozenset({"oom", "unsure", "host", "phase"})
"""Kinds of findings that the tables of a terminal tell too: verdicts, and phases that do not fit."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or notice that a gate (a check of one result) found in a scenario.

    `name`: the scenario; `where`: its place, `file:line`; `kind`: problem, refused, adapters, idle, no step,
    crash, oom, unsure, host, phase, fill or regression; `code`: exit code that it asks for, 0 for a notice.
    """

    name: str
    where: str
    kind: str
    message: str
    code: int

    def __str__(self) -> str:
        """Text with the place; the name is added unless the place identifies the problem."""
        name = f"{self.name}: " if self.where and self.kind != "problem" else ""
        return f"{self.where or self.name}: {name}{self.message}"


def merged(findings: Iterable[Finding]) -> Iterator[str]:
    """Texts of findings for people, in order; those of several scenarios that say the same are one."""
    alike: dict[tuple[str, str, int], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.kind, finding.message, finding.code), []).append(finding)
    for group in alike.values():
        first, names = group[0], {one.name for one in group}
        if len(names) == 1:
            yield from map(str, group)
        else:
            yield f"{first.where or first.name}: {len(names):,} scenarios, the first {first.name}: {first.message}"


Gate = Callable[[Outcome], Iterable[Finding]]
Decided = Literal["fits", "oom"]


def gates(max_fill: str | None = None, baseline: Path | None = None, *, unsure: Decided = "fits") -> list[Gate]:
    """Checks to run on each outcome: functions that take one `Outcome` and give its findings.

    Always: problems, LoRA without effect, blocks without effect, steps that are not simulated, device and host memory;
    an unsure verdict counts as `unsure` says. With `max_fill`, a share of the device's capacity (`92%` or `0.92`): a
    peak above it that still fits. With `baseline`, the path of earlier results (`read_results`): a worse status or
    verdict than the scenario of that name has there, or a peak or step time more than 1% higher. InputError if an
    argument is wrong.
    """
    chosen: list[Gate] = [_problems, _adapters, _idle, _no_step, _oom, partial(_unsure, counts_as=unsure), _hosts]
    if max_fill is not None:
        chosen.append(partial(_over_fill, max_fill=_share(max_fill)))
    if baseline is not None:
        chosen.append(partial(_regressions, before={report.name: report for report in read_results(baseline)}))
    return chosen


def unmatched(names: Sequence[str], baseline: Path) -> str:
    """Message that counts scenarios missing in the file `baseline`, and those only there; "" if none.

    `names`: of the scenarios of this run. InputError if the file has none of them: a comparison would always pass.
    """
    before = {report.name for report in read_results(baseline)}
    new, gone = [n for n in names if n not in before], [n for n in sorted(before) if n not in names]
    if names and len(new) == len(names):
        message = f"has none of these scenarios, such as {names[0]!r}: there is nothing to compare"
        raise InputError(Problem(str(baseline), message))
    return "; ".join(f"{len(names_found)} {what}, such as {names_found[0]!r}" for names_found, what in
                     ((new, "not in it"), (gone, "of it not run")) if names_found)


def _share(text: str) -> float:
    try:
        share = parse_quantity(text, "%") if "%" in text else float(text)
    except ValueError:
        raise InputError(Problem("--max-fill", f"expected a share such as 92% or 0.92, got {text!r}")) from None
    if not 0 < share <= 1:
        raise InputError(Problem("--max-fill", f"is a share of the capacity, above 0% and up to 100%, got {text!r}"))
    return share


def _problems(outcome: Outcome) -> Iterator[Finding]:
    """Problems of a scenario without a result; a layout of a sweep that the framework refuses is an answer."""
    kind = {0: "refused", 3: "crash"}.get(outcome.code, "problem")
    for row in outcome.report.problems:
        rule = f" [{row.rule}]" if row.rule else ""
        message = f"{row.message}{rule}" if outcome.code else f"illegal: {row.message}{rule}"
        yield Finding(outcome.report.name, row.where or outcome.where, kind, message, outcome.code)


def _adapters(outcome: Outcome) -> Iterator[Finding]:
    """Unexpected effects of LoRA: unmatched targets, adapters without a gradient."""
    adapters = outcome.report.adapters
    messages = []
    if adapters and adapters.unmatched_targets:
        messages.append(f"no module is matched by target {', '.join(adapters.unmatched_targets)}")
    if adapters and adapters.without_gradient:
        modules = ", ".join(f"{name} in {count} layers" for name, count in adapters.without_gradient.items())
        messages.append(f"adapters that a fused kernel bypasses get no gradient: {modules}")
    yield from (Finding(outcome.report.name, outcome.where, "adapters", message, 0) for message in messages)


def _idle(outcome: Outcome) -> Iterator[Finding]:
    """Blocks without effect: a training step generates no tokens, so it has no KV cache."""
    scenario = outcome.report.scenario
    if outcome.report.status != "ok" or scenario.get("workload", "train") != "train":
        return
    blocks = {name: scenario.get(name) for name in ("rl", "teacher", "generation")}
    for name in [name for name, block in blocks.items() if block is not None]:
        kv = (blocks["generation"] or {}).get("kv_dtype", "auto") if name == "generation" else "auto"
        cache = f"; kv_dtype {kv} neither: there is no KV cache in it" if kv != "auto" else ""
        yield Finding(outcome.report.name, outcome.where, "idle", f"{name}: changes nothing in a training step{cache}",
                      0)


def _no_step(outcome: Outcome) -> Iterator[Finding]:
    """Reason why a step of what was placed is not simulated."""
    for row in outcome.report.assumptions:
        if row.what == NO_STEP:
            yield Finding(outcome.report.name, outcome.where, "no step", f"a step is not simulated: {row.value}", 0)


def _oom(outcome: Outcome) -> Iterator[Finding]:
    peak, serving = _peak(outcome.report), outcome.report.serving
    if serving and serving.refusal:
        yield _finding(outcome, "oom", f"the engine does not start: {serving.refusal}")
    elif outcome.report.verdict == "oom" and peak:
        most = sorted(peak.by_category.items(), key=lambda item: -item[1])[:3]
        there = ", ".join(f"{name} {format_bytes(size)}" for name, size in most)
        yield _finding(outcome, "oom", f"does not fit: {_fill(outcome.report)}; most of it: {there}")


def _unsure(outcome: Outcome, counts_as: Decided) -> Iterator[Finding]:
    report = outcome.report
    if report.verdict == "unsure" and report.band_bytes:
        low, high = map(format_bytes, report.band_bytes)
        message = f"unsure: {_fill(report)}; measured runs of such layouts: {low} to {high}"
        yield Finding(report.name, outcome.where, "unsure", message, int(counts_as == "oom"))


def _hosts(outcome: Outcome) -> Iterator[Finding]:
    """Phases that do not fit on a host, and phases beside the steps that do not fit on the device."""
    host = outcome.report.host
    if host is None:
        return
    room = format_bytes(host.capacity_bytes)
    for phase in host.phases:
        if phase.host_verdict == "oom":
            message = f"{phase.phase}: does not fit on the host: {format_bytes(phase.host_bytes)} of {room}"
            yield _finding(outcome, "host", message)
        if phase.device_verdict == "oom" and phase.phase in BESIDE_STEPS:
            capacity = format_bytes(outcome.report.capacity_bytes or 0)
            message = f"{phase.phase}: does not fit: {format_bytes(phase.device_bytes)} of {capacity}"
            yield _finding(outcome, "phase", message)


def _over_fill(outcome: Outcome, max_fill: float) -> Iterator[Finding]:
    highest, capacity = outcome.report.highest_bytes, outcome.report.capacity_bytes
    if outcome.report.verdict in ("fits", "unsure") and highest and capacity and highest > max_fill * capacity:
        yield _finding(outcome, "fill", f"{_fill(outcome.report)} (limit {100 * max_fill:.6g}%)")


def _regressions(outcome: Outcome, before: Mapping[str, Report]) -> Iterator[Finding]:
    """Regressions against the result of the same name in the baseline; none for a new name."""
    new, old = outcome.report, before.get(outcome.report.name)
    if old is not None:
        for message in (*_lost(old, new), *_higher_peak(old, new), *_longer_step(old, new)):
            yield _finding(outcome, "regression", f"{message} since the baseline")


def _finding(outcome: Outcome, kind: str, message: str) -> Finding:
    return Finding(outcome.report.name, outcome.where, kind, message, 1)


def _lost(old: Report, new: Report) -> Iterator[str]:
    if old.status == "ok" and new.status != "ok":
        yield f"{new.status}, was ok,"
    elif old.verdict and new.verdict and SEVERITY[new.verdict] > SEVERITY[old.verdict]:
        yield "no longer fits" if new.verdict == "oom" else "no longer surely fits"


def _higher_peak(old: Report, new: Report) -> Iterator[str]:
    before, after = _peak(old), _peak(new)
    if before and after and after.device_bytes > before.device_bytes * (1 + TOLERANCE):
        grown = {name: size - before.by_category.get(name, 0) for name, size in after.by_category.items()}
        most = max(grown, key=lambda name: grown[name], default="")
        cause = f" ({most} {format_bytes(grown[most])} more)" if most and grown[most] > 0 else ""
        more = format_bytes(after.device_bytes - before.device_bytes)
        yield f"peak {format_bytes(after.device_bytes)}, +{more}{cause}"


def _longer_step(old: Report, new: Report) -> Iterator[str]:
    if old.time and new.time and new.time.step_s > old.time.step_s * (1 + TOLERANCE):
        yield f"step {format_seconds(new.time.step_s)}, +{new.time.step_s / old.time.step_s - 1:.1%}"


def _peak(report: Report) -> Peak | None:
    return report.peak_rank.peak if report.peak_rank else None


def _fill(report: Report) -> str:
    peak, capacity = _peak(report), report.capacity_bytes
    if peak is None or not capacity:
        return "no peak known"
    share = f"{peak.device_bytes / capacity:.0%} of {format_bytes(capacity)}"
    drawn = f"; {format_bytes(report.highest_bytes or 0)} in the highest draw" if report.drawn else ""
    return f"peak {format_bytes(peak.device_bytes)} = {share}, in {peak.phase} at {peak.layer or peak.event}{drawn}"


def github(findings: Iterable[Finding]) -> str:
    """GitHub workflow commands, one line per finding, shown at the line of the scenario's file.

    Level `error` for a finding with an exit code, `notice` for code 0.
    """
    return "".join(annotation("error" if f.code else "notice", f.where, f.name, f.message) for f in findings)


def annotation(level: str, where: str, title: str, message: str) -> str:
    """One GitHub workflow command, a line: `level` is error, warning or notice; `where`: `file:line`, a file, or ""."""
    return f"::{level} {_place(where)}title={_property(title)}::{_escaped(message)}\n"


def _place(where: str) -> str:
    file, _, line = where.rpartition(":")
    if file and line.isdigit():
        return f"file={_property(file)},line={line},"
    return f"file={_property(where)}," if where else ""


def _property(text: str) -> str:
    return _escaped(text, "%:,")


def _escaped(text: str, special: str = "%") -> str:
    """Text with percent signs and line ends escaped, as GitHub requires in messages.

    Colons and commas in properties.
    """
    return "".join(f"%{ord(c):02X}" if c in special + "\r\n" else c for c in text)


def junit(names: Sequence[str], findings: Iterable[Finding]) -> str:
    """JUnit XML: one test case per scenario of `names`, in that order, with its findings.

    A finding with exit code 1 is a failure, with 2 or 3 an error; a refused layout of a sweep is skipped; notices are
    output of the test. The suite's numbers of failures and errors count findings.
    """
    findings_by_name: dict[str, list[Finding]] = {name: [] for name in names}
    for finding in findings:
        findings_by_name[finding.name].append(finding)
    flat = [f for of_one in findings_by_name.values() for f in of_one]
    suite = ElementTree.Element(
        "testsuite",
        name="rankscope",
        tests=str(len(names)),
        failures=str(sum(f.code == 1 for f in flat)),
        errors=str(sum(f.code > 1 for f in flat)),
        skipped=str(sum(f.kind == "refused" for f in flat)),
    )
    for name, of_one in findings_by_name.items():
        case = ElementTree.SubElement(suite, "testcase", name=_xml(name), classname="rankscope")
        for f in of_one:
            _add(case, f)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _add(case: ElementTree.Element, finding: Finding) -> None:
    """Adds a failure, an error, a reason to skip, or a line of output."""
    by_code = "failure" if finding.code == 1 else "error"
    tag = {"refused": "skipped", "adapters": "system-out", "idle": "system-out"}.get(finding.kind, by_code)
    if finding.kind == "unsure" and not finding.code:
        tag = "system-out"
    attributes = {} if tag == "system-out" else {"type": finding.kind, "message": _xml(finding.message)}
    ElementTree.SubElement(case, tag, attributes).text = _xml(str(finding))


def _xml(text: str) -> str:
    """Text without control characters, which XML cannot represent."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
