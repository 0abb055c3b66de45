"""Which is closer to measured peaks of mixtures: balanced experts, or experts as full as other runs' became.

    python tests/truth/compare_routing.py    # the table of docs/accuracy.md, Hot ranks of mixtures

Every visible row with expert parallelism whose router was not made to balance, once for each layout and reading. Its
load is that of the runs of `expert_loads.json` without those of the row's own test (all cards and releases): their
median for the rank that was read. Above: share of readings above balanced experts, and above what the verdict counts
(the load that nine of ten jobs do not pass), and by how much at most.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simcore.frameworks.common.hot_ranks import SURELY
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.validation.runs import Reading, layout_of, read_measured

MEASURED = Path(__file__).resolve().parent / "measured"
FRAMEWORKS = ("megatron", "megatron_fsdp", "automodel")


class Beside(NamedTuple):
    """Errors of one reading: with balanced experts, with likely ones, with those that the verdict counts."""

    balanced: float
    likely: float
    counted: float


def case(row: str) -> str:
    """The test of a row of continuous integration, whatever card and release; else the row."""
    return row.split("/")[1] if row.startswith("mlm:") else row


def peak(scenario: dict[str, Any], load: float, reading: Reading, known: dict[str, Report]) -> int:
    """Simulated bytes of the reading's quantity, of the last rank or of the first, if its experts have that load."""
    given = scenario | {"name": "loaded", "training": scenario["training"] | {
        "routing": {"imbalance": load} if load > 1 else "balanced"}}
    text = json.dumps(given)
    if text not in known:
        known[text] = simulate(parse_scenario(parse_document(text, "loaded.json")))
    report = known[text]
    found = report.ranks[-1 if reading.rank == "last" else 0].peak if report.status == "ok" else None
    if found is None:
        return 0
    first = found.first_step_bytes or 0
    return first if reading.of == "allocated_peak_first" else max(found.allocated_bytes, first)


def place(group: str, ep: int) -> str:
    return f"Megatron-LM's tests, {'ep 2' if ep == 2 else 'ep 4 and 8'}" if group.startswith("mcore") else (
        "Bridge's cards and skills" if group.startswith("mbridge") else "Automodel's tables")


def main() -> None:
    """Prints the table."""
    loads = [(case(row["id"]), max(1.0, row["load"])) for row in json.loads(
        (MEASURED / "expert_loads.json").read_text(encoding="utf-8"))]
    rows, _ = read_measured([str(file) for file in sorted(MEASURED.glob("*.jsonl"))])
    found: dict[tuple[str, str], list[Beside]] = defaultdict(list)
    seen: set[tuple[str, Reading]] = set()
    for one in (row for row in rows if row.entry and row.entry.scenario):
        text, known = layout_of(one.entry), dict[str, Report]()
        scenario = json.loads(text)
        ep = scenario["mesh"]["ep"]
        if ep == 1 or scenario["training"]["routing"] != "auto" or scenario["framework"] not in FRAMEWORKS:
            continue
        others = [load for test, load in loads if test != case(one.row.id)]
        ends = float(np.median(others)), min(float(np.quantile(others, SURELY ** (1 / ep))), ep)
        for reading in one.row.readings:
            if reading.of not in ("allocated_peak", "allocated_peak_first") or (text, reading) in seen:
                continue
            seen.add((text, reading))
            peaks = [peak(scenario, load, reading, known) for load in (1.0, *ends)]
            if all(peaks):
                found[reading.of, place(one.row.group, ep)].append(Beside(*(got / reading.bytes - 1 for got in peaks)))
    for (quantity, name), errors in sorted(found.items()):
        balanced, likely, counted = ([getattr(error, field) for error in errors] for field in Beside._fields)
        closer = sum(abs(error.likely) < abs(error.balanced) for error in errors)
        words = (f"{statistics.median(map(abs, each)):.1%}, {statistics.median(each):+.1%}"
                 for each in (balanced, likely))
        above = (f"{sum(error < 0 for error in each) / len(each):.0%}, {abs(min(0.0, *each)):.1%}"
                 for each in (balanced, counted))
        print(f"| {name} | `{quantity}` | {len(errors)} | {' | '.join(words)} | {closer} | {' | '.join(above)} |")


if __name__ == "__main__":
    main()
