from __future__ import annotations

import io

import pytest
from rich.console import Console

from fakes import illegal, rank, report
from simcore import table
from simcore.compare import compare
from simcore.report import Report


def shown(*parts: object, width: int = 240) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(*parts, sep="\n")
    return stream.getvalue()


def test_one_line_says_what_a_person_asks_first() -> None:
    text = shown(*table.summary([report("nano", 40), report("big", 100), illegal("odd")], 240))
    nano = next(line for line in text.splitlines() if "nano" in line)
    for word in ("fsdp2", "2/4/1/2/4", "16", "fits", "7.00 GiB", "40.00 GiB", "80.00 GiB", "████░░░░  50%",
                 "backward, layers.51", "6.00 GiB", "3.00 GiB", "2.00 GiB", "500 ms", "12,346"):
        assert word in nano
    assert "OOM" in text
    assert "125%" in text
    assert "illegal" in text


def test_a_narrow_terminal_gets_two_tables() -> None:
    tables = table.summary([report("nano")], 120)
    assert len(tables) == 2
    text = shown(*tables, width=150)
    assert max(map(len, text.splitlines())) <= 150
    assert text.count("nano") == 2


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (report(), "fits"),
        (report(peak_gib=100), "OOM"),
        (illegal("a"), "illegal"),
        (report(peak_gib=None), "placed"),
        (report(peak_gib=None, ranks=()), "legal"),
    ],
)
def test_the_verdict_is_a_word(result: Report, word: str) -> None:
    assert table.verdict(result) == word


def test_replicas_of_shards_are_told_apart_from_one_axis() -> None:
    hsdp = report(scenario={"mesh": {"dp_replicate": 2, "dp_shard": 8}})
    assert "1/2x8/1/1/1" in shown(*table.summary([hsdp], 240))


def test_names_cannot_steer_the_terminal() -> None:
    text = shown(*table.summary([report("evil\x1b[31m[bold]x")], 240))
    assert "\x1b" not in text
    assert "[bold]x" in text


def test_placement_lists_components_padding_and_total() -> None:
    text = shown(*table.placement(report(ranks=(rank(None, apportioned=True),))))
    assert "ranks 0-3 (4 alike), stage 0, pp=0 dp_shard=0-3" in text
    assert "apportioned" in text
    total = next(line for line in text.splitlines() if line.strip().startswith("total"))
    for word in ("2,147,483,648", "536,870,912", "4.00 GiB", "1.00 GiB", "2.00 GiB", "7.00 GiB"):
        assert word in total
    assert "1.00 KiB" in text


def test_comparison_shows_signs_and_percent() -> None:
    text = shown(table.comparison(compare(report("a", 40), report("b", 50))))
    device = next(line for line in text.splitlines() if "device" in line)
    for word in ("40.00 GiB", "50.00 GiB", "+10.00 GiB", "+25.0"):
        assert word in device


def test_a_pipe_gets_lines_as_long_as_the_table_wants() -> None:
    stream = io.StringIO()
    console = table.console(stream)
    console.print(*table.summary([report("nano")], console.width), sep="\n")
    assert "\x1b" not in stream.getvalue()
    assert "tokens/s/GPU" in stream.getvalue().splitlines()[1]
