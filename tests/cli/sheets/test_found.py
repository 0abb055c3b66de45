"""Tables of a search in narrow and wide terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from found import found
from simcore.cli.sheets.found import answer
from simcore.results.found import SearchResult
from simcore.units import in_gib


def lines(result: SearchResult, width: int) -> list[str]:
    stream = io.StringIO()
    screen = Console(file=stream, width=width, color_system=None, markup=False, highlight=False)
    screen.print(*answer(result, width), sep="\n", soft_wrap=True)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_breaks_no_name_and_no_number(width: int) -> None:
    result = found(30)
    told = lines(result, width)
    assert max(map(len, told)) <= width
    there = {word for line in told for word in line.split()}
    for one in result.best:
        words = {one.framework, one.topology, one.verdict, f"{one.num_gpus:,}", in_gib(one.peak_bytes),
                 f"{one.tokens_per_s_per_gpu:,.0f}", f"{one.usd_per_million_tokens:.3f}",
                 f"recompute={one.keys['training.recompute']}", *one.layout.replace(" tp ", " tp=").split()[2:3]}
        assert words <= there


def test_a_wide_terminal_has_a_column_for_each_thing() -> None:
    told = lines(found(30), 200)
    head = next(line for line in told if "layout" in line and "GPUs" in line)
    assert head.split()[:4] == ["#", "framework", "topology", "GPUs"]
    assert {"verdict", "evidence", "other", "keys"} <= set(head.split())


def test_places_are_those_of_the_ranking_in_both_tables() -> None:
    result = found(30)
    told = lines(result, 80)
    for place, one in enumerate(result.ranked, start=1):
        if one.is_pareto:
            assert any(line.startswith(f"{place}* ") for line in told)


def test_what_all_share_is_told_once_below() -> None:
    one = found(1).best[0].model_copy(update={"verdict": "fits", "evidence": "none"})
    alike = tuple(one.model_copy(update={"peak_bytes": one.peak_bytes - place}) for place in range(3))
    told = lines(found(3, best=alike, ranked=alike, pareto=alike[:1]), 80)
    assert f"all: framework {one.framework}, topology {one.topology}, verdict fits" in told
    assert "evidence: all none" in told
    mixed = (alike[0].model_copy(update={"evidence": "measured"}), *alike[1:])
    assert "evidence: 1 measured; others none" in lines(found(3, best=mixed, ranked=mixed), 80)


def test_rules_wrap_between_words() -> None:
    told = lines(found(3, text=" of_a_long_file_name" * 4), 80)
    rule = next(at for at, line in enumerate(told) if line.startswith("  900 illegal"))
    assert told[rule + 1].startswith("    of_a_long_file_name")
