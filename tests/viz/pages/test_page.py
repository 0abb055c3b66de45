"""The page: one file, nothing loaded, nothing trusted, everything reachable."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from reports import EVIL, a_report, parsed
from viz.pages.page import render


def test_the_whole_page_is_well_formed() -> None:
    assert parsed(render([a_report(), a_report("other")])).tag == "html"


def test_each_svg_is_well_formed_by_itself() -> None:
    drawings = re.findall(r'<svg class="chart".*?</svg>(?=</div>)', render([a_report()]), flags=re.DOTALL)
    assert len(drawings) == 4
    assert [ET.fromstring(text).tag for text in drawings] == ["svg"] * 4  # noqa: S314 - written by us


def test_no_text_of_a_report_becomes_markup() -> None:
    page = render([a_report(EVIL), a_report(EVIL, status="illegal", verdict=None)])
    root = parsed(page)
    assert len(list(root.iter("script"))) == 1
    assert "alert(1)" not in "".join(e.text or "" for e in root.iter("script"))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not set(page) & {"\x00", "\x1b", "\ud800"}
    page.encode()


def test_attributes_hold_no_handlers_and_no_styles() -> None:
    names = {name for e in parsed(render([a_report(EVIL)])).iter() for name in e.attrib}
    assert not [name for name in names if name.startswith("on") or name in ("style", "src")]


def test_nothing_outside_the_page_is_named() -> None:
    page = render([a_report(), a_report("b"), a_report("c")])
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page)
    links = [e.attrib["href"] for e in parsed(page).iter() if "href" in e.attrib]
    identities = {e.get("id") for e in parsed(page).iter()}
    assert {"#report-1", "#report-2", "#report-3"} <= set(links)
    assert {link.removeprefix("#") for link in links} <= identities


def test_the_policy_allows_the_two_texts_of_the_page_only() -> None:
    page = render([a_report()])
    metas = [e for e in parsed(page).iter("meta") if e.get("http-equiv") == "Content-Security-Policy"]
    policy = dict(part.split(" ", 1) for part in metas[0].attrib["content"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    for tag in ("style", "script"):
        text = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_ids_are_unique_and_labels_resolve() -> None:
    root = parsed(render([a_report(), a_report()]))
    identities = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(set(identities)) == len(identities)
    references = ("aria-labelledby", "aria-describedby")
    named = {e.attrib[name] for e in root.iter() for name in references if name in e.attrib}
    assert named <= set(identities)
    fills = {e.attrib["fill"] for e in root.iter() if e.get("fill", "").startswith("url(")}
    assert {fill[5:-1] for fill in fills} <= set(identities)


def test_what_scrolls_can_be_reached_by_keyboard() -> None:
    scrolling = [e for e in parsed(render([a_report()])).iter() if "scroll" in e.get("class", "").split()]
    assert scrolling
    assert all(e.get("tabindex") == "0" and e.get("aria-label") for e in scrolling)


def test_the_same_reports_give_the_same_page() -> None:
    assert render([a_report()]) == render([a_report()])


def test_an_empty_list_is_a_page_too() -> None:
    assert "no report to show" in render([])


@pytest.mark.slow
def test_a_browser_opens_the_page_without_complaint(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine: the page was not opened in a browser")
    page = tmp_path / "page.html"
    page.write_text(render([a_report(), a_report("<script>alert(1)</script>")]), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert '<fieldset class="choice" data-switch="clock">' in done.stdout, "the script did not run"
