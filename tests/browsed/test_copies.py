"""The job taken away, as texts, recipes and pictures; a price of one's own; changes that make it faster."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from browsed_page import Page
from simcore.studio.link import packed

JOB: dict[str, Any] = {
    "name": "mine", "model": "llama-3.2-1b", "topology": "dgx-h100", "framework": "automodel", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 2048, "global_batch_size": 32, "method": "full"}}


def opened(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.drawn()


@pytest.mark.parametrize(("kind", "words"), [
    ("link", "/#1."), ("scenario", "seq_len: 2048"), ("command", "rankscope run scenario.yaml"),
    ("gate", "--max-fill 92%"), ("markdown", "| llama-3.2-1b | full | automodel | dgx-h100 | 8 |"), ("svg", "<svg")])
def test_a_copy_has_the_job(page: Page, kind: str, words: str) -> None:
    opened(page)
    page.choose("#copy", kind)
    page.until("document.getElementById('dialog').open")
    assert words in page.run("document.getElementById('dialog-text').value")


def test_a_recipe_of_a_tool_has_its_launch(page: Page) -> None:
    opened(page)
    page.run("document.getElementById('copy').dispatchEvent(new Event('focus'))")
    page.until("document.querySelector('#copy [value=\\'recipe automodel\\']')")
    page.choose("#copy", "recipe automodel")
    page.until("document.getElementById('dialog').open")
    assert "model" in page.run("document.getElementById('dialog-text').value")
    assert "Launch:" in page.text("#dialog-note")


def test_a_picture_is_saved_as_png(page: Page, tmp_path: Path) -> None:
    opened(page)
    page.tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.choose("#copy", "png")
    end = time.monotonic() + 30
    while not (found := [one for one in tmp_path.glob("*.png") if one.stat().st_size]):  # empty before it is written
        assert time.monotonic() < end, page.text("#notice")
        time.sleep(0.05)
    content = found[0].read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert min(width, height) > 100


def test_a_price_of_ones_own_is_what_costs_are_counted_with(page: Page) -> None:
    opened(page)
    costs = []
    for price in ("2,00", "4"):
        page.set("price", price)
        costs.append(float(page.run("""[...document.querySelectorAll('[data-part=time] div')]
            .find(row => row.innerText.includes('USD per M')).querySelector('dd').innerText""")))
    assert costs[1] == pytest.approx(2 * costs[0], rel=0.02)
    page.set("price", "cheap")
    assert "number" in page.text("#field-price-told")


def test_a_change_that_makes_it_faster_does(page: Page) -> None:
    opened(page)
    page.until("document.querySelector('[data-part=advice] [data-changes]')")
    step = json.loads(page.run("JSON.stringify(document.querySelector('[data-part=time] dd').innerText)"))
    assert "%" in page.text("[data-part=advice] li")
    page.click("[data-part=advice] [data-changes]")
    page.settled()
    assert "Fits" in page.text("[data-part=verdict]")
    assert page.text("[data-part=time] dd") != step
