"""Pages in a real browser: no error messages, every chart drawn, and everything that a user does with them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import small
from browser import Tab
from reports import swept_report
from simcore.results.report import Report
from simcore.simulate import simulate
from viz.pages.page import render, render_comparison

pytestmark = pytest.mark.slow
EVIL = "<script>document.title='harmed'</script><img src=x onerror=alert(1)>\x1b[31m\x00\x9b"


@pytest.fixture
def shown(browser: Tab, tmp_path: Path) -> Iterator[Any]:
    """Function that shows reports; a message on the browser's console fails the test at its end."""
    browser.complaints.clear()

    def show(*reports: Report, width: int = 1280, dark: bool = False) -> Tab:
        page = tmp_path / "page.html"
        page.write_text(render(reports), encoding="utf-8")
        browser.open(page, width, dark=dark)
        return browser

    yield show
    assert browser.complaints == []


@cache
def staged(name: str = "small") -> Report:
    """A report with pipeline stages, experts and several classes of ranks."""
    asked = small.scenario("megatron", {"pp": 5, "dp_shard": 2, "ep": 2}, microbatches=5)
    return simulate(asked, detail=True).model_copy(update={"name": name})


@cache
def other() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 8}, microbatches=1), detail=True)


DRAWN = """[...document.querySelectorAll('svg.chart')].filter(e => e.checkVisibility() && !e.closest('.key')).map(e => {
  const box = e.getBoundingClientRect();
  return [e.getAttribute('class'), box.width, box.height, e.querySelectorAll('rect, path, circle, text').length];
})"""
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility()
  && !e.closest('.scroll, .zoom, svg')
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""


OVERLAPS = """[...document.querySelectorAll('svg.chart')].filter(e => e.checkVisibility()).flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text.tick')].filter(e => e.checkVisibility()).map(e => [
    e.getBoundingClientRect(), e.textContent]);
  return boxes.flatMap(([a, one], n) => boxes.slice(n + 1).filter(([b]) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 4 && b.top < a.bottom - 4).map(([b, two]) => one + ' on ' + two)); })"""
CUT = """[...document.querySelectorAll('.numbers .scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).map(
  e => e.querySelector('caption').textContent + ' ' + e.scrollWidth + ' in ' + e.clientWidth)"""


OVER = """[...document.querySelectorAll('.bars g')].map(row => [...row.querySelectorAll('text')]
  .map(e => [e.textContent, e.getBoundingClientRect()]).filter(([, box]) => box.width))
  .filter(([a, b]) => b && a[1].right > b[1].left).map(([a, b]) => a[0] + ' over ' + b[0])"""


@pytest.mark.parametrize("width", [1280, 700, 390, 360])
def test_the_name_of_a_bar_ends_before_its_value(shown: Any, width: int) -> None:
    assert shown(staged(), width=width).run(OVER) == []


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_numbers_of_two_are_whole_and_marks_of_an_axis_are_apart(shown: Any, width: int) -> None:
    page = shown(staged(), other(), width=width)
    assert page.run(CUT) == []
    assert page.run(OVERLAPS) == []
    page = shown(staged(), width=width)
    assert page.run(OVERLAPS) == []


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_three_are_side_by_side_and_nothing_is_cut_off(browser: Tab, tmp_path: Path, width: int) -> None:
    browser.complaints.clear()
    (tmp_path / "page.html").write_text(render_comparison([staged("one"), other(), staged("three")]), encoding="utf-8")
    browser.open(tmp_path / "page.html", width)
    assert browser.run(TOO_WIDE) == []
    assert browser.run(OVERLAPS) == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert width < 700 or browser.run(CUT) == []
    charts = browser.run(DRAWN)
    assert sum(1 for name, *_ in charts if name == "chart") >= 3
    assert all(wide > 60 and high > 0 and parts > 0 for _, wide, high, parts in charts), charts
    assert browser.complaints == []


def test_a_page_ends_where_its_words_end(shown: Any) -> None:
    page = shown(*(swept_report(n) for n in range(250)))
    below = "document.documentElement.scrollHeight - document.querySelector('footer').getBoundingClientRect().bottom"
    assert page.run(f"{below} - scrollY") < 60


def test_points_of_the_edge_lie_over_the_others(shown: Any) -> None:
    page = shown(*(swept_report(n) for n in range(40)))
    last = "[...document.querySelectorAll('.scatter')].map(s => [...s.querySelectorAll('.point')].map(" \
           "e => e.classList.contains('on-edge')))"
    for _ in range(2):
        for drawn in page.run(last):
            assert any(drawn)
            assert drawn == sorted(drawn)
        page.run("document.querySelector('.filters fieldset input[value=\"2\"]').click()")
        page.run("document.querySelector('.reset').click()")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_every_chart_is_drawn_and_nothing_is_cut_off(shown: Any, width: int, dark: bool) -> None:
    for reports in ((staged(),), (staged(), other()), tuple(swept_report(n) for n in range(12))):
        page = shown(*reports, width=width, dark=dark)
        charts = page.run(DRAWN)
        assert charts
        assert all(wide > 60 and high > 0 and parts > 0 for _, wide, high, parts in charts), charts
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(TOO_WIDE) == []


