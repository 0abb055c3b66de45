"""The summary of a batch: what a person asks first, at any width, of one scenario or a thousand."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from fakes import illegal, report
from simcore.cli.sheets import summary
from simcore.cli.sheets.tables import console
from simcore.results.evidence import COUNTED, Evidence, EvidenceKind
from simcore.results.report import Report


def shown(*parts: object, width: int = 240, colours: bool = False) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system="standard" if colours else None, force_terminal=colours).print(
        *parts, sep="\n"
    )
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


def with_evidence(name: str, kind: EvidenceKind) -> Report:
    found = Evidence(kind=kind, layout_class="gathered, moe, full", class_runs=3 * (kind == "class"))
    return report(name).model_copy(update={"evidence": found})


def test_what_is_known_of_a_layout_is_one_line_below_the_table() -> None:
    alone = with_evidence("a", "class")
    assert f"\nevidence: {alone.evidence.sentence(has_phases=False) if alone.evidence else ''}\n" in shown(
        *summary.summary([alone], 240))
    assert "evidence" not in shown(*summary.summary([report("a")], 240))


def test_of_several_it_is_counted() -> None:
    text = shown(*summary.summary([with_evidence("a", "class"), with_evidence("b", "none"), with_evidence("c", "class"),
                                   illegal("odd")], 240))
    assert f"evidence: 2 {COUNTED['class']}; 1 {COUNTED['none']}\n" in text


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


def test_unsure_scenarios_are_counted_and_named() -> None:
    sure, border, over = report("sure", 79), report("border", 79.5), report("over", 100)
    border = border.model_copy(update={"verdict": "unsure"})
    text = shown(*summary.summary([sure, border, over], 240))
    assert text.splitlines()[-2:] == ["", "unsure (measured errors of such layouts reach across the limit): border"]
    assert "3 scenarios: 1 fits, 1 unsure, 1 OOM" in text
    assert "unsure" not in shown(*summary.summary([sure, over], 240))


def test_a_batch_ends_with_how_many() -> None:
    text = shown(*summary.summary([report("a"), report("b"), report("big", 100), illegal("odd")], 240))
    assert text.splitlines()[-2:] == ["4 scenarios: 2 fits, 1 illegal, 1 OOM",
                                      "  1 illegal: ep=3 does not divide 128 experts [fsdp2: experts]"]


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


def test_a_pipe_gets_lines_as_long_as_the_table_wants() -> None:
    stream = io.StringIO()
    screen = console(stream)
    screen.print(*summary.summary([report("nano")], screen.width), sep="\n")
    assert "\x1b" not in stream.getvalue()
    assert "per GPU" in stream.getvalue().splitlines()[1]


def test_columns_stand_below_each_other() -> None:
    """To the character: names of two lines and of wide letters, headings of two lines, cells left and right."""
    reports = [report("nano[mesh.ep=1,training.seq_len=2048]", None), illegal("模型")]
    assert shown(*summary.summary(reports, 100), width=100).splitlines() == [
        "                                                                    at rest         ",
        "scenario                  framework  layout           GPUs  method      GiB  verdict",
        "─" * 84,
        "nano[mesh.ep=1,           fsdp2      pp2 dp4 tp2 ep4    16  lora       7.00  placed ",
        "  training.seq_len=2048]                                                            ",
        "模型                      fsdp2                                              illegal",
        "",
        "2 scenarios: 1 placed, 1 illegal",
        "  1 illegal: ep=3 does not divide 128 experts [fsdp2: experts]",
    ]


def test_every_line_of_a_table_is_as_wide() -> None:
    reports = [report("nano"), report("模型", 100), illegal("odd"), report("x" * 90)]
    lines = shown(*summary.summary(reports, 240)).splitlines()
    assert len({cell_len(line) for line in lines[:-3]}) == 1


def test_colour_repeats_the_verdict() -> None:
    text = shown(*summary.summary([report("nano"), report("big", 100)], 240), colours=True)
    assert "\x1b[32mfits   \x1b[0m" in text
    assert "\x1b[1;31mOOM    \x1b[0m" in text
    assert "\x1b[1;31m████████ 125%\x1b[0m" in text


def test_a_thousand_rows_are_all_shown() -> None:
    reports = [report(f"sweep[framework=fsdp2,training.seq_len={i}]") for i in range(1000)]
    text = shown(*summary.summary(reports, 240))
    assert text.count("seq_len") == 1000
