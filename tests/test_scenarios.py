"""The examples in scenarios/: each folder is explained, and its stored answers are what comes out today.

`python tests/test_scenarios.py --write` makes all answers again, `--write nano-at-scale` those of one folder. Times
change when kernels and links are fitted anew. Folders about time (`TIMED`) store them to three digits, with the fullest
rank alone; today's must be equal: after a new fit, `--write` those folders and read what became of their tables.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import nano_ep4
import nano_explore
from checkout import ROOT
from published import in_gib_too
from shipped_reports import reports
from simcore.cli.sheets.comparison import sheet
from simcore.results.compare import compare
from simcore.results.phases import PhaseReport
from simcore.results.report import AtRest, Peak, RankReport, Report, TrafficRow
from simcore.results.time import StepTime
from simcore.units import GIB, in_gib

SCENARIOS = ROOT / "scenarios"
FOLDERS = sorted(path for path in SCENARIOS.iterdir() if path.is_dir())
FILES = sorted(SCENARIOS.glob("*/*.yaml"))
TIMED = ("expert-loop", "nano-at-scale", "nano-expert-parallel", "nano-megatron-vs-fsdp2", "tensor-parallel")
SENT = ("nano-megatron-vs-fsdp2",)
"""Folders whose tables say what is sent, by collective and axis."""
BESIDE = {"nano-megatron-vs-fsdp2": ("sft-16-megatron-recompute", "sft-16-automodel-recompute",
                                     "sft-16-fsdp2-ep8-recompute")}
"""Scenarios of which a folder keeps what `rankscope compare` prints, for a screen of 80 characters."""
MARKED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
GENERATED = (
    "<!-- Made by `python tests/test_scenarios.py --write`. -->\n\n"
    "On the rank with the highest peak. Peaks are of the device: what the allocator most likely "
    "reserves, the CUDA context, buffers of NCCL and of token dispatchers.\n\n"
)
QUOTED = (
    "Published sizes are in GiB, and in brackets as their source has them: GB, taken as 1e9 bytes.\n\n"
)
TIMES = (
    "\nTimes, by models of kernels and links as they are fitted today, to three digits. The step and its parts are of "
    "the rank that ends last: what it waits for collectives (exposed, by axis), by how much collectives slow kernels "
    "beside them, what it waits for other stages (bubble) and for the host. MFU is of the dense bf16 peak, with FLOPs "
    "as the named formula counts them: compare it under one formula, tokens/s under any. USD are of a million tokens. "
    "GiB are the most that leaves any rank in a step, by link.\n\n"
)
SENDS = (
    "\nWhat leaves the fullest rank in a step, in GiB, by collective; in brackets by mesh axis, over NVLink + over the "
    "network.\n\n"
)
PHASED = (
    "\nPhases of a step, in their order, on the fullest rank: the most that lies on its GPU and, of this rank, on the "
    "host.\n\n"
)
PHASE_HEADS = ["scenario", "phase", "device GiB", "highest when", "host GiB", "on the device", "on the host"]
TIME_HEADS = ["scenario", "GPUs", "step s", "tokens/s a GPU", "exposed s", "exposed by axis", "slowed s", "bubble s",
              "host s", "MFU", "counted by", "USD", "NVLink GiB", "network GiB", "verdict"]


def _id(path: Path) -> str:
    return path.relative_to(SCENARIOS).with_suffix("").as_posix()


# ---- what is kept of a result ----------------------------------------------------------------------------------------
def answer(file: Path) -> dict[str, Any]:
    return {report.name: _facts(report, timed=file.parent.name in TIMED) for report in reports(file)}


def _facts(report: Report, *, timed: bool) -> dict[str, Any]:
    if report.status != "ok":
        return {"status": report.status, "problems": [{"message": p.message, "rule": p.rule} for p in report.problems]}
    facts: dict[str, Any] = {"status": report.status, "verdict": report.verdict,
                             "capacity_bytes": report.capacity_bytes}
    if report.phases:
        facts |= {"phases": [_phase(phase) for phase in report.phases]}
    if report.serving:
        facts |= {"serving": report.serving.model_dump(include=_OF_ENGINES)}
    if not timed or report.time is None or report.peak_rank is None:
        return facts | {"ranks": [_rank(rank) for rank in report.ranks]}
    return facts | {"ranks": [_rank(report.peak_rank)], **_links(report), "time": _time(report.time)}


_OF_ENGINES = {"version", "requested_bytes", "weight_bytes", "adapter_buffer_bytes", "activation_bytes", "cache_bytes",
               "kv_bytes_per_token", "state_bytes", "block_size", "num_blocks", "cache_tokens", "longest"}


def _phase(phase: PhaseReport) -> dict[str, Any]:
    """Bytes alone: how long it takes is as models of kernels and links are fitted."""
    return phase.model_dump(include={"phase", "device_bytes", "host_bytes", "event", "by_owner", "host_by_owner"})


def _links(report: Report) -> dict[str, int]:
    """The most that leaves any rank in a step, by link."""
    return {"nvlink_bytes": max(sum(row.nvlink_bytes for row in rank.traffic) for rank in report.ranks),
            "network_bytes": max(sum(row.network_bytes for row in rank.traffic) for rank in report.ranks)}


def _time(time: StepTime) -> dict[str, Any]:
    rates = {"step_s": time.step_s, "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu, "mfu": time.mfu,
             "usd_per_million_tokens": _dollars(time)}
    parts = {"parts_s": _rounded(time.parts), "exposed_s": _rounded(exposed(time))}
    return {**_rounded(rates), "convention": time.convention, **parts}


def _dollars(time: StepTime) -> float:
    return time.cost.per_million_tokens or 0.0 if time.cost else 0.0


def exposed(time: StepTime) -> dict[str, float]:
    """Seconds by axis."""
    found: dict[str, float] = defaultdict(float)
    for one in time.communication:
        found[one.axis] += one.exposed_s
    return dict(sorted(found.items()))


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def _rank(rank: RankReport) -> dict[str, Any]:
    assert rank.peak is not None
    return {"ranks": list(rank.ranks), "stage": rank.stage,
            "at_rest": {name: _at_rest(part) for name, part in rank.at_rest.items()},
            "padding_bytes": rank.padding_bytes,
            **_peak(rank.peak),
            "traffic": [_traffic(row) for row in rank.traffic]}


def _at_rest(part: AtRest) -> dict[str, int]:
    return {"params_bytes": part.params_bytes, "grads_bytes": part.grads_bytes, "optimizer_bytes": part.optimizer_bytes}


def _peak(peak: Peak) -> dict[str, Any]:
    return {"peak": {"allocated_bytes": peak.allocated_bytes, "device_bytes": peak.device_bytes, "phase": peak.phase,
                     "event": peak.event, "layer": peak.layer, "microbatch": peak.microbatch},
            "by_category": peak.by_category}


def _traffic(row: TrafficRow) -> dict[str, Any]:
    return {"collective": row.collective, "axis": row.axis, "group_size": row.group_size, "phase": row.phase,
            "dtype": row.dtype, "calls": row.calls, "payload_bytes": row.payload_bytes}


# ---- tables ----------------------------------------------------------------------------------------------------------
def table(folder: Path) -> str:
    """All scenarios of a folder, beside what others published about them (`published.csv`) where there is any."""
    published = _published(folder)
    found = [report for file in sorted(folder.glob("*.yaml")) for report in reports(file)]
    heads = ["scenario", "GPUs", "weights GiB", "at rest GiB", "peak GiB", "peak in", "verdict"]
    if published:
        heads += ["published weights GiB", "published total GiB", "published verdict", "where"]
    times = TIMES + _lines(TIME_HEADS, [[r.name, _gpus(r), *_time_cells(r)] for r in found])
    phases = [[r.name, *_phase_cells(phase)] for r in found for phase in r.phases]
    return (GENERATED + QUOTED * bool(published) + _lines(heads, [_row(r, published) for r in found])
            + (SENDS + _sent(found) if folder.name in SENT else "")
            + (PHASED + _lines(PHASE_HEADS, phases) if phases else "") + (times if folder.name in TIMED else ""))


def _sent(found: list[Report]) -> str:
    """A column for each collective that any of them sends."""
    rows = [[(row.collective, row) for row in report.peak_rank.traffic] if report.peak_rank else [] for report in found]
    heads = sorted({collective for of_one in rows for collective, _ in of_one})
    lines = [[report.name, *(_by_axis([row for name, row in of_one if name == head]) for head in heads)]
             for report, of_one in zip(found, rows, strict=True)]
    return _lines(["scenario", *heads], lines)


def _by_axis(rows: list[TrafficRow]) -> str:
    if not rows:
        return ""
    links: dict[str, tuple[int, int]] = {}
    for row in rows:
        near, far = links.get(row.axis, (0, 0))
        links[row.axis] = near + row.nvlink_bytes, far + row.network_bytes
    each = ", ".join(f"{axis} {in_gib(near)} + {in_gib(far)}" for axis, (near, far) in sorted(links.items()))
    return f"{in_gib(sum(row.wire_bytes for row in rows))} ({each})"


def beside(folder: Path) -> str:
    """Tables that `rankscope compare` prints for the folder's scenarios."""
    found = [one for name in BESIDE[folder.name] for one in reports(folder / f"{name}.yaml")]
    return "".join(f"{line}\n" for line in map(str, sheet(compare(*found), 80)))