def test_one_scenario_has_all_its_pictures(shown: Any) -> None:
    kinds = [name.split()[1] if " " in name else "memory" for name, *_ in shown(staged()).run(DRAWN)]
    assert {"map", "lanes", "bars", "memory"} <= set(kinds)


def test_dark_is_dark_and_light_is_light(shown: Any) -> None:
    colours = [shown(staged(), dark=dark).run("getComputedStyle(document.body).backgroundColor")
               for dark in (False, True)]
    light, dark_one = (sum(map(int, colour[4:-1].split(","))) for colour in colours)
    assert light > 700
    assert dark_one < 100


def test_a_rank_opens_its_tensors_with_the_mouse(shown: Any) -> None:
    page = shown(staged())
    page.run("document.querySelector('[data-rank=\"5\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert page.run("document.querySelector('.chosen').textContent").startswith("Rank 5: pp 2, ")
    opened = "[...document.querySelectorAll('.tensors')].filter(e => e.checkVisibility()).map(e => [e.open, e.id])"
    assert page.run(opened) == [[True, "r1-map-tensors-2"]]
    assert "4-5" in page.run("document.querySelector('.tensors[open] caption').textContent")


def test_a_rank_opens_its_tensors_with_the_keyboard(shown: Any) -> None:
    page = shown(staged())
    page.run("document.querySelector('.cell').focus()")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.press(key)
    assert page.run("document.querySelector('.picked').dataset.rank") == "2"
    assert page.run("document.activeElement.dataset.rank") == "2"


def test_the_group_of_a_rank_is_marked(shown: Any) -> None:
    page = shown(staged())
    page.run("document.querySelector('[data-rank=\"1\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    marked = {}
    for axis in ("pp", "dp_shard", "ep"):
        page.run(f"document.querySelector('.peers input[value={axis}]').click()")
        marked[axis] = page.run("[...document.querySelectorAll('.peer')].map(e => +e.dataset.rank)")
    assert marked == {"pp": [1, 3, 5, 7, 9], "dp_shard": [0, 1], "ep": [0, 1]}


def test_memory_changes_its_clock_and_its_stack(shown: Any) -> None:
    page = shown(staged())
    view = "[...document.querySelectorAll('[data-view]')].filter(e => e.checkVisibility()).map(e => e.dataset.view)"
    assert set(page.run(view)) == {"category issue"}
    page.run("document.querySelector('[data-switch=clock] input[value=time]').click()")
    page.run("document.querySelector('[data-switch=stack] input[value=part]').click()")
    assert set(page.run(view)) == {"part time"}


def test_streams_zoom_with_buttons_and_keys(shown: Any) -> None:
    page = shown(staged())
    wide = "document.querySelector('.lanes').getBoundingClientRect().width"
    before = page.run(wide)
    page.run("document.querySelector('[data-zoom=\"zoom in\"]').click()")
    page.run("document.querySelector('.zoom').focus()")
    page.press("+")
    assert page.run(wide) == pytest.approx(4 * before, rel=0.01)
    page.press("0")
    assert page.run(wide) == pytest.approx(before, rel=0.01)


def test_two_are_side_by_side_with_their_differences(shown: Any) -> None:
    page = shown(staged("one"), other())
    places = page.run("[...document.querySelectorAll('.versus > .side:first-of-type > div')].map("
                      "e => [e.getBoundingClientRect().left, e.getBoundingClientRect().top])")
    assert len(places) == 2
    assert places[0][1] == places[1][1]
    assert places[0][0] < places[1][0]
    signs = page.run("[...document.querySelectorAll('.more-of, .less-of')].map(e => e.textContent[0])")
    assert set(signs) == {"\u25b2", "\u25bc"}
    keys = page.run("[...document.querySelectorAll('.versus td code')].map(e => e.textContent)")
    assert {"framework", "mesh.pp", "mesh.dp_shard"} <= set(keys)


SHOWN = "[...document.querySelectorAll('.batch tbody tr:not(.opened)')].filter(e => !e.hidden).map(e => +e.dataset.n)"


def test_the_table_sorts_both_ways_and_by_numbers(shown: Any) -> None:
    reports = [swept_report(n) for n in range(12)]
    page = shown(*reports)
    step = "document.querySelectorAll('.batch thead button')[4]"
    page.run(f"{step}.click()")
    times = [reports[n].time.step_s for n in page.run(SHOWN) if reports[n].time]
    assert times == sorted(times)
    page.run(f"{step}.focus()")
    page.press("Enter")
    times = [reports[n].time.step_s for n in page.run(SHOWN) if reports[n].time]
    assert times == sorted(times, reverse=True)
    assert page.run(f"{step}.parentElement.getAttribute('aria-sort')") == "descending"


def test_of_very_many_rows_the_first_are_in_view(shown: Any) -> None:
    page = shown(*(swept_report(n) for n in range(250)))
    seen = "[...document.querySelectorAll('.batch tbody tr')].filter(e => e.checkVisibility()).length"
    assert page.run(seen) == 100
    page.run("document.querySelector('.later button').click()")
    assert page.run(seen) == 200
    page.run("document.querySelectorAll('.later button')[1].click()")
    assert page.run(seen) == 250
    assert page.run("document.querySelector('.later').hidden")


def test_filters_narrow_the_table_and_the_scatters(shown: Any) -> None:
    page = shown(*(swept_report(n) for n in range(24)))
    edges = "[...document.querySelectorAll('.edge')].map(e => e.getAttribute('d'))"
    before = page.run(edges)
    page.run("document.querySelector('.filters fieldset input[value=\"2\"]').click()")
    assert page.run(SHOWN) == list(range(2, 24, 4))
    points = "[...document.querySelectorAll('.scatter')].map(s => [...s.querySelectorAll('.point')].filter(" \
             "e => e.checkVisibility()).length)"
    assert page.run(points) == [6, 6]
    assert page.run(edges) != before
    page.run("document.querySelector('.reset').click()")
    assert len(page.run(SHOWN)) == 24


def test_the_edge_that_the_script_draws_is_ours(shown: Any) -> None:
    reports = [swept_report(n, verdict="oom" if n % 3 == 0 else "fits") for n in range(40)]
    page = shown(*reports)
    marked = "[...document.querySelectorAll('.scatter')].map(s => [...s.querySelectorAll('.on-edge')].map(" \
             "e => +e.dataset.row))"
    drawn = page.run(marked)
    page.run("document.querySelectorAll('.scatter .on-edge').forEach(e => e.classList.remove('on-edge'))")
    page.run("document.querySelector('.reset').click()")
    again = page.run(marked)
    assert drawn[0]
    for rows_before, rows_after in zip(drawn, again, strict=True):
        places = [{(reports[n].time.step_s, reports[n].highest_bytes) for n in rows if reports[n].time}
                  for rows in (rows_before, rows_after)]
        assert places[0] == places[1]


def test_a_row_opens(shown: Any) -> None:
    page = shown(*(swept_report(n) for n in range(12)))
    page.run("document.querySelectorAll('.opens')[3].click()")
    text = page.run("document.querySelector('tr.opened').textContent")
    assert "s[mesh.tp=3]" in text
    assert "GiB" in text
    page.run("document.querySelectorAll('.opens')[3].click()")
    assert page.run("document.querySelector('tr.opened')") is None


def test_names_that_are_programs_stay_text(shown: Any) -> None:
    for reports in ((staged(EVIL),), (staged(EVIL), other()), tuple(
            swept_report(n).model_copy(update={"name": EVIL}) for n in range(12))):
        page = shown(*reports)
        assert page.run("document.title !== 'harmed' && !document.querySelector('img')")
        page.run("document.querySelectorAll('.opens').forEach(button => button.click())")
        assert page.run("document.title !== 'harmed' && !document.querySelector('img')")
        assert "<script>document.title" in page.run("document.body.textContent")


def test_the_policy_of_the_page_stops_what_is_put_in_later(browser: Tab, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render([staged()]).replace("</main>", "</main><script>document.title='harmed'</script>"),
                    encoding="utf-8")
    browser.open(page)
    assert browser.run("document.title") != "harmed"
    assert any("Content Security Policy" in message for message in browser.complaints)
    browser.complaints.clear()


def test_a_page_of_a_thousand_opens_in_two_seconds(browser: Tab, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render([swept_report(n) for n in range(1000)]), encoding="utf-8")
    seconds = min(browser.open(page) for _ in range(3))
    assert min(seconds, browser.busy()) < 2  # busy: not what other programs on this machine take
    assert browser.run("document.querySelectorAll('.batch tbody tr').length") == 1000
    assert browser.complaints == []


def test_a_page_of_one_is_below_its_size() -> None:
    large = small.scenario("fsdp2", {"dp_shard": 1024, "ep": 8}, model="nemotron-3-nano-30b-a3b", microbatches=2)
    report = simulate(large, detail=True)
    assert len(report.ranks) > 8
    assert len(render([report]).encode()) < 5.5e6
