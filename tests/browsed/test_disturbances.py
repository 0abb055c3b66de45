"""Disturbances of the page: a studio that stops, ten tabs at once, a measured run on the simulated axes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from browsed_page import Page
from simcore.studio.link import packed

JOB: dict[str, Any] = {
    "name": "mine", "model": "llama-3.2-1b", "topology": "dgx-h100", "framework": "fsdp2", "mesh": {"dp_shard": 8},
    "training": {"seq_len": 2048, "global_batch_size": 8, "method": "full"}}
SCRIPT = Path(sys.executable).with_name("rankscope")


def served(port: int) -> tuple[subprocess.Popen[str], str]:
    """A studio of its own and its address."""
    studio = subprocess.Popen([SCRIPT, "studio", "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert studio.stdout is not None
    return studio, studio.stdout.readline().split()[3]


def test_a_studio_that_stops_is_told_and_nothing_is_lost(page: Page) -> None:
    studio, address = served(0)
    try:
        page.open(address=address)
        studio.terminate()
        studio.communicate(timeout=30)
        page.choose("#field-training-seq_len", "2048")
        page.until("document.getElementById('notice').innerText.includes('does not answer')")
        assert page.run("document.getElementById('field-training-seq_len').value") == "2048"
        studio, _ = served(urlsplit(address).port or 0)
        page.settled()
        page.until("document.getElementById('notice').hidden")
        assert page.run("document.getElementById('field-training-seq_len').value") == "2048"
        assert page.text("[data-part=verdict] .verdict")
    finally:
        studio.kill()
        studio.communicate(timeout=30)


def test_ten_tabs_get_their_own_answers(page: Page) -> None:
    tab, own = page.tab, page.tab.session
    lengths = [1024 * (n + 1) for n in range(10)]
    sessions: dict[int, tuple[str, str]] = {}
    try:
        for length in lengths:
            job = {**JOB, "training": {**JOB["training"], "seq_len": length}}
            tab.session = ""
            target = tab.call("Target.createTarget", url=f"{page.address}#{packed(job)}")["targetId"]
            sessions[length] = target, tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        peaks = []
        for length, (_, session) in sessions.items():
            tab.session = session
            page.until("document.querySelector('[data-part=verdict] .verdict')")
            page.settled()
            assert page.run("document.getElementById('field-training-seq_len').value") == str(length)
            peaks.append(float(page.text("[data-part=bars] .value").split()[0]))
        assert peaks == sorted(peaks)
        assert len(set(peaks)) == len(peaks)
    finally:
        tab.session = ""
        for target, _ in sessions.values():
            tab.call("Target.closeTarget", targetId=target)
        tab.session = own


def test_a_snapshot_is_a_curve_on_the_same_axes(page: Page, tmp_path: Path) -> None:
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.choose("#copy", "scenario")
    page.until("document.getElementById('dialog').open")
    text = page.run("document.getElementById('dialog-text').value")
    page.click("#dialog-close")
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    subprocess.run([SCRIPT, "export", "snapshot", tmp_path / "mine.yaml", "-o", tmp_path / "snap.pickle"], check=True)
    page.drop("snap.pickle", (tmp_path / "snap.pickle").read_bytes())
    page.until("document.querySelector('[data-part=memory] path.measured-curve')")
    assert "snap.pickle" in page.text("[data-part=measured]")
    page.set("training.seq_len", "4096")
    page.drawn()
    page.picture("snapshot")
    assert page.run("!!document.querySelector('[data-part=memory] path.measured-curve')")
    page.click("[data-part=measured] > button")
    page.until("!document.querySelector('[data-part=memory] path.measured-curve')")


def test_a_run_stands_beside_the_job_in_view_not_that_of_the_drop(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.drop("run.log", b"  Instantaneous batch size per device = 2\n{'loss': 0.5, 'epoch': 0.1}\n{'train_runtime': "
              b"60.0, 'train_steps_per_second': 0.5, 'train_samples_per_second': 4.0}\n")
    page.until("document.querySelector('[data-part=measured] .caveat')")
    assert "micro batch 2, the job has 1" in page.text("[data-part=measured]")
    before = page.text("[data-part=measured] table")
    page.set("training.global_batch_size", "16")
    page.set("training.micro_batch_size", "2")
    page.until("!document.querySelector('[data-part=measured] .caveat')")
    page.drawn()
    assert page.text("[data-part=measured] table") != before
    page.set("training.global_batch_size", "17")
    page.until("document.querySelector('[data-part=measured]').innerText.includes('has no answer')")
    page.click("[data-part=measured] .away")
    page.until("!document.querySelector('[data-part=measured]').innerText")


def test_a_failure_is_a_line_on_the_same_axes(page: Page) -> None:
    page.open(address=f"{page.address}#{packed(JOB)}")
    page.drop("error.txt", b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total "
              b"capacity of 79.11 GiB of which 512.00 MiB is free. Process 1 has 78.60 GiB memory in use. Of the "
              b"allocated memory 74.10 GiB is allocated by PyTorch, and 2.40 GiB is reserved by PyTorch but "
              b"unallocated.\n")
    page.until("document.querySelector('[data-part=memory] line.measured-curve')")
    time.sleep(0.1)
    assert "75.26 GiB" in page.run("document.querySelector('[data-part=memory]').textContent")