def _gathered(report: Report) -> str:
    assert report.peak_rank is not None
    sent = sum(row.wire_bytes for row in report.peak_rank.traffic if row.collective == "all_gather")
    return f"{in_gib(sent, 1)} GiB"


_FIGURES: dict[str, Callable[[Report], str]] = {
    "needed on the fullest GPU": lambda report: f"{in_gib(report.highest_bytes or 0, 1)} GiB",
    "all-gather, a rank and step": _gathered,
    "of all it sends, over the network": lambda report: f"{in_gib(_links(report)['network_bytes'], 1)} GiB",
    "step": lambda report: f"{report.time.step_s:.1f} s" if report.time else "",
    "million tokens": lambda report: f"{_dollars(report.time):.3f} USD" if report.time else "",
}


def side_by_side() -> nano_ep4.Rows:
    """Figures that decide between the frameworks of the folder `nano-megatron-vs-fsdp2`."""
    (folder, stems), = BESIDE.items()
    found = [one for stem in stems for one in reports(SCENARIOS / folder / f"{stem}.yaml")]
    return [["", "Megatron", "Automodel", "FSDP2"],
            *([heading, *map(figure, found)] for heading, figure in _FIGURES.items())]


MADE: dict[str, dict[str, Callable[[], nano_ep4.Rows]]] = {
    "nano-ep4": nano_ep4.TABLES, "nano-explore": nano_explore.TABLES,
    "nano-megatron-vs-fsdp2": {"side by side": side_by_side}}
