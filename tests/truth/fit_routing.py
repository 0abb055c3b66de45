"""How much fuller than the mean a rank's experts get, from measured runs whose router was not made to balance.

    python tests/truth/fit_routing.py            # writes measured/expert_loads.json

A run on an untrained router is nearly balanced in its first step and drifts within tens. Of every visible run of
Megatron-LM's golden values with expert parallelism two peaks of one rank are known: of the first step, and of all 50.
Simulated with one load of the rank and with another they differ by so many bytes a unit of load; so each peak tells a
load, and their difference is free of whatever else the simulation misses. Rows that share a scenario and their bytes
are one run. `load`: 1 and that difference; `bytes_a_unit`: what a load of 2 would add to the peak.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import simulate
from simcore.validation.runs import Measured, layout_of, read_measured

MEASURED = Path(__file__).resolve().parent / "measured"
GROUPS = ("mcore-golden-moe", "mcore-golden-hybrid")
LOADED = 1.5
LEAST_SHARE = 0.05
"""Of the peak that a unit of load must make, below which an error of the peak is no small part of the load."""


def peaks(scenario: dict[str, Any], load: float) -> tuple[int, int]:
    """Peaks of the last rank, of all steps and of the first, if its experts have that load."""
    given = scenario | {"name": "loaded", "training": scenario["training"] | {"routing": {"imbalance": load}}}
    report = simulate(parse_scenario(parse_document(json.dumps(given), "loaded.json")))
    if report.status != "ok" or report.ranks[-1].peak is None:
        return 0, 0
    peak = report.ranks[-1].peak
    first = peak.first_step_bytes or 0
    return max(peak.allocated_bytes, first), first


def row(measured: Measured) -> dict[str, Any] | None:
    """The rank's load in one run; None where it cannot be told."""
    entry, read = measured.entry, {reading.of: reading.bytes for reading in measured.row.readings}
    if entry is None or entry.scenario is None or not {"allocated_peak", "allocated_peak_first"} <= set(read):
        return None
    scenario = json.loads(layout_of(entry))
    ep = scenario["mesh"]["ep"]
    if ep == 1 or scenario["training"]["routing"] != "auto":
        return None
    (every, first), (more, first_more) = peaks(scenario, 1.0), peaks(scenario, LOADED)
    unit, unit_of_first = (more - every) / (LOADED - 1), (first_more - first) / (LOADED - 1)
    if not every or min(unit, unit_of_first) < LEAST_SHARE * every:
        return None
    grown = (read["allocated_peak"] - every) / unit - (read["allocated_peak_first"] - first) / unit_of_first
    return {"id": measured.row.id, "ep": ep, "load": round(1 + grown, 3), "bytes_a_unit": round(unit)}


def main() -> None:
    """Writes the table, a run a line."""
    rows, _ = read_measured([str(MEASURED / f"{group}.jsonl") for group in GROUPS])
    runs = {(layout_of(one.entry), one.row.readings): one for one in rows if one.entry and one.entry.scenario}
    found = [made for one in runs.values() if (made := row(one))]
    lines = ",\n".join(json.dumps(made) for made in sorted(found, key=lambda made: (made["load"], made["id"])))
    (MEASURED / "expert_loads.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
