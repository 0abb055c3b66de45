"""Page of a search: every layout is on it, its commands are right, hostile names are text."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from found import found
from reports import EVIL, parsed
from simcore.results.found import SearchCounts
from viz.pages.page import render_search


def opened(page: str) -> list[dict[str, Any]]:
    """Data of each search on a page."""
    return [json.loads(text) for text in re.findall(
        r'<script type="application/json" class="opened-rows">(.*?)</script>', page, flags=re.DOTALL)]


def test_every_layout_is_a_row_a_point_and_a_line() -> None:
    result = found(130)
    root = parsed(render_search([result]))
    rows = [row for row in root.iter("tr") if row.get("data-n")]
    assert [row.get("data-n") for row in rows] == [str(n) for n in range(130)]
    for row, one in zip(rows, result.ranked, strict=True):
        words = " ".join(row.itertext())
        assert one.layout in words
        assert f"{one.tokens_per_s_per_gpu:,.0f}" in words
        assert one.evidence in words
    for css in ("point", "thread-line"):
        drawn = [e for e in root.iter() if css in (e.get("class") or "").split() and e.get("data-row")]
        assert sorted(int(e.get("data-row", "")) for e in drawn) == list(range(130))


def test_the_numbers_that_filters_read_are_those_of_the_layouts() -> None:
    result = found(30)
    root = parsed(render_search([result]))
    fields = [e.get("data-measure") for e in root.iter("fieldset") if e.get("data-measure")]
    assert fields == ["tokens", "peak", "step", "cost"]
    keys = [e.get("data-key") for e in root.iter("fieldset") if e.get("data-key")]
    for row in (row for row in root.iter("tr") if row.get("data-n")):
        one = result.ranked[int(row.get("data-n", ""))]
        assert json.loads(row.get("data-m", "")) == [
            one.tokens_per_s_per_gpu, one.peak_bytes / 2**30, one.step_s, one.usd_per_million_tokens]
        texts = dict(zip(keys, json.loads(row.get("data-f", "")), strict=True))
        assert texts["tp"] == str(one.keys["mesh.tp"])
        assert texts["Pareto set"] == ("yes" if one.is_pareto else "no")


def test_a_command_names_the_file_and_every_key() -> None:
    result = found(30, text=" it's")
    (data,) = opened(render_search([result]))
    for one, row in zip(result.ranked, data["rows"], strict=True):
        words = shlex.split(f"{data['path']} {' '.join(data['arguments'][place] for place in row['command'])}")
        assert tuple(words) == result.arguments(one)
        assert words[0] == "my files/mine it's.yaml"
        assert f"mesh.tp={one.keys['mesh.tp']}" in words
        assert "training.seq_len=4096" in words


def test_a_search_of_a_scenario_without_a_file_has_no_command() -> None:
    (data,) = opened(render_search([found(4, path="")]))
    assert data["path"] == ""


@pytest.mark.parametrize("text", [EVIL.replace("\ud800", ""), "\u2028</script><img src=x onerror=alert(1)>"])
def test_hostile_names_are_text(text: str) -> None:
    page = render_search([found(12, text=text), found(3, text=text)])
    root = parsed(page)
    assert not list(root.iter("img"))
    assert page.count("<script") == 3  # the data of two searches, and the page's own script
    for data in re.findall(r'class="opened-rows">(.*?)</script>', page, flags=re.DOTALL):
        assert not set("<>&\u2028\x00\x1b") & set(data)


def test_ids_are_unique_where_a_page_has_several_searches() -> None:
    root = parsed(render_search([found(12), found(12, seed=2)]))
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    links = [e.get("href", "")[1:] for e in root.iter("a")]
    assert links
    assert set(links) <= set(ids)


def test_what_is_left_out_is_counted_by_rule_and_by_bound() -> None:
    words = " ".join(" ".join(parsed(render_search([found(9)])).itertext()).split())
    for part in ("refused by a rule 900", "too large at rest, by a proven bound 100", "out of memory 200",
                 "all 1,243", "900 illegal tp 3 divides nothing"):
        assert part in words
    assert "--exhaustive" not in words
    counts = found(9).counts.model_copy(update={"slower": 55})
    assert "55 more fit and are not on this page" in render_search([found(9, counts=counts)])


def test_a_search_in_which_nothing_fits_has_counts_alone() -> None:
    counts = SearchCounts(candidates=7, refused=7, at_rest=0, oom=0, unsure=0, excluded=0, slower=0, ranked=0, alike=0,
                          simulated=0, timed=0)
    page = render_search([found(1, ranked=(), best=(), pareto=(), counts=counts)])
    assert "No layout fits, of 7." in page
    assert "refused by a rule" in page
    assert "<form" not in page