"""Tables in the README of a folder, by the name in its mark."""


def _lines(heads: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ["---"] * len(heads), *rows))


def _phase_cells(phase: PhaseReport) -> list[str]:
    owners = (", ".join(f"{name} {in_gib(size)}" for name, size in by_owner.items())
              for by_owner in (phase.by_owner, phase.host_by_owner))
    return [phase.phase, in_gib(phase.device_bytes), phase.event, in_gib(phase.host_bytes), *owners]


def _time_cells(report: Report) -> list[str]:
    time = report.time
    if time is None:
        why = "; ".join(f"{problem.message} ({problem.rule})" for problem in report.problems)
        return [""] * (len(TIME_HEADS) - 3) + [f"{report.status}: {why}"]
    waits = ", ".join(f"{axis} {_three(seconds)}" for axis, seconds in exposed(time).items() if seconds)
    parts = [_three(time.parts[name]) for name in ("contention", "bubble", "host")]
    return [_three(time.step_s), _three(time.tokens_per_s_per_gpu), _three(time.exposed_communication_s), waits, *parts,
            f"{time.mfu:.1%}", time.convention, _three(_dollars(time)),
            *(in_gib(size) for size in _links(report).values()), str(report.verdict)]


def _three(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{Decimal(f'{value:#.3g}'):f}" if value else "0"


def _published(folder: Path) -> dict[str, dict[str, str]]:
    file = folder / "published.csv"
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as stream:
        return {row["scenario"]: row for row in csv.DictReader(stream)}


def _row(report: Report, published: dict[str, dict[str, str]]) -> list[str]:
    cells = [report.name, _gpus(report), *_memory(report)]
    if published:
        row = published.get(report.name, {})
        cells += [in_gib_too(row.get(key, "")) for key in ("weights_gb", "total_gb")]
        cells += [row.get(key, "") for key in ("verdict", "where")]
    return cells


def _gpus(report: Report) -> str:
    mesh = report.scenario["mesh"]
    return str(mesh["pp"] * mesh["dp_replicate"] * mesh["dp_shard"] * mesh["cp"] * mesh["tp"])


def _memory(report: Report) -> list[str]:
    rank = report.peak_rank
    if rank is None or rank.peak is None:
        return ["", "", "", "", report.status]
    weights = sum(part.params_bytes for part in rank.at_rest.values())
    sizes = map(in_gib, (weights, rank.at_rest_bytes(), rank.peak.device_bytes))
    return [*sizes, rank.peak.phase, str(report.verdict)]


# ---- files -----------------------------------------------------------------------------------------------------------
def _stored(file: Path) -> Path:
    return file.parent / "answers" / f"{file.stem}.json"


def _text(value: Any, indent: str = "") -> str:
    """JSON, with what holds no further lists or maps on one line."""
    inner = f"{indent} "
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        lines = [f"{inner}{json.dumps(key)}: {_text(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _text(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


def write(folders: list[Path]) -> None:
    for folder in folders:
        answers = folder / "answers"
        answers.mkdir(exist_ok=True)
        for old in answers.iterdir():
            if old != nano_explore.STORED:  # a search of minutes has a command of its own
                old.unlink()
        for file in sorted(folder.glob("*.yaml")):
            _stored(file).write_text(_text(answer(file)) + "\n", encoding="utf-8", newline="\n")
        (answers / "table.md").write_text(table(folder), encoding="utf-8", newline="\n")
        if folder.name in BESIDE:
            (answers / "compare.txt").write_text(beside(folder), encoding="utf-8", newline="\n")
        if folder.name in MADE:
            (folder / "README.md").write_text(with_tables(folder), encoding="utf-8", newline="\n")


def with_tables(folder: Path) -> str:
    """Text of the folder's README with its tables as they are today."""
    def made(found: re.Match[str]) -> str:
        heads, *rows = MADE[folder.name][found[2]]()
        return found[1] + _lines(heads, rows) + found[3]

    return MARKED.sub(made, (folder / "README.md").read_text(encoding="utf-8"))


# ---- tests -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("file", FILES, ids=_id)
def test_stored_answers_are_what_comes_out(file: Path) -> None:
    stored = json.loads(_stored(file).read_text(encoding="utf-8"))
    found = answer(file)
    assert list(found) == list(stored)
    for name, facts in found.items():
        assert facts == stored[name], f"{name}: if this is meant, python tests/test_scenarios.py --write"


@pytest.mark.parametrize("file", FILES, ids=_id)
def test_only_a_sweep_asks_for_what_is_refused(file: Path) -> None:
    """Scenarios that this version cannot model (status error) have no answer to store."""
    refused = [report for report in reports(file) if report.status != "ok"]
    assert [(r.name, r.problems) for r in refused if r.status == "error" or "[" not in r.name] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=_id)
def test_stored_tables_are_what_comes_out(folder: Path) -> None:
    assert (folder / "answers" / "table.md").read_text(encoding="utf-8") == table(folder)


@pytest.mark.parametrize("folder", MADE)
def test_tables_of_a_readme_are_what_comes_out(folder: str) -> None:
    text = (SCENARIOS / folder / "README.md").read_text(encoding="utf-8")
    assert [found[2] for found in MARKED.finditer(text)] == list(MADE[folder])
    assert text == with_tables(SCENARIOS / folder), f"if this is meant, python tests/test_scenarios.py --write {folder}"
    assert re.findall(r"\d[\d.,]* (?:GB|GiB|tokens/s)", MARKED.sub("", text)) == [], "not generated: becomes outdated"


@pytest.mark.parametrize("name", BESIDE)
def test_stored_comparisons_are_what_comes_out(name: str) -> None:
    stored = (SCENARIOS / name / "answers" / "compare.txt").read_text(encoding="utf-8")
    assert stored == beside(SCENARIOS / name)
    assert max(map(len, stored.splitlines())) <= 80


def test_what_gathers_and_reduces_in_every_microbatch_waits_for_half_of_it() -> None:
    folder = SCENARIOS / "nano-megatron-vs-fsdp2"
    shares = {}
    for stem in BESIDE[folder.name]:
        time = reports(folder / f"{stem}.yaml")[0].time
        assert time is not None
        rows = [row for row in time.communication if row.collective in ("all_gather", "reduce_scatter")]
        shares[stem] = sum(row.exposed_s for row in rows) / sum(row.alone_s for row in rows)
    megatron, *others = shares.values()
    assert megatron < 0.1
    assert min(others) > 0.45


@pytest.mark.parametrize("folder", FOLDERS, ids=_id)
def test_every_answer_has_its_scenario(folder: Path) -> None:
    compared = ["compare.txt"] * (folder.name in BESIDE)
    searched = [nano_explore.STORED.name] * (folder == nano_explore.FOLDER)
    expected = {"table.md", *compared, *searched, *(f"{file.stem}.json" for file in folder.glob("*.yaml"))}
    assert {path.name for path in (folder / "answers").iterdir()} == expected


@pytest.mark.parametrize("file", FILES, ids=_id)
def test_the_readme_says_who_ships_a_layout(file: Path) -> None:
    """A row of the table names the file first and its origin last."""
    lines = MARKED.sub("", (file.parent / "README.md").read_text(encoding="utf-8")).splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(f"| `{file.stem}` |")]
    assert len(rows) == 1
    assert len(rows[0]) > 2
    assert len(rows[0][-1]) > 10


