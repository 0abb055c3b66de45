"""The page: one file, nothing loaded, nothing trusted, everything reachable."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from simcore.results.engine import Decode, Serving
from simcore.results.phases import PhaseReport
from simcore.results.quantiles import Drawn, DrawnPeak, Quantiles
from simcore.results.report import (
    Assumption,
    Communicator,
    Host,
    HostPhase,
    MemorySeries,
    Peak,
    ProblemRow,
    RankReport,
    Report,
    StepTime,
    TrafficRow,
)
from viz.markup import Markup, element, escape, number
from viz.pages.page import render

GIB = 2**30
EVIL = "<script>alert(1)</script>\"'&\x00\x1b[31m\ud800]]>"


def a_rank(text: str, ranks: str, device_gib: int) -> RankReport:
    series = MemorySeries(categories=("sharded_param", text), event_index=(0, 5, 9), time_s=(0.0, 0.2, 0.3),
                          phases=("forward", text, "optimizer"), values=((4 * GIB,) * 3, (0, 6 * GIB, GIB)))
    peak = Peak(allocated_bytes=10 * GIB, reserved_bytes=11 * GIB, device_bytes=device_gib * GIB, phase=text,
                event=text, layer=text, microbatch=1, by_category={"sharded_param": 4 * GIB, text: 6 * GIB},
                by_phase={"forward": 4 * GIB, text: 10 * GIB}, top=(),
                reserved_band_bytes=(10 * GIB, 12 * GIB), outside={"context": GIB}, band_bytes=(9 * GIB, 11 * GIB))
    traffic = TrafficRow(collective="all_gather", axis=text, group_size=8, phase=text, dtype="bf16", calls=3,
                         payload_bytes=GIB, wire_bytes=GIB // 2)
    return RankReport(ranks=(ranks,), num_ranks=4, coordinates={"pp": text}, stage=0, at_rest={}, padding_bytes=0,
                      grads_persist=False, peak=peak, traffic=(traffic,), memory=series)


def a_report(text: str = "plain", **changes: Any) -> Report:
    values: dict[str, Any] = {
        "name": text, "status": "ok", "verdict": "fits", "capacity_bytes": 80 * GIB, "headroom_bytes": 68 * GIB,
        "scenario": {"name": text, "model": text, "mesh": {"dp_shard": text}, text: [text]},
        "assumptions": (Assumption(what=text, value=text, kind="assumed", source=text),),
        "communicators": (Communicator(axis=text, size=8),),
        "problems": (ProblemRow(where=text, message=text, rule=text),),
        "ranks": (a_rank(text, "0-3", 12), a_rank(text, "4-7", 11)),
        "time": StepTime(step_s=0.3, forward_s=0.1, backward_s=0.15, optimizer_s=0.05, exposed_communication_s=0.01,
                         tokens_per_s_per_gpu=1000, model_tflops_per_gpu=300, mfu=0.3),
    }
    return Report.model_construct(**values | changes)  # not validated: pydantic itself refuses lone surrogates


def parsed(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314 - written by us


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


@pytest.mark.parametrize(("changes", "word"), [
    ({}, "Fits"),
    ({"verdict": "oom", "headroom_bytes": -3 * GIB}, "Out of memory"),
    ({"status": "illegal", "verdict": None}, "Illegal layout"),
    ({"status": "error", "verdict": None, "ranks": (), "time": None, "capacity_bytes": None}, "Could not be answered"),
    ({"verdict": None}, "No verdict"),
])
def test_the_verdict_is_a_word(changes: dict[str, Any], word: str) -> None:
    root = parsed(render([a_report(**changes)]))
    shown = ["".join(e.itertext()) for e in root.iter("strong") if "verdict" in e.get("class", "")]
    assert len(shown) == 1
    assert shown[0].endswith(word)


def test_without_a_script_the_issue_order_is_in_view() -> None:
    root = parsed(render([a_report()]))
    plots = [e for e in root.iter("div") if e.get("class") == "plot"]
    assert [(e.attrib["data-view"], "hidden" in e.attrib) for e in plots] == [
        ("category issue", False), ("category time", True)] * 2
    assert all("hidden" in e.attrib for e in root.iter("fieldset"))


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


def test_of_many_classes_of_ranks_only_the_highest_is_open() -> None:
    ranks = tuple(a_rank("x", str(n), 20 if n == 3 else 12) for n in range(6))
    sections = [e for e in parsed(render([a_report(ranks=ranks)])).iter("details") if e.get("class") == "rank"]
    assert ["open" in e.attrib for e in sections] == [n == 3 for n in range(6)]


def test_hosts_and_the_highest_draw_are_facts() -> None:
    sizes = Quantiles(p50=13 * GIB, p90=14 * GIB, p99=15 * GIB, max=16 * GIB)
    drawn = Drawn(seed=0, draws=10, concentration=None, num_groups=1, num_microbatches=1, balanced_rows=1, received=(),
                  hottest=DrawnPeak(allocated_bytes=sizes, device_bytes=sizes), oom_probability=0.0, exact=True)
    phase = HostPhase(phase="first_step", host_bytes=3 * GIB, device_bytes=0, host_verdict="oom",
                      device_verdict="fits", by_owner={})
    page = render([a_report(drawn=drawn, host=Host(capacity_bytes=2 * GIB, ranks_per_host=8, phases=(phase,)))])
    facts = {term.text: value.text for row in parsed(page).iter("div") for term, value in zip(
        row.findall("dt"), row.findall("dd"), strict=True)}
    assert facts["in the highest draw"] == "16.00 GiB"
    assert (facts["capacity"], facts["first step"]) == ("2.00 GiB", "3.00 GiB, does not fit")
    assert "in the highest draw" not in render([a_report()])


def test_ranks_without_peak_or_series_are_still_told() -> None:
    bare = a_rank("x", "0-3", 12).model_copy(update={"peak": None, "memory": None})
    page = render([a_report(ranks=(bare,), verdict=None)])
    assert "holds no memory over time" in page
    assert parsed(page) is not None


def test_the_same_reports_give_the_same_page() -> None:
    assert render([a_report()]) == render([a_report()])


def test_an_empty_list_is_a_page_too() -> None:
    assert "no report to show" in render([])


def test_markup_escapes_what_is_not_markup() -> None:
    assert escape("<a & b>") == "&lt;a &amp; b&gt;"
    assert element("p", "<", Markup("<b>x</b>"), 3, class_='"', hidden=True, title=None) == (
        '<p class="&quot;" hidden="hidden">&lt;<b>x</b>3</p>')
    assert element("a", title=Markup("<b>")) == '<a title="&lt;b&gt;"></a>'
    assert [number(v) for v in (0.0, -0.001, 1.5, 100.0, 2.345678)] == ["0", "0", "1.5", "100", "2.35"]


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


def test_phases_and_an_engine_are_drawn() -> None:
    phase = PhaseReport(phase="generation", start_s=1.0, seconds=2.0, device_bytes=30 * GIB, host_bytes=0, event=EVIL,
                        by_category={"kv_cache": 20 * GIB, EVIL: 10 * GIB}, by_owner={"engine": 30 * GIB},
                        host_by_owner={}, device_verdict="oom")
    engine = Serving.model_construct(
        engine="vllm", version="1", tp=2, requested_bytes=60 * GIB, weight_bytes=20 * GIB, adapter_buffer_bytes=0,
        activation_bytes=GIB, graph_bytes=GIB, cache_bytes=38 * GIB, num_blocks=10, block_size=16, cache_tokens=160,
        concurrency=1.5, longest=100, refusal="too long", decode=(Decode(
            sequences=1, context_tokens=10, bytes_read=1, seconds=0.01, tokens_per_s=100),))
    page = render([a_report(phases=(phase,), serving=engine)])
    text = "".join(parsed(page).itertext())
    for words in ("Phases of a step on the fullest rank", "30.00 GiB, out of memory", "generation \u00b7 2 s from 1 s",
                  "The engine that generates", "caches", "It does not start: too long", "Decoding"):
        assert words in text, words
    assert "Phases of a step" not in render([a_report()])
