from __future__ import annotations

import io

import pytest
from rich.console import Console

from fakes import illegal, rank, report
from simcore import summary, table
from simcore.compare import compare
from simcore.report import Report


def shown(*parts: object, width: int = 240) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(*parts, sep="\n")
    return stream.getvalue()


def test_one_line_says_what_a_person_asks_first() -> None:
    text = shown(*summary.summary([report("nano", 40), report("big", 100), illegal("odd")], 240))
    nano = next(line for line in text.splitlines() if "nano" in line)
    for word in ("fsdp2", "pp2 dp4 tp2 ep4", " 16 ", "lora", "7.00", "40.00", "80.00", "████░░░░  50%", "fits",
                 "backward, layers.51", "6.00", "3.00", "2.00", "500 ms", "12,346"):
        assert word in nano
    assert "OOM" in text
    assert "125%" in text
    assert "illegal" in text


@pytest.mark.parametrize(("width", "num_tables"), [(240, 1), (200, 1), (120, 2), (80, 3)])
def test_what_is_too_wide_goes_into_another_table(width: int, num_tables: int) -> None:
    text = shown(*summary.summary([report("nano")], width), width=width)
    assert text.count("nano") == num_tables
    assert "…" not in text


def test_long_names_of_a_sweep_go_on_below() -> None:
    name = "nano[framework=megatron,mesh.dp_shard=8,training.recompute=full]"
    text = shown(*summary.summary([report(name), report("short")], 200), width=200)
    cells = [line.split("  fsdp2")[0][:52].strip() for line in text.splitlines()]
    assert name in "".join(cells)
    assert max(map(len, text.splitlines())) <= 200


def test_a_batch_ends_with_how_many() -> None:
    text = shown(*summary.summary([report("a"), report("b"), report("big", 100), illegal("odd")], 240))
    assert text.splitlines()[-1] == "4 scenarios: 2 fits, 1 illegal, 1 OOM"


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
    assert summary.verdict(result) == word


def test_replicas_of_shards_are_told_apart_from_one_axis() -> None:
    hsdp = report(scenario={"mesh": {"dp_replicate": 2, "dp_shard": 8}})
    assert "  dp2x8  " in shown(*summary.summary([hsdp], 240))


def test_names_cannot_steer_the_terminal() -> None:
    text = shown(*summary.summary([report("evil\x1b[31m[bold]x")], 240))
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
    console.print(*summary.summary([report("nano")], console.width), sep="\n")
    assert "\x1b" not in stream.getvalue()
    assert "per GPU" in stream.getvalue().splitlines()[1]