def test_one_batch_of_everything_has_unique_names() -> None:
    names = [name for file in FILES for name in answer(file)]
    assert len(names) == len(set(names))


def test_published_figures_belong_to_scenarios() -> None:
    for folder in FOLDERS:
        names = {report.name for file in folder.glob("*.yaml") for report in reports(file)}
        assert set(_published(folder)) <= names


# ---- times -----------------------------------------------------------------------------------------------------------
def timed(pattern: str = "*/*.yaml") -> list[tuple[Report, StepTime]]:
    files = sorted(file for file in SCENARIOS.glob(pattern) if file.parent.name in TIMED)
    return [(report, report.time) for file in files for report in reports(file) if report.time is not None]


def test_parts_and_axes_add_up_and_money_is_time() -> None:
    for report, time in timed():
        assert sum(time.parts.values()) == pytest.approx(time.step_s)
        assert sum(exposed(time).values()) == pytest.approx(time.exposed_communication_s), report.name
        assert time.cost is not None
        assert time.cost.price_per_gpu_hour is not None
        paid = time.cost.price_per_gpu_hour * 1e6 / time.tokens_per_s_per_gpu / 3600
        assert time.cost.per_million_tokens == pytest.approx(paid)


def test_only_several_nodes_use_the_network() -> None:
    for report, _ in timed():
        assert (_links(report)["network_bytes"] > 0) == (int(_gpus(report)) > 8), report.name


