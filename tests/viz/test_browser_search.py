"""Pages of searches in a real browser: brushing, filters, links, commands, sizes of labels, 5,000 layouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Tab, tab
from found import found
from reports import EVIL, swept_report
from simcore.results.found import SearchResult
from viz.pages.page import render, render_search

pytestmark = pytest.mark.slow
LONG = "_a_word_without_any_place_to_break" * 4


@pytest.fixture
def shown(browser: Tab, tmp_path: Path) -> Iterator[Any]:
    """Function that shows a search; a message on the browser's console fails the test at its end."""
    browser.complaints.clear()

    def show(result: SearchResult, width: int = 1280, *, dark: bool = False) -> Tab:
        (tmp_path / "page.html").write_text(render_search([result]), encoding="utf-8")
        browser.open(tmp_path / "page.html", width, dark=dark)
        return browser

    yield show
    assert browser.complaints == []


LEFT = "[...document.querySelectorAll('.batch tbody tr[data-n]')].filter(e => !e.hidden).map(e => +e.dataset.n)"
POINTS = "[...document.querySelectorAll('.pareto .point')].filter(e => e.style.display != 'none')" \
         ".map(e => +e.dataset.row)"
LINES = "[...document.querySelectorAll('.thread-line:not(.away)')].map(e => +e.dataset.row)"
ON_EDGE = "[...document.querySelectorAll('.pareto .on-edge')].map(e => +e.dataset.row)"
LISTED = "[...document.querySelectorAll('.front-list li[data-row]')].filter(e => !e.hidden).map(e => +e.dataset.row)"
SOON = "new Promise(done => setTimeout(done, 100))"


def box(page: Tab, element: str) -> list[float]:
    """Left, top, width and height of an element in view."""
    measured = ("(e => { e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
                " return [b.left, b.top, b.width, b.height]; })")
    found_box: list[float] = page.run(f"{measured}({element})")
    return found_box


def drag(page: Tab, start: tuple[float, float], end: tuple[float, float]) -> None:
    for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


def test_a_rectangle_on_the_chart_leaves_the_layouts_in_it(shown: Any) -> None:
    result = found(120)
    page = shown(result)
    left, top, width, _ = box(page, "document.querySelector('.pareto')")
    drag(page, (left + 0.3 * width, top + 60), (left + 0.7 * width, top + 250))
    low, high, least, most = page.run("['tokens', 'peak'].flatMap(name => [...document.querySelectorAll("
                                      "`[data-measure=${name}] input`)].map(e => +e.value))")
    expected = [n for n, one in enumerate(result.ranked) if low <= one.tokens_per_s_per_gpu <= high
                and least <= one.peak_bytes / 2**30 <= most]
    assert 5 < len(expected) < 110
    assert page.run(LEFT) == expected
    assert sorted(page.run(POINTS)) == sorted(page.run(LINES)) == expected
    inside = [result.ranked[n] for n in expected]
    best = [n for n in expected if not any(
        other.tokens_per_s_per_gpu >= result.ranked[n].tokens_per_s_per_gpu
        and other.peak_bytes <= result.ranked[n].peak_bytes and other != result.ranked[n] for other in inside)]
    assert sorted(page.run(ON_EDGE)) == sorted(page.run(LISTED)) == best
    page.run("document.querySelector('.reset').click()")
    assert len(page.run(LEFT)) == 120
    assert page.run("[...document.querySelectorAll('.range input')].every(e => e.value === '')")


def test_a_drag_along_an_axis_checks_its_values_and_a_click_takes_all(shown: Any) -> None:
    result = found(120)
    page = shown(result)
    axis = "[...document.querySelectorAll('.axis')].find(e => e.dataset.key === 'tp').querySelector('.drag')"
    left, top, width, height = box(page, axis)
    drag(page, (left + width / 2, top + height - 5), (left + width / 2, top + height / 2))
    assert page.run("[...document.querySelectorAll('[data-key=tp] input:checked')].map(e => e.value)") == ["1", "2"]
    assert page.run(LEFT) == [n for n, one in enumerate(result.ranked) if one.keys["mesh.tp"] <= 2]
    drag(page, (left + width / 2, top + 30), (left + width / 2, top + 30))
    assert len(page.run(LEFT)) == 120


def test_bounds_are_typed_with_the_keyboard(shown: Any) -> None:
    result = found(120)
    page = shown(result)
    page.run("document.querySelector('[data-measure=peak] input').focus()")
    for key in "30":
        page.press(key)
    page.press("Tab")
    assert page.run(LEFT) == [n for n, one in enumerate(result.ranked) if one.peak_bytes / 2**30 >= 30]
    assert page.run("document.activeElement.closest('[data-measure=peak]') !== null")


