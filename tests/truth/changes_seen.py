"""Errors of measured runs at two commits before missing physics was built, and now, for `changes_page.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

CHANGES: Final = Path(__file__).resolve().parent / "changes"
LEFT_OUT: Final = Path(__file__).resolve().parent / "measured" / "left_out.json"
COMMITS: Final = {"95eabdf2": "28 Nov 2026, before the work", "c03050cd": "the same day, the first left-out errors"}
MEMORY: Final = "memory"
FITTED: Final = "step time, fitted"
LEFT: Final = "step time, left out"
MOVED: Final = {MEMORY: 0.005, FITTED: 0.02, LEFT: 0.02}
"""Changes of an error, as shares of what was measured, by more than which it is nearer or farther."""


class Key(NamedTuple):
    """What was compared of a row: kind, quantity with its rank, and the row's id."""

    kind: str
    quantity: str
    row: str


@dataclass(frozen=True)
class Seen:
    """An observation of a run: its rows (all of one configuration), what was measured, its errors at each commit.

    An error is simulated over measured, less 1; None where there was no answer.
    """

    kind: str
    quantity: str
    source: str
    rows: tuple[str, ...]
    errors: tuple[float | None, float | None, float | None]

    @property
    def before(self) -> float | None:
        """Earliest error: at the first commit no step time was left out of the fit."""
        return self.errors[self.kind == LEFT]

    def moved(self, noise: Mapping[str, float]) -> int:
        """1 where the error is larger now, by more than equal runs of the source differ; -1 where it is smaller."""
        if self.before is None or self.errors[2] is None:
            return 0
        least = max(MOVED[self.kind], 0.0 if self.kind == MEMORY else noise.get(self.source, 0.0))
        farther = abs(self.errors[2]) - abs(self.before)
        return (farther > least) - (-farther > least)


# ---- what is stored -------------------------------------------------------------------------------------------------
def observed(found: Mapping[str, Any]) -> Iterator[Seen]:
    """Everything that a `validate --json` compared, with its error as the last."""
    for one in found["compared"]:
        quantity = f"{one['quantity']} {one['rank']}"
        yield Seen(MEMORY, quantity, one["group"], (*one["rows"],), (None, None, one["error"]))
    for one in found["time"]["timed"]:
        for kind, error in ((FITTED, one["error"]), (LEFT, one.get("left_out_error"))):
            yield Seen(kind, "", one["group"], (*one["rows"],), (None, None, error))


def by_row(seen: Iterable[Seen], commit: int) -> dict[Key, tuple[str, float]]:
    """Source and error of each row at a commit, where it had one."""
    return {Key(one.kind, one.quantity, row): (one.source, error) for one in seen
            if (error := one.errors[commit]) is not None for row in one.rows}


def joined(old: Sequence[Mapping[Key, tuple[str, float]]], now: Iterable[Seen]) -> list[Seen]:
    """Observations of now with their errors at the commits of old, and those that are compared no more."""
    def errors(one: Seen) -> Iterator[float | None]:
        for each in old:
            yield next((each[key][1] for row in one.rows if (key := Key(one.kind, one.quantity, row)) in each), None)

    found = [Seen(one.kind, one.quantity, one.source, one.rows, (*errors(one), one.errors[2]))
             for one in now if one.errors[2] is not None]
    known = {Key(one.kind, one.quantity, row) for one in found for row in one.rows}
    gone = {key: source for each in old for key, (source, _) in each.items() if key not in known}
    for key, source in gone.items():
        one = Seen(key.kind, key.quantity, source, (key.row,), (None, None, None))
        found.append(Seen(one.kind, one.quantity, one.source, one.rows, (*errors(one), None)))
    return sorted(found, key=lambda one: (one.kind, one.source, one.rows, one.quantity))


def stored(seen: Iterable[Seen], now: Mapping[str, Any]) -> str:
    """JSON text of `errors.json`: digests as in `left_out.json`, noise of sources, a line an observation."""
    left = json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    noise = {one["source"]: max(one["repeated"] or 0.0, one["equal"] or 0.0) for one in now["time"]["noise"]}
    head = {"rows": left["rows"], "factors": left["factors"],
            "noise": {source: round(share, 4) for source, share in sorted(noise.items()) if share}}
    lines = (json.dumps([one.kind, one.quantity, one.source, one.rows,
                         [error if error is None else round(error, 5) for error in one.errors]]) for one in seen)
    return json.dumps(head, indent=1).removesuffix("\n}") + ',\n "observed": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def read() -> tuple[list[Seen], dict[str, float]]:
    """Observations that are stored, and what equal runs of a source differ by."""
    told = json.loads((CHANGES / "errors.json").read_text(encoding="utf-8"))
    return [Seen(kind, quantity, source, (*rows,), (*errors,)) for kind, quantity, source, rows, errors
            in told["observed"]], told["noise"]


def counts(seen: Iterable[Seen], noise: Mapping[str, float]) -> tuple[int, int]:
    """(nearer, farther)."""
    moved = [one.moved(noise) for one in seen]
    return moved.count(-1), moved.count(1)