def test_more_nodes_with_as_much_work_each_are_never_faster() -> None:
    """Checks each way of training that is tried on several numbers of GPUs."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for report, time in timed("nano-at-scale/*-tokens-per-gpu.yaml"):
        asked, mesh = report.scenario, report.scenario["mesh"]
        way = [asked["framework"], mesh["dp_replicate"] > 1, asked["training"]["recompute"], asked["framework_options"]]
        series[json.dumps(way)].append((int(_gpus(report)), time.step_s))
    assert min(map(len, series.values())) > 2
    for name, points in series.items():
        assert sorted(points) == sorted(points, key=lambda point: point[1]), name


def _assert_where_the_difference_lies(loop: StepTime, grouped: StepTime) -> None:
    """More than half with the host, over a quarter in kernels, the rest with what is gathered and reduced."""
    parts = {name: loop.parts[name] - grouped.parts[name] for name in loop.parts if name != "optimizer"}
    share = {name: value / sum(parts.values()) for name, value in parts.items()}
    assert 0.6 < share["host"] < 0.66
    assert share["forward"] + share["backward"] == pytest.approx(0.25, abs=0.03)
    assert 0.1 < share["communication"] + share["contention"] < 0.2


def test_what_a_loop_over_experts_costs() -> None:
    """Figures of the example's README on the published pair: 2.267 and 0.357 s for forward and backward."""
    every = [one for name in ("loop", "grouped") for one in reports(SCENARIOS / "expert-loop" / f"{name}.yaml")]
    found = {report.name: report.time for report in every}
    passes = {name: time.step_s - time.optimizer_s for name, time in found.items() if time is not None}
    loop = found["loop-over-experts"]
    assert loop is not None
    balanced = next(name for name in passes if name.endswith("balanced]"))
    assert passes["loop-over-experts"] == pytest.approx(1.2 * 2.267, rel=0.05)
    assert passes[balanced] == pytest.approx(1.2 * 0.357, rel=0.05)
    assert passes["loop-over-experts"] / passes[balanced] == pytest.approx(6.35, rel=0.05)
    assert 0.5 < loop.parts["host"] / loop.step_s < 0.65
    grouped = found[balanced]
    assert grouped is not None
    device = passes[balanced] - grouped.parts["host"]
    assert device == pytest.approx(0.25, abs=0.02), "it would be done earlier"
    assert grouped.parts["host"] / grouped.step_s == pytest.approx(0.36, abs=0.03)
    _assert_where_the_difference_lies(loop, grouped)
    sent = {one.name: sum(row.wire_bytes for row in one.ranks[0].traffic if row.collective == "all_gather") / GIB
            for one in every}
    assert sent["loop-over-experts"] == pytest.approx(102, abs=0.5)
    assert sent[balanced] == pytest.approx(4, abs=0.5)
    twice = next(name for name in passes if name.endswith('{"imbalance":2.0}]'))
    assert 1.0 < passes[twice] / passes[balanced] < 1.04, "the host hides much of an imbalance"


