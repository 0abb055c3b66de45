"""Measures what llm-foundry's own MPT allocates, event by event: the cases of `tape/llmfoundry-*.json`.

    python tests/truth/probe_foundry.py CASE... > tests/truth/tape/llmfoundry-0.3.0-torch-2.13.0.json

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of `tape/cases-foundry.json`.
A step is logged and cut at FSDP2's hooks; buffers that FSDP2 owns are left out, and a few numbers. The sources of
`llmfoundry` (0.3.0) and `flash_attn` (1.0.9) are to be on the path.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from oracle import logs
from oracle.steps.log import Replay
from probe_tape import FSDP2_OWNS, section_at

HERE = Path(__file__).resolve().parent
NUMBER = 16


def sections(case: dict[str, Any]) -> dict[str, Any]:
    """Signed bytes of every section, bytes born by category, and the shapes at rest."""
    from oracle import foundry

    tracker, shapes = foundry.logged(case)
    starts = [place for place, label in tracker.markers if label == "fwd:begin"]
    ends = [place for place, label in tracker.markers if label == "bwd:end"]
    marks = [(place, label) for place, label in tracker.markers if starts[-1] <= place]
    found: dict[str, tuple[list[int], Counter[str]]] = {}
    now = "stem"
    for number in range(starts[-1], ends[-1]):
        while marks and marks[0][0] <= number:
            now = section_at(marks.pop(0)[1].replace(":transformer.blocks.", ":model.layers."), now)
        storage, change = tracker.events[number]
        category = tracker.info[storage]["cat"]
        if category in FSDP2_OWNS or (category == "unsharded_grad" and change < 0) or abs(change) <= NUMBER:
            continue
        events, born = found.setdefault(_made_in(now, case, tracker.info[storage]), ([], Counter()))
        events.append(change)
        born[category] += max(change, 0)
    peak = Replay(tracker).segment(starts[-1], ends[-1])
    return {"shapes": shapes, "peak": peak["peak"], "breakdown": peak["breakdown"], "sections": [
        {"at": at, "events": events, "born": {k: v for k, v in born.items() if v}}
        for at, (events, born) in found.items()]}


def _made_in(now: str, case: dict[str, Any], info: dict[str, Any]) -> str:
    """FSDP's pre-forward casts ALiBi's bias, which is counted where the layer begins."""
    bias = (1, case["model"]["n_heads"], 1, case["model"]["max_seq_len"])
    if info["op"] != "aten._to_copy.default" or info["shape"] != bias or "backward" in now:
        return now
    return "forward 0" if now == "stem" else f"forward {int(now.removeprefix('after ')) + 1}"


if __name__ == "__main__":
    logs.main(__file__, sections, HERE / "tape" / "cases-foundry.json")
