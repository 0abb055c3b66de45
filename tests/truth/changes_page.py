"""What each missing piece of physics changed, as a page: errors of measured runs before it was built and now.

    rankscope validate --json > V.json; python tests/truth/changes_page.py --now V.json
    python tests/truth/changes_page.py > docs/changes.md

Comes in: `changes/items.json` (what was missing, the rows on which it is seen, its source) and `changes/errors.json`:
the error of each observation that `validate --json` told at the two commits named there, and tells now. `--store
OLD.json FIRST.json V.json` makes that file from three answers, those of old from a worktree of their commit.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
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
FEW: Final = 4
"""So many errors are listed; of more, their number, median and ends are told."""


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


# ---- the page -------------------------------------------------------------------------------------------------------
HEAD: Final = """# What each missing piece of physics changed

Made by `python tests/truth/changes_page.py` from `tests/truth/changes/`: what was missing in memory and in time, where
the rule comes from, and the errors of the measured runs on which it is seen: at {old},
at {first}, and now.

Errors are simulated over measured, in per cent; "left out": by a fit of step times that has not seen the run, by which
`validate` judges; "none": not simulated, or refused, or not compared. Of more than {few} observations: their number,
the median and both ends. Nearer and farther: by more than {memory:.1%} of memory, or by more than {time:.0%} of a
step's time and what equal runs of the source differ by."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def told(errors: Sequence[float | None]) -> str:
    """Errors of some observations in per cent, each of a few, the middle and the ends of many."""
    known = [100 * error for error in errors if error is not None]
    if len(errors) <= FEW or not known:
        return ", ".join("none" if error is None else f"{100 * error:+.1f}" for error in errors) if known else "none"
    return f"{len(known)}: {statistics.median(known):+.1f} ({min(known):+.1f} to {max(known):+.1f})"


def counts(seen: Iterable[Seen], noise: Mapping[str, float]) -> tuple[int, int]:
    """(nearer, farther)."""
    moved = [one.moved(noise) for one in seen]
    return moved.count(-1), moved.count(1)


def chosen(reading: Mapping[str, str], seen: Iterable[Seen]) -> list[Seen]:
    """Observations of a reading: `rows` is searched in their ids, `quantity` in what was measured, `kind` is theirs."""
    return [one for one in seen if one.kind == reading["kind"] and re.search(reading.get("quantity", ""), one.quantity)
            and any(re.search(reading["rows"], row) for row in one.rows)]


def item_rows(
    items: Sequence[Mapping[str, Any]], seen: Sequence[Seen], noise: Mapping[str, float],
) -> Iterator[list[str]]:
    """Lines of the table of readings; every reading has observations."""
    for item in items:
        for reading in item["readings"]:
            found = chosen(reading, seen)
            assert found, f"{item['what']}: no row has {reading['rows']}"
            quantities = dict.fromkeys(one.quantity.rpartition(" ")[0] or reading["kind"] for one in found)
            errors = [told([one.errors[commit] for one in found]) for commit in range(3)]
            if reading["kind"] == LEFT:
                errors[0] = ""
            yield [item["what"], reading["told"], ", ".join(quantities), *errors, *map(str, counts(found, noise))]


def whole(seen: Sequence[Seen], noise: Mapping[str, float]) -> Iterator[list[str]]:
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
            yield [name, str(len(group)), *medians, *map(str, counts(group, noise))]


def page() -> str:
    """Markdown text of `docs/changes.md`."""
    seen, noise = read()
    items = json.loads((CHANGES / "items.json").read_text(encoding="utf-8"))
    farther = [[one.rows[0], one.quantity, told([one.before]), told([one.errors[2]])]
               for one in seen if one.kind == MEMORY and one.moved(noise) > 0]
    old, first = (f"{commit} ({said})" for commit, said in COMMITS.items())
    head = HEAD.format(old=old, first=first, few=FEW, memory=MOVED[MEMORY], time=MOVED[FITTED])
    return "\n\n".join([
        head, table(("what was missing", "source of the rule", "what came of it"),
                    ((item["what"], item["source"], item["came"]) for item in items)),
        "## Readings", table(("what", "runs", "quantity", *COMMITS, "now", "nearer", "farther"),
                             item_rows(items, seen, noise)),
        "## Whether anything else got worse",
        "It did: each observation that was compared before the work (step times left out: at the second commit) and\n"
        "is now. Factors of the fit by which no left-out error got better were taken away\n"
        "([left-out errors](decisions/left-out-errors.md)): that is why fitted errors are not nearer.",
        table(("observations", "number", "median then", "median now", "nearer", "farther"), whole(seen, noise)),
        "Memory that is farther:", table(("run", "quantity", "then", "now"), farther)]) + "\n"


def main(words: Sequence[str]) -> None:
    """Writes the file of errors, or prints the page."""
    answers = [found[0] if isinstance(found, list) else found for found in
               (json.loads(Path(path).read_text(encoding="utf-8")) for path in words[1:])]
    if words[:1] == ["--store"]:
        old = [by_row(observed(one), 2) for one in answers[:2]]
    elif words[:1] == ["--now"]:
        old = [by_row(read()[0], commit) for commit in range(2)]
    else:
        sys.stdout.write(page())
        return
    text = stored(joined(old, observed(answers[-1])), answers[-1])
    (CHANGES / "errors.json").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
