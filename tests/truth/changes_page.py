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
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from changes_seen import (
    CHANGES,
    COMMITS,
    FITTED,
    LEFT,
    MEMORY,
    MOVED,
    Seen,
    by_row,
    counts,
    joined,
    observed,
    read,
    stored,
)
from changes_text import FEW, table, told
from changes_worse import section

# ---- the page -------------------------------------------------------------------------------------------------------
HEAD: Final = """# What each missing piece of physics changed

Made by `python tests/truth/changes_page.py` from `tests/truth/changes/`: what was missing in memory and in time, where
the rule comes from, and the errors of the measured runs on which it is seen: at {old},
at {first}, and now.

Errors are simulated over measured, in per cent; "left out": by a fit of step times that has not seen the run, by which
`validate` judges; "none": not simulated, or refused, or not compared. Of more than {few} observations: their number,
the median and both ends. Nearer and farther: by more than {memory:.1%} of memory, or by more than {time:.0%} of a
step's time and what equal runs of the source differ by."""


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


def page() -> str:
    """Markdown text of `docs/changes.md`."""
    seen, noise = read()
    items = json.loads((CHANGES / "items.json").read_text(encoding="utf-8"))
    old, first = (f"{commit} ({said})" for commit, said in COMMITS.items())
    head = HEAD.format(old=old, first=first, few=FEW, memory=MOVED[MEMORY], time=MOVED[FITTED])
    return "\n\n".join([
        head, table(("what was missing", "source of the rule", "what came of it"),
                    ((item["what"], item["source"], item["came"]) for item in items)),
        "## Readings", table(("what", "runs", "quantity", *COMMITS, "now", "nearer", "farther"),
                             item_rows(items, seen, noise)),
        section(seen, noise)]) + "\n"


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