def _pairs(number: int) -> list[tuple[Report, Report]]:
    """Reports with ep 4 and ep 8 that are alike otherwise, of a framework."""
    found = nano_ep4.reports(nano_ep4.AGAINST[number])
    return list(zip(found[::2], found[1::2], strict=True))


def _sent_over(report: Report, *axes: str) -> int:
    assert report.peak_rank is not None
    return sum(row.wire_bytes for row in report.peak_rank.traffic
               if row.axis in axes and row.collective != "reduce_scatter")


def _read_by_experts(report: Report) -> int:
    assert report.time is not None
    return next(kernel.bytes_moved for kernel in report.time.kernels if kernel.kernel == "grouped_gemm")


@pytest.mark.parametrize("framework", [0, 1])
def test_why_ep_4_is_slower_than_ep_8_on_the_same_gpus(framework: int) -> None:
    """Experts' kernels read more, Automodel gathers experts, and less token traffic does not make up for it."""
    four, eight = _pairs(framework)[0]
    assert 0.88 < nano_ep4.rate(four) / nano_ep4.rate(eight) < 0.94
    assert 1.4 < _read_by_experts(four) / _read_by_experts(eight) < 2
    assert 0.6 < _sent_over(four, "ep") / _sent_over(eight, "ep") < 0.7
    assert (_sent_over(four, "expert_dp") > 50e9) == (framework == 0)
    assert _sent_over(eight, "expert_dp") == 0


def test_large_microbatches_make_ep_4_equal_and_it_needs_more_memory_always() -> None:
    pairs = [pair for number in (0, 1) for pair in _pairs(number)]
    assert all((four.highest_bytes or 0) > (eight.highest_bytes or 0) + 7e9 for four, eight in pairs)
    four, eight = next(pair for pair in _pairs(0) if pair[0].scenario["training"]["micro_batch_size"] == 8)
    assert nano_ep4.rate(four) == pytest.approx(nano_ep4.rate(eight), rel=0.01)
    assert (four.verdict, eight.verdict) == ("oom", "unsure")


def test_drawn_routing_changes_no_verdict_and_one_hot_rank_does() -> None:
    """The README of EP=4 says so of its last table."""
    balanced = {(row[0], row[1]): row[6] for row in nano_ep4.layouts()[1:]}
    rows = nano_ep4.uneven_routing()[1:]
    assert [row[6] for row in rows] == [balanced[row[0], row[1]] for row in rows]
    changed = [(row[0], row[1]) for row in rows if row[8] != balanced[row[0], row[1]]]
    assert changed == [("`megatron-8gpu-tp4-ep8`", "full")]


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"] or not set(sys.argv[2:]) <= {folder.name for folder in FOLDERS}:
        sys.exit("usage: python tests/test_scenarios.py --write [FOLDER...]")
    write([folder for folder in FOLDERS if folder.name in (sys.argv[2:] or [folder.name])])
