"""A measured row of a step's readings, in the format of `simcore/validation/runs.py`."""

from __future__ import annotations

import statistics
from typing import Any

from on_gpu.cases import Case

GROUP = "on-gpu"


def row_of(case: Case, scenario: dict[str, Any], steps: list[dict[str, Any]], first_timed: int, machine: dict[str, Any],
           missing: list[str], oom: bool = False) -> dict[str, Any]:
    """The row. `steps`: of which the first made the optimizer's states, and those from `first_timed` on are timed.

    `missing`: modules without which other kernels ran; the row then has no scenario but a reason.
    """
    told = f"{machine['device']}, driver {machine['driver']}, {machine['versions']}"
    row: dict[str, Any] = {"id": f"{case.name}-{machine['device'].replace(' ', '-')}", "group": GROUP,
                           "source": f"tests/truth/on_gpu.sh at {machine['commit']}: {told}"}
    if case.unsaid:
        row["not_modelled"] = case.unsaid
    elif missing:
        row["not_modelled"] = f"ran {case.otherwise} (not installed: {', '.join(missing)})"
    elif not scenario["topology"]:
        row["not_modelled"] = f"no topology is known for {machine['device']}: give TOPOLOGY"
    else:
        row["scenario"] = scenario
    if oom:
        return row | {"readings": [], "verdict": "oom"}
    return row | _readings(steps, first_timed) | {"release": machine["versions"]}


def _readings(steps: list[dict[str, Any]], first_timed: int) -> dict[str, Any]:
    """Peaks of the first step and of all later ones; the median time of timed steps."""
    later = steps[1:]
    sizes = {"allocated_peak": max(step["allocated_peak"] for step in later),
             "allocated_peak_first": steps[0]["allocated_peak"], "allocated_end": later[-1]["allocated_end"],
             "reserved_peak": max(step["reserved_peak"] for step in steps),
             "device_peak": max(step["device_end"] for step in steps)}
    return {"readings": [{"of": name, "rank": 0, "bytes": int(size)} for name, size in sizes.items()],
            "verdict": "fits", "step_s": round(statistics.median(step["seconds"] for step in steps[first_timed:]), 6),
            "kind": "untuned"}
