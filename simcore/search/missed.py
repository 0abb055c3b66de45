"""Layouts that do not fit: their number by what became of each, and the one that is nearest to fitting."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simcore.search.judge import Candidate, Judged, Sized

__all__ = ["Missed"]


class Missed:
    """Layouts of a running search that do not surely fit."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._nearest: tuple[Candidate, Sized] | None = None

    def add(self, candidate: Candidate, answer: Judged) -> None:
        """Counts one; the nearest is that with the most memory left, or the least too much."""
        self._counts[answer.verdict if isinstance(answer, Sized) else "at_rest" if answer is None else "refused"] += 1
        if isinstance(answer, Sized) and (
                self._nearest is None or answer.headroom_bytes > self._nearest[1].headroom_bytes):
            self._nearest = candidate, answer

    def said(self) -> dict[str, Any]:
        """Fields of a line: `missed`, numbers of layouts; `nearest` with its keys, GPUs, peak and verdict, or None."""
        return {"missed": dict(self._counts), "nearest": self._nearest and _layout(*self._nearest)}


def _layout(candidate: Candidate, sized: Sized) -> dict[str, Any]:
    """`usable_bytes`: what the layout may take on a GPU."""
    return {"keys": dict(candidate), "num_gpus": sized.num_gpus, "peak_bytes": sized.peak_bytes,
            "usable_bytes": sized.peak_bytes + sized.headroom_bytes, "verdict": sized.verdict}
