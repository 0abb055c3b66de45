"""The card of a table of results."""

from __future__ import annotations

import fakes
from cards import parsed, words
from simcore import table


def test_a_table_shows_what_tells_rows_apart() -> None:
    long = fakes.report("long", scenario={**fakes.report().scenario, "training": {"method": "lora", "seq_len": 8192}})
    short = fakes.report("short", scenario={**fakes.report().scenario, "training": {"method": "lora", "seq_len": 4096}})
    heads = [cell.text for cell in parsed(table([long, short])).iter("th") if cell.get("scope") == "col"]
    assert heads[:3] == ["name", "training.seq_len", "verdict"]
    assert "method" not in heads
    assert len(heads) < 12


def test_a_table_of_all_sorts_stays_in_sight() -> None:
    asked = fakes.report().scenario
    strange = fakes.report("b", scenario={**asked, "rl": {f"key{n}": n for n in range(30)}})
    heads = [cell.text for cell in parsed(table([fakes.report("a"), strange])).iter("th") if cell.get("scope") == "col"]
    assert len([head for head in heads if str(head).startswith("rl.")]) == 8


def test_a_table_of_many_rows_shows_the_first() -> None:
    results = table([fakes.report(f"n{n}", 20 + n % 7, 0.1 + n) for n in range(100)])
    rows = [cell.text for cell in parsed(results).iter("th") if cell.get("scope") == "row"]
    assert len(rows) == 60
    assert "100 rows; the first 60" in words(results)
    assert len([e for e in parsed(results).iter("circle") if "point" in str(e.get("class"))]) == 100
