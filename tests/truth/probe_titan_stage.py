"""Measures what a rank of torchtitan's pipeline holds at its peak: `tape/torchtitan-stages-0.2.2-torch-2.13.0.json`.

    python tests/truth/probe_titan_stage.py CASE... > tests/truth/tape/torchtitan-stages-0.2.2-torch-2.13.0.json

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of `tape/cases-stages.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oracle import logs

HERE = Path(__file__).resolve().parent


def peaks(case: dict[str, Any]) -> dict[str, Any]:
    """The highest point of the second step, by category; what is there when it begins and ends."""
    from oracle import titan_stage
    from oracle.steps.log import Replay

    tracker, shapes = titan_stage.logged(case)
    start, end = (max(place for place, label in tracker.markers if label == at) for at in ("fwd:begin", "bwd:end"))
    replay = Replay(tracker)
    peak = replay.segment(start, end)
    return {"shapes": shapes, "peak": peak["peak"], "breakdown": peak["breakdown"],
            "begins": replay.breakdown(start), "ends": replay.breakdown(end), "sections": []}


if __name__ == "__main__":
    logs.main(__file__, peaks, HERE / "tape" / "cases-stages.json")
