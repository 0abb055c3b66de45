"""Whether anything got worse, as `changes_page.py` tells it: rows that are farther, why, and how many are by chance."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import numpy as np
from changes_chance import Chance, Moves, blind, chances
from changes_seen import CHANGES, LEFT, LEFT_OUT, MEMORY, MOVED, Seen, counts
from changes_text import table, told

ALL: Final = "all"
CAUSES: Final = {
    "factors": "other shares and host times, in the same engine", "physics": "physics that was changed or added",
    "left_out": "what is left out: the fit without the row's group is farther from the whole fit than it was",
    "": "shares of a machine of its own, which it did not have"}
RULES: Final = (
    (r"^mbskill-moonlight|-sft-H100|llama31_8b$|tyche_ngpu512",
     "runs that do not log statistics of tensors do not wait for them (`host.step`): short steps lose 28 ms"),
    (r"26\.06-Qwen3_30B_a3B-pretrain-B300", "copies to pages, for which the recipe asks, have a stream of their own"),
    (r"Qwen3_(30B_a3B|235B_a22B)-pretrain-.*FP8-gbs",
     "TransformerEngine quantises each expert's rows by a kernel of its own, in fp8 and mxfp8"),
    (r"llama31-405b-512g-cp1", "products beside the collectives of tensor parallelism (asynchronous TP)"))
"""What changed the physics of rows that are farther by it: first pattern that is found in the row's id."""
EXAMPLES: Final = 3


# ---- tables ---------------------------------------------------------------------------------------------------------
def whole(
    seen: Sequence[Seen], noise: Mapping[str, float], chance: Mapping[str, Chance],
) -> Iterator[list[str]]:
    """Lines of the table of all observations that both have, by kind, and of step times left out by source."""
    both = [one for one in seen if one.before is not None and one.errors[2] is not None]
    for kind in MOVED:
        of = [one for one in both if one.kind == kind]
        groups = {f"{kind}, all": of}
        if kind == LEFT:
            for one in sorted(of, key=lambda one: one.source):
                groups.setdefault(one.source, []).append(one)
        for name, group in groups.items():
            medians = (f"{statistics.median(map(abs, errors)):.1%}"
                       for errors in ([one.before or 0.0 for one in group], [one.errors[2] or 0.0 for one in group]))
            by = chance[name if name in chance else ALL] if kind == LEFT else None
            expected = f"{by.mean:.0f} ({by.low} to {by.high})" if by else ""
            yield [name, str(len(group)), *medians, *map(str, counts(group, noise)), expected]


def by_chance(left: Sequence[Seen], moves: Moves) -> dict[str, Chance]:
    """Chance of rows that go farther, of all step times left out and of each source; `moves`: theirs."""
    parts: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(left):
        parts[ALL].append(place)
        parts[one.source].append(place)
    return chances(moves, parts)


def moves_of(left: Sequence[Seen], noise: Mapping[str, float]) -> Moves:
    """Moves of step times left out; rows that are in no fit stand alone."""
    groups = {row: (group["source"], group["family"], group["machine"]) for group in _left_out() for _, rows in
              group["ratios"] for row in rows}
    then, now = (np.array([error for one in left if (error := one.errors[commit]) is not None]) for commit in (1, 2))
    least = np.array([max(MOVED[LEFT], noise.get(one.source, 0.0)) for one in left])
    return Moves(then, now, least, tuple(next((groups[row] for row in one.rows if row in groups), one.rows)
                                         for one in left))


def _left_out() -> Any:
    return json.loads(LEFT_OUT.read_text(encoding="utf-8"))["together"]


def causes() -> dict[str, dict[str, float]]:
    """Parts of the change of each row that is farther, by the first row of its observation; {} on another machine."""
    lines = _stored("causes.json")
    return {row: {} if parts[0] is None else dict(zip(CAUSES, (parts[1], parts[0], parts[2]), strict=False))
            for row, *parts in lines}


def _stored(name: str) -> Any:
    return json.loads(Path(CHANGES / name).read_text(encoding="utf-8"))


def cause_of(parts: Mapping[str, float]) -> str:
    """The part that moved the row most in the direction in which it went."""
    direction = math.copysign(1.0, sum(parts.values()))
    return max(parts, key=lambda name: parts[name] * direction, default="")


def caused(left: Sequence[Seen], noise: Mapping[str, float]) -> Iterator[list[str]]:
    """Lines of the table of rows that are farther, by cause."""
    known, drift = causes(), drifts(left)
    found: dict[str, list[Seen]] = defaultdict(list)
    for one in left:
        if one.moved(noise) > 0:
            found[cause_of(known[one.rows[0]])].append(one)
    for name, what in CAUSES.items():
        rows = sorted(found[name], key=move, reverse=True)
        unsteady = sum(drift.get(one.rows[0], 0.0) > move(one) for one in rows)
        few = (f"{one.rows[0]} {told([one.errors[1], one.errors[2]]).replace(', ', ' to ')}" for one in rows[:EXAMPLES])
        if rows:
            yield [what, str(len(rows)), f"{statistics.median(map(move, rows)):.1%}", str(unsteady), "; ".join(few)]


def ruled(left: Sequence[Seen], noise: Mapping[str, float]) -> dict[str, list[str]]:
    """Rows that are farther by physics, by what changed it."""
    known, found = causes(), {what: [] for _, what in RULES}
    for one in left:
        if one.moved(noise) > 0 and cause_of(known[one.rows[0]]) == "physics":
            found[next(what for pattern, what in RULES if re.search(pattern, one.rows[0]))].append(one.rows[0])
    return {what: rows for what, rows in found.items() if rows}


