"""Tables in which no word and no number is broken, whatever the width."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from rich.console import Console, RenderableType

from fakes import rank, report
from simcore.cli.sheets.tables import placement
from simcore.cli.sheets.word_table import WordTable

HEADS = ("layout", "GPUs", "peak", "tokens/s/GPU", "evidence")
ROWS = (("automodel dp_shard=8 ep=8 mbs=1 recompute=none", "1,016", "126.66 GiB", "16,087", "measured run"),
        ("megatron tp=8 ep=8 etp=1 use_precision_aware_optimizer=true", "8", "9.17 GiB", "1,640", "none"))


def shown(width: int, *parts: RenderableType) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, markup=False, highlight=False).print(*parts, sep="\n")
    return stream.getvalue().splitlines()


def broken(lines: Iterable[str], words: Iterable[str]) -> list[str]:
    """Words that are in no line as a whole."""
    there = {word for line in lines for word in line.split()}
    return [word for word in words if word not in there]


@pytest.mark.parametrize("width", [40, 46, 60, 79, 80, 100, 130, 240])
def test_words_and_numbers_are_whole(width: int) -> None:
    table = WordTable("#", *HEADS, left=("layout", "evidence"))
    for place, row in enumerate(ROWS, start=1):
        table.add_row(f"{place}*", *row)
    lines = shown(width, table)
    words = (word for row in (HEADS, *ROWS) for cell in row for word in cell.split() if len(word) <= max(24, width / 2))
    assert broken(lines, words) == []
    assert max(map(len, lines)) <= width
    for number in ("126.66 GiB", "9.17 GiB"):  # number and unit in one line
        assert any(number in line for line in lines)


def test_a_wide_terminal_has_a_row_in_a_line() -> None:
    table = WordTable("name", *HEADS, left=("name", "layout"))
    table.add_row("a", *ROWS[0])
    assert table.width < 120
    assert len([line for line in shown(120, table) if "automodel" in line and "measured run" in line]) == 1


def test_columns_that_do_not_fit_follow_below_with_the_names_again() -> None:
    table = WordTable("name", "first column", "second", "third", left=("name",))
    table.add_row("alpha", "1,111,111,111", "2,222,222,222", "3,333,333,333")
    lines = [line.split() for line in shown(40, table) if line.strip()]
    assert ["alpha", "1,111,111,111", "2,222,222,222"] in lines
    assert ["alpha", "3,333,333,333"] in lines


def test_a_word_that_no_line_holds_is_cut_at_its_signs() -> None:
    table = WordTable("name", "GPUs", left=("name",))
    table.add_row("sweep[training.micro_batch_size=2,mesh.ep=4]", "16")
    lines = shown(30, table)
    assert max(map(len, lines)) <= 30
    assert "".join(line[:24].strip() for line in lines[3:]) == "sweep[training.micro_batch_size=2,mesh.ep=4]"


def test_rows_keep_their_style_and_sections_when_there_is_room() -> None:
    text = shown(100, *placement(report(ranks=(rank(None),))))
    assert any(line.strip().startswith("total") for line in text)


@pytest.mark.parametrize("width", [50, 80])
def test_placement_breaks_no_number(width: int) -> None:
    lines = shown(width, *placement(report(ranks=(rank(None),))))
    assert broken(lines, ("2,147,483,648", "536,870,912", "routed_experts", "optimizer", "gradients")) == []
    assert any("4.00 GiB" in line for line in lines)
