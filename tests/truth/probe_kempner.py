"""Measures what KempnerForge's own layers allocate, event by event: the cases of `tape/kempnerforge-*.json`.

    python tests/truth/probe_kempner.py CASE... > tests/truth/tape/kempnerforge-5666d0d16153-torch-2.13.0.json

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of `tape/cases-kempner.json`.
A step is logged and cut at FSDP2's hooks; buffers that FSDP2 owns are left out. `kempnerforge` is to be on the path.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from oracle import logs
from oracle.steps.log import Replay
from probe_tape import FSDP2_OWNS, section_at
from probe_titan import sent

HERE = Path(__file__).resolve().parent
CAST, COPIED = "aten._to_copy.default", "aten.new_empty_strided.default"


class Sections:
    """Events by section."""

    def __init__(self, case: dict[str, Any]) -> None:
        model = case["model"]
        self.found: dict[str, tuple[list[int | str], Counter[str]]] = {}
        self.now, self.reducing = "stem", False
        self.table = (case["seq"], model["hidden_size"] // model["num_attention_heads"] // 2)
        self.experts = model.get("num_local_experts", 0)
        self.made_by_fsdp: set[int] = set()
        self.copied: list[int] = []

    def mark(self, label: str) -> None:
        """The root reduces the final norm's gradient at the very end: it is counted where the gradient is made."""
        self.now = section_at(label.replace(":layers.", ":model.layers."), self.now)
        if "post_backward" in label:
            self.reducing = "_begin" in label
            if ":root" in label:
                self.now = "loss" if self.reducing else "backward 0"

    def add(self, storage: int, change: int, info: dict[str, Any]) -> None:
        category, now = info["cat"], self.now
        if self.reducing and category == "backward_temp" and change > 0:
            self.made_by_fsdp.add(storage)
        if storage in self.made_by_fsdp:  # gradients that DTensor redistributes before they are reduced
            category = "unsharded_grad"
        if (category in FSDP2_OWNS or (category == "unsharded_grad" and change < 0)
                or abs(change) <= 4 * self.experts):
            return
        if category == "unsharded_grad" and info["op"] == COPIED:
            self.copied.append(change)
            if len(self.copied) < self.experts:
                return
            change = sum(self.copied)
            self.copied.clear()
        if info["op"] == CAST and info["shape"] == self.table and change > 0:
            now = "forward 0" if now == "stem" else f"forward {int(now.removeprefix('after ')) + 1}"
        events, born = self.found.setdefault(now, ([], Counter()))
        events.append(change)
        born[category] += max(change, 0)


def sections(case: dict[str, Any]) -> dict[str, Any]:
    """Signed bytes of every section, bytes born by category, and the shapes at rest."""
    from oracle import kempner

    tracker, shapes = kempner.logged(case)
    starts = [place for place, label in tracker.markers if label == "fwd:begin"]
    ends = [place for place, label in tracker.markers if label == "bwd:end"]
    marks = [(place, label) for place, label in tracker.markers if starts[-1] <= place]
    comms = [(comm["at"], sent(comm)) for comm in tracker.comms]
    logged = Sections(case)
    for number in range(starts[-1], ends[-1]):
        while marks and marks[0][0] <= number:
            logged.mark(marks.pop(0)[1])
        texts = [text for place, text in comms if place == number and text]
        logged.found.setdefault(logged.now, ([], Counter()))[0].extend(texts)
        storage, change = tracker.events[number]
        logged.add(storage, change, tracker.info[storage])
    first = starts[-case.get("grad_accum", 1)]
    peak = Replay(tracker).segment(first, ends[-1])
    step = [comm for comm in tracker.comms if first <= comm["at"] <= ends[-1]]
    traffic = Counter(f"{sent(comm) or comm['kind'] + ' ' + str(comm['bytes'])} {comm['group']}" for comm in step)
    return {"shapes": shapes, "peak": peak["peak"], "breakdown": peak["breakdown"], "traffic": traffic, "sections": [
        {"at": at, "events": events, "born": {k: v for k, v in born.items() if v}}
        for at, (events, born) in logged.found.items()]}


if __name__ == "__main__":
    logs.main(__file__, sections, HERE / "tape" / "cases-kempner.json")
