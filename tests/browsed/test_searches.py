"""Searches in the page: what is there when one is stopped, and the fewest GPUs with and without the host."""

from __future__ import annotations

from typing import Any

from browsed_page import Page
from simcore.studio.link import packed

JOB: dict[str, Any] = {
    "name": "mine", "model": "llama-3.1-8b", "topology": "dgx-h100", "framework": "zero3", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 4096, "global_batch_size": 64, "method": "full"}}
LONG_S = 240.0


def opened(page: Page, **changes: Any) -> None:
    page.open(address=f"{page.address}#{packed({**JOB, **changes})}")
    page.drawn()


def test_a_search_in_which_nothing_fits_tells_what_was_tried_and_the_nearest(page: Page) -> None:
    """Once it is over, and where it is stopped before."""
    opened(page, framework="fsdp2", limits={"usable_memory": "16 GiB"})
    page.choose("#search-gpus", "8")
    page.click("#searching [type=submit]")
    page.until("document.getElementById('none')", LONG_S)
    assert "No layout fits:" in page.text("#none")
    assert "Nearest to fitting" in page.text("#frontier")
    opened(page, model="llama-3.1-70b", framework="automodel", limits={"usable_memory": "20 GiB"})
    page.choose("#search-gpus", "16, 32, 64")
    page.click("#searching [type=submit]")
    page.until("/memory: [1-9]/.test(document.getElementById('progress').innerText)", LONG_S)
    page.click("#search-stop")
    page.until("document.getElementById('none')")
    assert "stopped at: memory: " in page.text("#progress")
    assert "No layout that was tried fits so far: " in page.text("#none")


def test_the_fewest_without_the_host_stand_beside_the_fewest(page: Page) -> None:
    opened(page)
    page.click("[data-limit=gpus]")
    page.until("document.querySelector('#least [role=status]')?.innerText.startsWith('done')", LONG_S)
    page.until("document.getElementById('limit').innerText.includes('only data parallel changed')")  # both answers
    assert "1 GPU with states on the host, 2 without" in page.text("#least .found")
    page.click("#least .buttons button:nth-child(2)")
    page.settled()
    assert page.text("[data-axis=gpus] .value") == "2"
    assert "offload" not in page.text("#added")
    assert not page.run("document.getElementById('least')")
    page.click("#undo")  # the answer comes back with its job
    page.until("document.getElementById('least')")
    assert "1 GPU with states on the host, 2 without" in page.text("#least .found")
    opened(page)
    page.drawn()
    page.click("#searching [name=framework][value=zero3]")
    page.click("#search-fewest")
    page.until("/frameworks?: /.test(document.getElementById('progress').innerText)", LONG_S)
    rows = page.run("[...document.querySelectorAll('#frontier tbody tr:not(.below)')].map(row => row.innerText)")
    assert ["on the host" in row.split("\t")[1] for row in rows] == [True, False]
    assert [row.split("\t")[2] for row in rows] == ["1", "2"]
    for width in (1280, 390):
        page.tab.shape(width, dark=False)
        page.until("document.documentElement.scrollWidth <= innerWidth")
        cut = page.run("[...document.querySelectorAll('#frontier .below .note')].filter(one => { const box = "
                       "one.getBoundingClientRect(); return box.right > innerWidth || box.left < 0; }).length")
        assert cut == 0