def test_a_point_and_a_link_open_the_layout_with_its_command(shown: Any) -> None:
    result = found(300)
    page = shown(result)
    opened = "[...document.querySelectorAll('tr.opened pre')].map(e => e.textContent)"
    for script, row in (("document.querySelector('.pareto .point[data-row=\"222\"]').dispatchEvent("
                         "new MouseEvent('click', {bubbles: true}))", 222),
                        ("document.querySelector('.front-list a').focus()", None)):
        page.run(script)
        n = page.run(LISTED)[0] if row is None else row
        if row is None:
            page.press("Enter")
            page.run(SOON)
        numbers, drawn = page.run(opened)
        assert numbers.startswith("rankscope run 'my files/mine.yaml' --set training.seq_len=4096 --set framework=")
        assert f"--set mesh.tp={result.ranked[n].keys['mesh.tp']} " in numbers
        assert drawn == f"{numbers.replace(' run ', ' report ', 1)} -o layout-{n + 1}.html"
        assert page.run("document.querySelector('tr.opened').previousElementSibling.dataset.n") == str(n)
        assert page.run("document.querySelector('tr.picked').checkVisibility()")


def test_a_layout_is_named_where_the_mouse_is(shown: Any) -> None:
    page = shown(found(40))
    left, top, width, height = box(page, "document.querySelector('.pareto .point[data-row=\"7\"]')")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 2, y=top + height / 2)
    named = page.run("document.querySelector('.told').textContent")
    row = int(page.run("document.querySelector('.point.lit').dataset.row"))
    assert named.startswith(page.run(f"document.querySelectorAll('.opens')[{row}].textContent"))
    assert page.run("document.querySelector('.thread-line.lit').dataset.row") == str(row)


TOO_WIDE = """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('.scroll, svg')
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
OVERLAPS = """(list => { const boxes = [...document.querySelectorAll(list)].filter(e => e.checkVisibility()).flatMap(
  (e, n) => [...e.children].flatMap(c => [...c.getClientRects()]).map(b => [n, b]));
  return boxes.flatMap(([n, a]) => boxes.filter(([m, b]) => m > n && a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 3 && b.top < a.bottom - 3)).length; })"""


@pytest.mark.parametrize("width", [1280, 600, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_long_names_are_inside_the_page_and_apart(shown: Any, width: int, dark: bool) -> None:
    page = shown(found(60, text=LONG), width, dark=dark)
    assert page.run(TOO_WIDE) == []
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(f"{OVERLAPS}('.front-list li')") == 0


@pytest.mark.parametrize("width", [1280, 900, 390])
def test_long_names_on_the_edge_of_a_batch_are_apart(browser: Tab, tmp_path: Path, width: int) -> None:
    reports = [swept_report(n).model_copy(update={"name": f"s[mesh.tp={n}{LONG}]"}) for n in range(40)]
    for n, report in enumerate(reports):  # each is on the edge
        assert report.time is not None
        rank = report.ranks[0]
        assert rank.peak is not None
        peak = rank.peak.model_copy(update={"device_bytes": (60 - n) * 2**30})
        time = report.time.model_copy(update={"step_s": 1 + n / 9})
        reports[n] = report.model_copy(update={"ranks": (rank.model_copy(update={"peak": peak}),), "time": time})
    (tmp_path / "page.html").write_text(render(reports), encoding="utf-8")
    browser.open(tmp_path / "page.html", width)
    browser.run("document.querySelector('.edge-list').open = true")
    assert browser.run("document.querySelectorAll('.edge-list li').length") == 13
    assert browser.run(f"{OVERLAPS}('.edge-list li')") == 0
    assert browser.run(TOO_WIDE) == []


def test_names_that_are_programs_stay_text(shown: Any) -> None:
    page = shown(found(20, text=f"{EVIL.replace(chr(0xd800), '')}<img src=x onerror=\"document.title='harmed'\">"))
    page.run("document.querySelectorAll('.opens').forEach(button => button.click())")
    page.run("document.querySelector('.filters input').click()")
    assert page.run("document.title !== 'harmed' && !document.querySelector('img')")
    assert page.run("document.querySelectorAll('tr.opened').length") >= 0


def test_five_thousand_layouts_open_in_300_megabytes(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render_search([found(5000)]), encoding="utf-8")
    with tab() as fresh:  # a browser keeps pages that it showed before in its memory
        fresh.open(page)
        assert fresh.memory() < 300e6
        assert fresh.run("document.querySelectorAll('.batch tr[data-n]').length") == 5000
        assert fresh.complaints == []
