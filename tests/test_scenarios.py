"""The examples in scenarios/: each folder is explained, and its stored answers are what comes out today.

`python -m tests.test_scenarios --write` makes all answers again. Times are not stored: they are models of kernels and
links, and change when those are fitted anew.
"""

from __future__ import annotations

import csv
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simcore.loading import load
from simcore.report import AtRest, Peak, RankReport, Report, TrafficRow
from simcore.simulate import simulate

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
FOLDERS = sorted(path for path in SCENARIOS.iterdir() if path.is_dir())
FILES = sorted(SCENARIOS.glob("*/*.yaml"))
GENERATED = (
    "<!-- Made by `python -m tests.test_scenarios --write`. -->\n\n"
    "On the rank with the highest peak; GB is 1e9 bytes. Peaks are of the device: what the allocator most likely "
    "reserves, the CUDA context, buffers of NCCL and of token dispatchers.\n\n"
)


def _id(path: Path) -> str:
    return path.relative_to(SCENARIOS).with_suffix("").as_posix()


# ---- what is kept of a result ----------------------------------------------------------------------------------------
@cache
def reports(file: Path) -> tuple[Report, ...]:
    return tuple(simulate(scenario) for scenario in load(file))


def answer(file: Path) -> dict[str, Any]:
    return {report.name: _facts(report) for report in reports(file)}


def _facts(report: Report) -> dict[str, Any]:
    if report.status != "ok":
        return {"status": report.status, "problems": [{"message": p.message, "rule": p.rule} for p in report.problems]}
    return {"status": report.status, "verdict": report.verdict, "capacity_bytes": report.capacity_bytes,
            "ranks": [_rank(rank) for rank in report.ranks]}


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
    rows = [_row(report, published) for file in sorted(folder.glob("*.yaml")) for report in reports(file)]
    heads = ["scenario", "GPUs", "weights GB", "at rest GB", "peak GB", "peak in", "verdict"]
    if published:
        heads += ["published weights GB", "published total GB", "published verdict", "where"]
    lines = [heads, ["---"] * len(heads), *rows]
    return GENERATED + "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
        cells += [row.get(key, "") for key in ("weights_gb", "total_gb", "verdict", "where")]
    return cells


def _gpus(report: Report) -> str:
    mesh = report.scenario["mesh"]
    return str(mesh["pp"] * mesh["dp_replicate"] * mesh["dp_shard"] * mesh["cp"] * mesh["tp"])


def _memory(report: Report) -> list[str]:
    rank = report.peak_rank
    if rank is None or rank.peak is None:
        return ["", "", "", "", report.status]
    weights = sum(part.params_bytes for part in rank.at_rest.values())
    return [_gb(weights), _gb(rank.at_rest_bytes()), _gb(rank.peak.device_bytes), rank.peak.phase, str(report.verdict)]


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"


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


def write() -> None:
    for folder in FOLDERS:
        answers = folder / "answers"
        answers.mkdir(exist_ok=True)
        for old in answers.iterdir():
            old.unlink()
        for file in sorted(folder.glob("*.yaml")):
            _stored(file).write_text(_text(answer(file)) + "\n", encoding="utf-8", newline="\n")
        (answers / "table.md").write_text(table(folder), encoding="utf-8", newline="\n")


# ---- tests -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("file", FILES, ids=_id)
def test_stored_answers_are_what_comes_out(file: Path) -> None:
    stored = json.loads(_stored(file).read_text(encoding="utf-8"))
    found = answer(file)
    assert list(found) == list(stored)
    for name, facts in found.items():
        assert facts == stored[name], f"{name}: if this is meant, python -m tests.test_scenarios --write"


@pytest.mark.parametrize("file", FILES, ids=_id)
def test_only_a_sweep_asks_for_what_is_refused(file: Path) -> None:
    """What this version cannot model (status error) has no answer to store."""
    refused = [report for report in reports(file) if report.status != "ok"]
    assert [(r.name, r.problems) for r in refused if r.status == "error" or "[" not in r.name] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=_id)
def test_stored_tables_are_what_comes_out(folder: Path) -> None:
    assert (folder / "answers" / "table.md").read_text(encoding="utf-8") == table(folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=_id)
def test_every_answer_has_its_scenario(folder: Path) -> None:
    expected = {"table.md", *(f"{file.stem}.json" for file in folder.glob("*.yaml"))}
    assert {path.name for path in (folder / "answers").iterdir()} == expected


@pytest.mark.parametrize("file", FILES, ids=_id)
def test_the_readme_says_who_ships_a_layout(file: Path) -> None:
    """A row of the table names the file first and its origin last."""
    lines = (file.parent / "README.md").read_text(encoding="utf-8").splitlines()
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


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.test_scenarios --write")
    write()
