"""Peaks and breakdowns out of the event log of a ``Tracker``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .tracker import Tracker


class Replay:
    def __init__(self, tracker: Tracker) -> None:
        self.tr = tracker

    def _live(self, upto: int) -> dict[int, int]:
        size: dict[int, int] = defaultdict(int)
        for sid, d in self.tr.events[:upto]:
            size[sid] += d
        return {sid: b for sid, b in size.items() if b}

    def breakdown(self, upto: int) -> dict[str, int]:
        out: dict[str, int] = defaultdict(int)
        for sid, d in self.tr.events[:upto]:
            out[self.tr.info[sid]["cat"]] += d
        return {k: v for k, v in out.items() if v}

    def segment(self, lo: int, hi: int) -> dict[str, Any]:
        """Highest allocation in events [lo, hi), the state just before ``lo`` included."""
        total = sum(d for _, d in self.tr.events[:lo])
        peak, at, cut = total, lo if lo < hi else max(lo - 1, 0), lo
        for i in range(lo, hi):
            total += self.tr.events[i][1]
            if total > peak:
                peak, at, cut = total, i, i + 1
        return dict(peak=peak, at=at, breakdown=self.breakdown(cut), end=total)

    def saved_by_layer(self, upto: int) -> dict[str, int]:
        """Bytes of storages allocated in forward that are alive, by the layer that allocated them."""
        out: dict[str, int] = defaultdict(int)
        for sid, b in self._live(upto).items():
            if self.tr.info[sid]["cat"] == "activation":
                out[self.tr.info[sid]["layer"]] += b
        return dict(out)

    def saved_detail(self, upto: int, layer: str) -> list[list[Any]]:
        rows = []
        for sid, b in self._live(upto).items():
            f = self.tr.info[sid]
            if f["cat"] == "activation" and f["layer"] == layer:
                rows.append([b, f["op"].replace("aten.", ""), list(f["shape"]), f["dtype"]])
        return rows

    def locate(self, at: int) -> str | None:
        """The last marker at or before event ``at``."""
        label = None
        for i, name in self.tr.markers:
            if i > at:
                break
            label = name
        return label
