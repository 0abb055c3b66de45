"""Cards touch nothing around them, and are readable on light and on dark paper."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import fakes
from browser import tab
from cards import Shown, html, parsed, words
from simcore.results.report import Report
from viz.notebook.fragment import DARK


def test_nothing_becomes_markup_and_nothing_runs(every_result: list[Shown]) -> None:
    for shown in every_result:
        root, text = parsed(shown), html(shown)
        assert not {e.tag for e in root.iter()} & {"script", "link", "img", "iframe", "object", "a", "form"}
        assert not [name for e in root.iter() for name in e.attrib if name.startswith("on") or name in (
            "style", "src", "href")]
        assert not re.search(r"https?:|@import|url\((?!#)", text)
        assert not set(text) & {"\x00", "\x1b", "\ud800"}
        text.encode()


def test_no_rule_reaches_what_is_around(every_result: list[Shown]) -> None:
    for shown in every_result:
        root = parsed(shown)
        own, style = root.get("id"), root.find("style")
        assert style is not None
        flat = re.sub(r"@container[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", style.text or "")
        selectors = [name.strip() for group in re.findall(r"([^{}]+)\{[^{}]*\}", flat) for name in group.split(",")]
        assert len(selectors) > 40
        assert [selector for selector in selectors if not re.search(rf"#{own}(?![\w-])", selector)] == []


def test_ids_are_not_those_of_another_card(every_result: list[Shown]) -> None:
    """Textures are not shared: a texture of another card is gone when that card is folded away."""
    cards = [parsed(shown) for shown in every_result]
    identities = [{e.get("id") for e in card.iter() if e.get("id")} for card in cards]
    assert sum(map(len, identities)) == len(set.union(*identities))
    for card, own in zip(cards, identities, strict=True):
        text = ET.tostring(card, encoding="unicode")
        assert set(re.findall(r"url\(#([^)]+)\)", text)) <= own
        for name in ("aria-labelledby", "aria-describedby"):
            assert {e.attrib[name] for e in card.iter() if name in e.attrib} <= own


def test_a_card_is_the_same_each_time(simulated: Report) -> None:
    assert html(simulated) == html(Report.model_validate_json(simulated.model_dump_json()))


def test_cards_are_small(every_result: list[Shown]) -> None:
    assert max(len(html(shown)) for shown in every_result) < 150_000
    assert len(html(fakes.report("a"))) < 40_000


def test_a_name_that_looks_like_a_texture_stays_as_it_is() -> None:
    assert "is url(#dots)" in words(fakes.report("is url(#dots)"))


# ---- in a browser ---------------------------------------------------------------------------------------------------
AROUND = {"light": '<body data-jp-theme-light="true" style="background: #fff">',
          "dark": '<body data-jp-theme-light="false" style="background: #111">',
          "code": '<body class="vscode-dark" style="background: #111">', "plain": "<body>"}
JUPYTER = """<style>.jp dl dt { float: left; clear: left; width: 20%; font-weight: bold }
  .jp dl dd { margin-left: 22% } .jp table { table-layout: fixed; margin: 9em auto; font-size: 4px }
  .jp td, .jp th { text-align: right; padding: 9em; white-space: normal; border: 9px solid }
  .jp tbody tr:nth-child(odd) { background: red } .jp ul { list-style: disc; padding: 2em } .jp p { margin: 5em }
  .jp svg { max-width: 10px } .jp code { background: red; padding: 3em }</style>"""
"""Rules such as notebooks have for the HTML of a cell."""
INK = """(() => { const card = document.querySelector('.rankscope'), own = getComputedStyle(card);
  const lum = c => c.match(/[0-9.]+/g).slice(0, 3).reduce((s, v, i) => s + v / 255 * [0.2126, 0.7152, 0.0722][i], 0);
  return [lum(own.color), lum(own.backgroundColor)]; })()"""
OVER = """[...document.querySelectorAll('.rankscope .bars g')].map(row => [...row.querySelectorAll('text')]
  .map(e => [e.textContent, e.getBoundingClientRect()]).filter(([, box]) => box.width))
  .filter(([a, b]) => a[1].right > b[1].left).map(([a, b]) => a[0] + ' over ' + b[0])"""
"""Rows of bars whose label overlaps their value."""
AS_MEANT = """(() => { const found = [], all = what => [...document.querySelectorAll('.rankscope ' + what)];
  const box = e => e.getBoundingClientRect(), look = e => getComputedStyle(e);
  for (const e of all('.tiles dt')) if (box(e).bottom > box(e.nextSibling).top + 1)
    found.push('a number beside its name: ' + e.textContent);
  for (const e of all('tr, code')) if (look(e).backgroundColor !== 'rgba(0, 0, 0, 0)') found.push(e.tagName);
  for (const e of all('table')) if (look(e).fontSize !== '13px') found.push('small');
  for (const e of all('p, ul')) if (parseFloat(look(e).marginBottom) > 30) found.push('far: ' + e.className);
  for (const e of all('svg.chart')) if (box(e).width < 100) found.push('narrow');
  return found; })()"""


@pytest.mark.slow
def test_cards_read_as_the_notebook_is_and_stay_inside_it(every_result: list[Shown], tmp_path: Path) -> None:
    with tab() as browser:
        for name, around in AROUND.items():
            page = tmp_path / f"{name}.html"
            cards = "".join(f"<div class=jp>{html(shown)}</div>" for shown in every_result)
            text = f"<!doctype html><meta charset=utf-8>{JUPYTER}{around}{cards}<p id=out>x</p></body>"
            page.write_text(text, encoding="utf-8")
            for width in (1280, 940, 700, 390):
                browser.open(page, width, dark=name == "light")
                ink, paper = browser.run(INK)
                is_dark = name in ("dark", "code")
                assert (ink > 0.7, paper < 0.2) == (is_dark, is_dark), name
                assert browser.run("document.documentElement.scrollWidth") <= width
                assert browser.run(OVER) == []
            assert browser.run(AS_MEANT) == []
        assert browser.run("getComputedStyle(document.getElementById('out')).fontSize") == "16px"
        assert browser.complaints == []


def test_every_way_to_be_dark_is_asked_for(simulated: Report) -> None:
    style = parsed(simulated).find("style")
    assert style is not None
    assert all(f"{theme} #" in str(style.text) for theme in DARK)
