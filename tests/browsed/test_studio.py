"""The studio's page in a browser: speed, accessibility, sizes of screens, links, and input that is wrong."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from browsed_page import Page
from checkout import ROOT
from simcore.studio.link import packed

JOB: dict[str, Any] = {
    "name": "mine", "model": "nemotron-3-nano-30b-a3b", "framework": "automodel", "topology": "dgx-h100",
    "mesh": {"dp_shard": 64, "ep": 8}, "training": {"method": "lora", "seq_len": 4096, "global_batch_size": 256}}
SAYS_FIT = "document.querySelector('[data-part=verdict] .verdict')"


def link(page: Page, job: dict[str, Any]) -> str:
    return f"{page.address}#{packed(job)}"


def test_from_a_change_to_the_new_picture_it_is_a_tenth_of_a_second(page: Page) -> None:
    page.open(address=link(page, JOB))
    for step in (-1, -1, 1, 1):  # every layout once
        page.step("ep", step)
    page.run("performance.clearMeasures()")
    before = page.processor_s()
    for number, step in enumerate((-1, -1, 1, 1) * 10):
        page.step("ep", step)
        page.until(f"performance.getEntriesByName('first picture').length > {number}")
    times, load, cores = sorted(page.measures("first picture")), os.getloadavg()[0], os.cpu_count() or 1
    busy = 1000 * (page.processor_s() - before) / len(times)
    median, late = statistics.median(times), times[int(0.95 * len(times)) - 1]
    told(f"first picture: median {median:.0f} ms, 95 % {late:.0f} ms; {busy:.0f} ms of processors a change; "
         f"load {load}")
    assert len(times) >= 40
    if load <= 1.5 * cores:
        assert median <= 100
        assert late <= 300
    else:  # other work has the cores: what the change itself takes of two
        assert busy / 2 <= 100


def test_every_picture_comes_soon_after_a_change(page: Page) -> None:
    page.open(address=link(page, JOB))
    page.drawn()
    page.run("performance.clearMeasures()")
    before = page.processor_s()
    for number, step in enumerate((-1, -1, 1, 1) * 3):
        page.step("ep", step)
        page.until(f"performance.getEntriesByName('all pictures').length > {number}")
    busy = 1000 * (page.processor_s() - before) / 12
    medians = {name: statistics.median(page.measures(name)) for name in ("first picture", "memory", "all pictures")}
    told(f"{', '.join(f'{name} {ms:.0f} ms' for name, ms in medians.items())}; {busy:.0f} ms of processors a change; "
         f"load {os.getloadavg()[0]}")
    assert busy / 2 <= 500


def told(words: str) -> None:
    sys.stdout.write(f"\n{words}\n")


def test_an_option_with_a_dot_in_its_name_is_applied_as_one_key(page: Page) -> None:
    key = "framework_options.moe.reshard_after_forward"
    page.open(address=link(page, JOB))
    page.run(f"""(() => {{ const made = document.createElement('button');
        made.dataset.changes = JSON.stringify({{ '{key}': true }});
        document.body.append(made); made.click(); made.remove(); }})()""")
    page.settled()
    assert page.text("[data-part=verdict] .verdict").endswith("Fits")
    assert page.run(f"document.querySelector('[data-key=\"{key}\"] input').value") == "true"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(page: Page, width: int, dark: bool) -> None:
    axe = Path(os.environ.get("AXE", ""))
    if not axe.is_file():
        pytest.skip("no axe-core: `make studio-test` fetches it")
    page.open(width, dark=dark)
    page.click("#pin")
    page.set("training.method", "full")
    page.set("training.seq_len", "16384")
    page.until("document.getElementById('looking').hidden")
    page.click("[data-explain=peak]")
    page.until("document.querySelector('#steps details')")
    page.until("document.querySelector('.versus')")
    page.choose("#field-training-micro_batch_size", "two")
    page.tab.call("Runtime.evaluate", expression=axe.read_text(encoding="utf-8"))
    page.picture(f"page-{width}-{'dark' if dark else 'light'}")
    violations = json.loads(page.run(
        "axe.run().then(found => JSON.stringify(found.violations.map(one => [one.id, one.nodes[0].html])))"))
    assert violations == []


@pytest.mark.parametrize("width", [360, 760, 1180, 1920, 2560])
def test_no_screen_scrolls_sideways(page: Page, width: int) -> None:
    page.open(width)
    page.until("performance.getEntriesByName('all pictures').length")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_the_verdict_that_stays_in_view_is_covered_by_nothing(page: Page) -> None:
    page.open()
    page.drawn()
    for share in (0, 0.4, 0.7, 0.85, 1):
        page.run(f"""new Promise(done => {{ scrollTo(0, {share} * document.documentElement.scrollHeight);
            requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))); }})""")
        end, below = page.run("""['result', 'search'].map(id => document.getElementById(id).getBoundingClientRect())
            .map((box, n) => n ? box.top : box.bottom)""")
        assert end <= min(below, 900), f"covered at {share} of the page"
        page.run("(one => { one.scrollTop = one.scrollHeight; })(document.getElementById('result'))")
        last = page.run("document.querySelector('#origins > details:last-child').getBoundingClientRect().bottom")
        assert last < end + 1, "its last line can be reached"
    page.run("scrollTo(0, 0)")


def test_a_link_has_the_whole_state_and_is_short(page: Page) -> None:
    page.open()
    page.set("training.seq_len", "2048")
    page.click("#pin")
    page.until("location.hash.length > 100")
    time.sleep(0.3)
    address = page.run("location.href")
    assert len(address) < 2000
    page.open(address=address)
    assert page.run("document.getElementById('field-training-seq_len').value") == "2048"
    page.until("!document.getElementById('side').hidden")


@pytest.mark.parametrize(("end", "words"), [("2.abc", "version 2"), ("1.abc", "cut or damaged"), ("1.", "damaged")])
def test_a_link_that_cannot_be_read_is_told(page: Page, end: str, words: str) -> None:
    page.open(address=f"{page.address}#{end}")
    page.until(f"document.getElementById('notice').innerText.includes({json.dumps(words)})")
    assert page.text("[data-part=verdict] .verdict")


def test_wrong_input_is_told_at_its_field_and_nothing_is_lost(page: Page) -> None:
    page.open()
    page.set("model", "qwen3-8c")
    assert "qwen3-8b" in page.text("#field-model-told")
    page.set("model", "nemotron-3-nano-30b-a3b")
    page.choose("#field-training-seq_len", "many")
    assert "whole number" in page.text("#field-training-seq_len-told")
    page.set("training.global_batch_size", "63")
    assert "multiple" in page.text("#field-training-global_batch_size-told")
    page.click("#field-training-global_batch_size-told button")
    page.settled()
    assert page.run("document.getElementById('field-training-global_batch_size').value") == "64"
    assert "Fits" in page.text("[data-part=verdict] .verdict")


def test_fewer_gpus_take_the_degree_of_the_experts_along_and_say_so(page: Page) -> None:
    page.open()
    assert page.text("[data-axis=ep] .value") == "8"
    page.step("gpus", -1)
    assert (page.text("[data-axis=gpus] .value"), page.text("[data-axis=ep] .value")) == ("4", "4")
    assert page.text("#notice") == "Also changed: expert parallel 8 → 4."
    page.step("gpus", -1)
    assert "Fits" in page.text("[data-part=verdict]") or "Out of memory" in page.text("[data-part=verdict]")


def test_a_field_without_a_value_shows_what_the_job_has(page: Page) -> None:
    page.open()
    page.set("training.global_batch_size", "")
    field = "document.getElementById('field-training-global_batch_size')"
    shards = page.run("""Number(document.getElementById('rest').innerText.match(/(\\d+) sharded/)[1])""")
    assert page.run(f"{field}.placeholder") == str(shards)
    page.set("training.micro_batch_size", "2")
    assert page.run(f"{field}.placeholder") == str(2 * shards)
    assert page.run("[...document.querySelectorAll('input')].every(one => one.placeholder !== 'null')")


def test_three_wrong_values_are_told_at_once_and_the_verdict_says_of_which_it_is(page: Page) -> None:
    page.open()
    page.choose("#field-training-seq_len", "many")
    assert "4096, not \u201cmany\u201d" in page.text("#unread")
    assert page.run("getComputedStyle(document.querySelector('.answer > .verdict')).borderStyle") == "dashed"
    page.set("training.global_batch_size", "63")
    page.set("model", "qwen3-8c")
    wrong = page.run("[...document.querySelectorAll('.field.wrong')].map(one => one.dataset.key)")
    assert wrong == ["model", "training.global_batch_size", "training.seq_len"]
    assert page.run("document.getElementById('field-training-seq_len').value") == "many"
    assert page.run("document.querySelectorAll('[data-part=problems] li').length") == 2
    page.set("model", "nemotron-3-nano-30b-a3b")
    page.set("training.global_batch_size", "64")
    assert "Fits" in page.text("[data-part=verdict]")
    assert "many" in page.text("#unread")
    page.set("training.seq_len", "8192")
    assert page.run("document.getElementById('unread').hidden && !document.querySelector('.field.wrong')")


@pytest.mark.parametrize("text", ["8192", "8,192", "8.192", "8 192", "8\u202f192", "8'192"])
def test_numbers_of_other_countries_are_read(page: Page, text: str) -> None:
    page.open()
    page.set("training.seq_len", text)
    assert page.run("document.getElementById('field-training-seq_len').value") == "8192"


def test_a_hostile_name_stays_text(page: Page) -> None:
    page.open(address=link(page, JOB | {"name": "<img src=x onerror=document.title='x'>"}))
    page.drop("<img src=x onerror=document.title='y'>.yaml", b"a: [")
    page.until("document.getElementById('notice').innerText.includes('<img')")
    assert page.run("document.title") == "rankscope studio"
    assert page.run("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize(("name", "content", "words"), [
    ("recipe.yaml", b"\xff\xfe\x00", ""), ("recipe.yaml", b"a: 1\n", "no format"), ("x.bin", b"\x00\x01", "got none")])
def test_a_file_that_cannot_be_read_is_told(page: Page, name: str, content: bytes, words: str) -> None:
    page.open()
    page.drop(name, content)
    page.until(f"document.getElementById('notice').innerText.includes({json.dumps(name)})")
    assert words in page.text("#notice")
    assert page.text("[data-part=verdict] .verdict")


def test_a_large_file_is_refused_before_it_is_read(page: Page) -> None:
    page.open()
    page.run("""(() => { const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(100 * 2 ** 20)], 'big.pickle'));
        dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true })); })()""")
    page.until("document.getElementById('notice').innerText.includes('100 MiB')")
    assert not page.run("document.getElementById('notice').classList.contains('fine')")


def test_what_was_done_is_not_told_as_what_failed(page: Page) -> None:
    page.open()
    page.set("model", "qwen2.5-7b")
    page.until("!document.getElementById('notice').hidden")
    assert page.text("#notice").startswith("qwen2.5-7b cannot have the degrees of the model before")
    assert page.run("document.getElementById('notice').classList.contains('fine')")
    page.choose("#field-training-seq_len", "many")
    page.set("topology", "dgx-h200")
    assert page.run("document.getElementById('notice').hidden")


def test_fifty_changes_a_second_end_with_the_last(page: Page) -> None:
    page.open()
    page.run("""new Promise(done => { let n = 0; const field = document.getElementById('field-training-seq_len');
        const change = () => { n += 1; field.value = String(1024 + 64 * n);
          field.dispatchEvent(new Event('change', { bubbles: true }));
          if (n === 100) { clearInterval(timer); done(); } };
        const timer = setInterval(change, 20); })""")
    start = time.monotonic()
    page.settled()
    assert time.monotonic() - start < 3
    assert page.run("document.getElementById('field-training-seq_len').value") == str(1024 + 6400)


def test_a_frame_is_never_late_while_a_search_runs(page: Page) -> None:
    page.open()
    page.until("performance.getEntriesByName('all pictures').length")  # nothing moves under the mouse
    page.click("#searching [type=submit]")
    page.until("document.querySelector('#frontier circle')")
    page.step("ep", -1)
    page.step("ep", 1)
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # other work has the cores
    assert max(page.measures("first picture")[-2:]) < 1000 * others
    page.click("#search-stop")
    page.until("document.getElementById('progress').innerText.includes('stopped')")


def test_no_other_address_is_asked(page: Page) -> None:
    page.open()
    page.until("performance.getEntriesByName('all pictures').length")
    names = json.loads(page.run("JSON.stringify(performance.getEntriesByType('resource').map(one => one.name))"))
    assert names
    assert [name for name in names if not name.startswith((page.address, "data:"))] == []
    assert (ROOT / "simcore/studio/page/app.js").exists()


def test_the_keyboard_reaches_every_degree(page: Page) -> None:
    page.open()
    page.until("performance.getEntriesByName('all pictures').length")
    page.until("!document.querySelector('[data-axis=ep] button').disabled")
    page.run("document.querySelector('[data-axis=ep] .value').focus()")
    page.tab.press("ArrowLeft")
    page.until("document.querySelector('[data-axis=ep] .value').innerText === '4'")
    page.tab.press("Tab")
    assert page.run("document.activeElement.closest('[data-axis], .why') !== null")
