"""Parts that drawings of layouts share: weighted choices, sizes of small models, and the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def chosen(rng: random.Random, *weighted: tuple[Any, float]) -> Any:
    """One of the values, each as often as its weight says."""
    return rng.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]


def maybe(rng: random.Random, case: Case, share: float, **given: Any) -> None:
    """Adds `given` to the case, in a share of all draws."""
    if rng.random() < share:
        case.update(given)


def heads(rng: random.Random) -> dict[str, int]:
    """Attention heads, heads of keys and values, and their width."""
    count = chosen(rng, (4, 3), (8, 5), (12, 1))
    return {"num_attention_heads": count, "num_key_value_heads": count // rng.choice((1, 1, 2, 2, 4)),
            "head_dim": rng.choice((16, 32))}


def pattern(rng: random.Random) -> str:
    """Layers of a hybrid: one of each kind, then others."""
    letters = list("ME*-" if rng.random() < 0.5 else "ME*")
    letters += rng.choices(letters, k=rng.choice((0, 1, 2, 3)))
    rng.shuffle(letters)
    return "".join(letters)


def numbered(letter: str, one: Callable[[random.Random], Case]) -> Callable[[int, int], list[Case]]:
    """A drawing of so many cases by a seed; the first ones of a longer list are those of a shorter."""
    def drawn(seed: int, count: int) -> list[Case]:
        rng = random.Random(seed)
        return [{"name": f"{letter}{number}", **one(rng)} for number in range(count)]

    return drawn


def by_name(cases: list[Case]) -> dict[str, Case]:
    """The cases by their names."""
    return {case["name"]: {key: value for key, value in case.items() if key != "name"} for case in cases}


def print_cases(drawn: Callable[[int, int], list[Case]], about: str | None, seed: int, count: int) -> None:
    """Prints the cases of a drawing, one a line. `about`: its page of help."""
    asked = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--count", type=int, default=count)
    asked.add_argument("--seed", type=int, default=seed)
    given = asked.parse_args()
    print("\n".join(json.dumps(case) for case in drawn(given.seed, given.count)))


def main(drawn: Callable[[int, int], list[Case]], probe: str, stored: Path, seed: int, count: int) -> None:
    """Prints the cases, one a line, or measures them."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--seed", type=int, default=seed)
    asked.add_argument("--count", type=int, default=count)
    asked.add_argument("--measure", action="store_true", help="measure the cases and write the file")
    given = asked.parse_args()
    cases = drawn(given.seed, given.count)
    if not given.measure:
        print("\n".join(json.dumps(case) for case in cases))
        return
    from oracle.rows import read_rows, write_rows
    from regenerate import key, measure

    rows = {key(row): row for row in read_rows(stored)}
    order = [key(case) for case in cases]

    def on_row(row: Case) -> None:
        rows[key(row)] = row
        print(row["name"], row.get("error", "measured"), flush=True)
        write_rows(stored, [rows[k] for k in order if k in rows])

    measure(probe, cases, on_row)


def print_apart(cases: dict[str, Case], measured: Callable[[Case], Case], stored: Path | None = None, *,
                only: Sequence[str] = ()) -> None:
    """Prints what is measured of the cases, each in a process that is forked when all is imported.

    Where a library raises, its last word is the answer. `stored`: the file that it is written into instead. `only`:
    names of cases to measure, all if there are none.
    """
    import json_lines
    import torch
    from oracle.apart import run_apart

    def answered(case: Case) -> Case:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return {key: value for key, value in measured(case).items() if key != "case"}
        except Exception as told:  # noqa: BLE001 - whatever a library raises is its answer
            return {"error": f"{type(told).__name__}: {told}".splitlines()[0]}

    torch.set_num_threads(1)  # a fork has no other thread
    with contextlib.redirect_stdout(sys.stderr):
        found = run_apart({name: case for name, case in cases.items() if not only or name in only}, answered)
    rows = {name: {"case": {k: v for k, v in row.items() if k != "found"}, **row["found"]}
            for name, row in found.items()}
    text = f"{{\n{json_lines.by_name(rows)}\n}}"
    if stored is None:
        print(text)
    else:
        stored.write_text(text + "\n", encoding="utf-8")