def move(one: Seen) -> float:
    """Change of the size of an error, as a share of what was measured."""
    then, now = (abs(error) for error in one.errors[1:] if error is not None)
    return now - then


def drifts(left: Sequence[Seen]) -> dict[str, float]:
    """By how much measured times of one configuration differ, as a share of the least; by the first row of each."""
    times = {row: 1.0 / (1.0 + one.errors[2]) for one in left for row in one.rows if one.errors[2] is not None}
    found = {}
    for group in _left_out():
        for _, rows in group["ratios"]:
            known = [times[row] for row in rows if row in times]
            found |= dict.fromkeys(rows, max(known) / min(known) - 1.0 if known else 0.0)
    return found


# ---- the section ----------------------------------------------------------------------------------------------------
def section(seen: Sequence[Seen], noise: Mapping[str, float]) -> str:
    """Markdown text."""
    left = [one for one in seen if one.kind == LEFT and one.errors[1] is not None and one.errors[2] is not None]
    moves = moves_of(left, noise)
    by, why = by_chance(left, moves), _stored("memory.json")
    farther = [[one.rows[0], one.quantity, told([one.before]), told([one.errors[2]]), why[one.rows[0]]]
               for one in seen if one.kind == MEMORY and one.moved(noise) > 0]
    return "\n\n".join([
        "## Whether anything else got worse", TOLD, table(HEAD, whole(seen, noise, by)), BY_CHANCE.format(
            farther=by[ALL].farther, rows=len(left), mean=by[ALL].mean, low=by[ALL].low, high=by[ALL].high,
            correlation=round(moves.correlation, 2) + 0.0, blind=blind(moves)),
        REFITS.format("; ".join(starmap(_refit, _stored("refits.json").items()))),
        WORSE.format(beyond=", ".join(beyond(by)) or "none", larger=_list(larger(left, noise), _rules(left, noise))),
        CAUSED, table(WHY, caused(left, noise)),
        "Of physics, by rule: " + "; ".join(f"{what} ({len(rows)})" for what, rows in ruled(left, noise).items()) + ".",
        "Memory that is farther:", table(("run", "quantity", "then", "now", "why"), farther)])


def beyond(chance: Mapping[str, Chance]) -> list[str]:
    """Sources of which more rows are farther than by chance."""
    return [name for name, one in chance.items() if name != ALL and not one.is_chance]


def larger(left: Sequence[Seen], noise: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Medians then and now of sources whose median is larger by more than the page's threshold."""
    of: dict[str, list[Seen]] = defaultdict(list)
    for one in left:
        of[one.source].append(one)
    medians = {name: (_median(rows, 1), _median(rows, 2)) for name, rows in of.items()}
    return {name: (then, now) for name, (then, now) in medians.items()
            if now - then > max(MOVED[LEFT], noise.get(name, 0.0))}


def _median(rows: Sequence[Seen], commit: int) -> float:
    return statistics.median(abs(error) for one in rows if (error := one.errors[commit]) is not None)


def _refit(commit: str, found: Mapping[str, Any]) -> str:
    low, middle, high = found["medians"]
    return (f"{commit}, of {found['factors']} factors, {found['mean']:.0f} of {found['configurations']} cases"
            f" ({found['low']} to {found['high']}), at medians of errors of {middle:.1%} ({low:.1%} to {high:.1%})")


def _rules(left: Sequence[Seen], noise: Mapping[str, float]) -> dict[str, str]:
    """What changed the physics of each source's rows that are farther by it."""
    of, found = {one.rows[0]: one.source for one in left}, defaultdict(list)
    for what, rows in ruled(left, noise).items():
        for source in dict.fromkeys(of[row] for row in rows):
            found[source].append(what)
    return {source: "; ".join(each) for source, each in found.items()}


def _list(found: Mapping[str, tuple[float, float]], rules: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({then:.1%}, now {now:.1%}: {rules.get(name, 'by the fit')})"
                     for name, (then, now) in found.items()) or "none"


HEAD: Final = ("observations", "number", "median then", "median now", "nearer", "farther",
               "farther if every change is right")
WHY: Final = ("moved by", "rows", "median of the move", "of which releases of one configuration differ by more",
              "largest, in per cent")
TOLD: Final = """\
Row by row it did. Each observation that was compared before the work (step times left out: at the second commit) and
is now; factors of the fit by which no left-out error got better were taken away
([left-out errors](decisions/left-out-errors.md)): that is why fitted errors are not nearer."""
BY_CHANCE: Final = """\
That no step time got worse cannot be asked of rows. Where a change is right, what is left of a row's error is of other
causes, and knows nothing of the change: it lies on the one side of the measured time as often as on the other. A row
that is moved by 5 % and keeps 6 % goes farther wherever both have one sign. If the errors of today keep their sizes and
draw their signs anew, one for each group of one source, model family and machine, {mean:.0f} of the {rows} step times
go farther (90 of 100 draws: {low} to {high}); {farther} did. Were the moves blind, {blind:.0f} would. Moves and what is
left have a correlation of {correlation:+.2f} (`tests/truth/changes_chance.py`)."""
REFITS: Final = """\
Nor does one engine's fit stand still. Fitted to two draws of the same groups, each row by a fit without its group, rows
go farther from the one draw to the other though neither is better (`tests/truth/changes_refits.py`; 90 of 100 in
brackets): {}."""
CAUSED: Final = """\
Step times that are farther, by the part of their move that brought most of it (`tests/truth/changes_causes.py`: today's
engine with shares and host times as they were):"""
WORSE: Final = """\
What can be asked is whether a source got worse: of which more rows are farther than 95 of 100 draws give ({beyond}), or
whose median is larger by more than the threshold: {larger}."""
