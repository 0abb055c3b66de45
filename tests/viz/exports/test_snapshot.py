"""A memory snapshot: the memory of the report, in the format that PyTorch's tools and its web viewer read.

The viewer's requirements are in `tests/truth/snapshot/viewer.json`; they were read from its source.
"""

from __future__ import annotations

import itertools
import json
import pickle
import pickletools
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.results.report import Report
from simcore.simulate import simulate
from viz.exports import snapshot as module
from viz.exports.snapshot import MAX_POSTINGS, notes, pickled, snapshot, whole_fits

VIEWER = json.loads((ROOT / "tests/truth" / "snapshot" / "viewer.json").read_text(encoding="utf-8"))

Snapshot = dict[str, Any]


def simulated(framework: str = "fsdp2", mesh: dict[str, int] | None = None, postings: int = MAX_POSTINGS,
              **options: Any) -> Report:
    return simulate(small.scenario(framework, mesh or {"dp_shard": 4}, **options), detail=True, postings=postings)


@pytest.fixture(scope="module")
def plain() -> Report:
    return simulated()


@pytest.fixture(scope="module")
def staged() -> Report:
    return simulated("megatron", {"dp_shard": 2, "pp": 5}, microbatches=8)


@pytest.fixture(scope="module")
def full() -> Report:
    """A report whose memory does not fit on the device."""
    roomy = simulated()
    assert roomy.peak_rank is not None
    assert roomy.peak_rank.peak is not None
    peak = roomy.peak_rank.peak
    tight = peak.device_bytes - peak.allocated_bytes // 2
    asked = small.scenario("fsdp2", {"dp_shard": 4})
    limits = asked.limits.model_copy(update={"usable_memory": f"{tight} B"})
    return simulate(asked.model_copy(update={"limits": limits}), detail=True, postings=MAX_POSTINGS)


@pytest.fixture(params=["plain", "staged", "full"])
def report(request: pytest.FixtureRequest) -> Report:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def allocated_bytes(events: list[dict[str, Any]]) -> list[int]:
    """Returns the allocated bytes after each event, as the viewer sums them."""
    sign = {"alloc": 1, "free_completed": -1}
    return list(itertools.accumulate(sign.get(e["action"], 0) * e["size"] for e in events))


def test_replayed_it_is_the_report(report: Report) -> None:
    traces = snapshot(report)["device_traces"]
    assert len(traces) == len(report.ranks)
    for rank, events in zip(report.ranks, traces, strict=True):
        assert rank.peak is not None
        assert max(allocated_bytes(events)) == rank.peak.allocated_bytes
        assert allocated_bytes(events)[-1] == rank.end_bytes


def test_blocks_tile_their_segment_and_are_what_lives_on(report: Report) -> None:
    data = snapshot(report)
    for number, (segment, rank) in enumerate(zip(data["segments"], report.ranks, strict=True)):
        assert segment["device"] == number
        ends = [block["address"] + block["size"] for block in segment["blocks"]]
        assert [segment["address"], *ends[:-1]] == [block["address"] for block in segment["blocks"]]
        assert ends[-1] == segment["address"] + segment["total_size"]
        live = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
        assert sum(block["requested_size"] for block in live) == segment["requested_size"] == rank.end_bytes
        assert sum(block["size"] for block in live) == segment["allocated_size"] == segment["active_size"]
        assert all(block["frames"] and block["size"] >= block["requested_size"] > 0 for block in live)


def test_protocol_4_whatever_python_writes_by_itself(plain: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "DEFAULT_PROTOCOL", 5)
    data = pickled(plain)
    assert data[:2] == bytes([0x80, 4])
    assert VIEWER["protocols"][0] <= data[1] <= VIEWER["protocols"][1]


def test_the_viewer_knows_every_opcode(report: Report) -> None:
    used = {opcode.name for opcode, _, _ in pickletools.genops(pickled(report))}
    assert used - set(VIEWER["opcodes"]) == set()
    assert used & {"BINUNICODE", "SHORT_BINUNICODE"}


def test_nothing_but_plain_data(report: Report) -> None:
    def kinds(value: object) -> Iterator[type]:
        yield type(value)
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, list | tuple):
            for member in value:
                yield from kinds(member)

    assert set(kinds(snapshot(report))) <= {dict, list, tuple, str, int, float, bool, type(None)}
    assert pickle.loads(pickled(report)) == snapshot(report)  # noqa: S301 - our own bytes


def test_one_event_is_of_no_known_category_and_of_no_tensor(report: Report) -> None:
    for events in snapshot(report)["device_traces"]:
        unknown = [e for e in events if e.get("category") == "unknown"]
        assert [e["action"] for e in unknown] == ["segment_alloc"]
        assert {e["category"] for e in events if e["action"] == "alloc"} >= {"activation"}


def test_what_lies_outside_the_allocator_is_told_and_not_counted(plain: Report) -> None:
    data = snapshot(plain)
    (rank,) = plain.ranks
    assert rank.peak is not None
    assert rank.peak.outside["context"] > 0
    (device,) = data["rankscope"]["devices"]
    assert (device["outside"], device["peak_allocated_bytes"]) == (rank.peak.outside, rank.peak.allocated_bytes)
    assert not any(e.get("category") in rank.peak.outside for e in data["device_traces"][0])


def test_addresses_are_javascripts_and_no_two_blocks_overlap(report: Report) -> None:
    data = snapshot(report)
    ends = [segment["address"] + segment["total_size"] for segment in data["segments"]]
    assert max(ends) < 2**53
    assert all(end <= after["address"] for end, after in zip(ends, data["segments"][1:], strict=False))
    for segment, events in zip(data["segments"], data["device_traces"], strict=True):
        live: dict[int, int] = {}
        for e in events:
            if e["action"] == "alloc":
                assert e["size"] > 0
                assert segment["address"] <= e["addr"]
                assert e["addr"] + e["size"] <= segment["address"] + segment["total_size"]
                assert e["addr"] not in live
                live[e["addr"]] = e["size"]
                assert_apart(live, e["addr"])
            elif e["action"] == "free_completed":
                assert live.pop(e["addr"]) == e["size"]


def test_devices_that_need_more_than_lies_between_them_do_not_overlap(staged: Report, monkeypatch: pytest.MonkeyPatch
                                                                      ) -> None:
    monkeypatch.setattr(module, "_APART", 2**21)
    segments = snapshot(staged)["segments"]
    assert max(segment["total_size"] for segment in segments) > 2**21
    for before, after in itertools.pairwise(segments):
        assert before["address"] + before["total_size"] <= after["address"]


def assert_apart(live: dict[int, int], address: int) -> None:
    assert all(start + size <= address or address + live[address] <= start for start, size in live.items()
               if start != address)


def test_a_free_is_two_events_side_by_side(report: Report) -> None:
    for events in snapshot(report)["device_traces"]:
        asked = [n for n, e in enumerate(events) if e["action"] == "free_requested"]
        done = [n for n, e in enumerate(events) if e["action"] == "free_completed"]
        assert done == [n + 1 for n in asked]
        assert all(events[n]["addr"] == events[n + 1]["addr"] for n in asked)


def test_events_are_in_order_of_time_and_the_segment_is_there_first(report: Report) -> None:
    data = snapshot(report)
    for segment, events in zip(data["segments"], data["device_traces"], strict=True):
        dates = [e["time_us"] for e in events]
        assert dates == sorted(dates)
        assert dates[-1] > 0
        first = events[0]
        assert (first["action"], first["addr"], first["size"]) == (
            "segment_alloc", segment["address"], segment["total_size"])
        assert {e["action"] for e in events[1:]} <= {"alloc", "free_requested", "free_completed", "oom"}


def test_stacks_say_tensor_layer_and_phase_and_no_frame_is_filtered_out(report: Report) -> None:
    seen: set[str] = set()
    for events in snapshot(report)["device_traces"]:
        for e in events[1:]:
            inner, layer, phase = e["frames"]
            assert inner["filename"] == e.get("category", inner["filename"])
            assert layer["name"] != ""
            seen.add(phase["name"])
            for frame in e["frames"]:
                assert set(frame) == {"filename", "line", "name"}
                assert not any(word in frame["name"] for word in VIEWER["filtered_names"])
                assert not any(word in frame["filename"] for word in VIEWER["filtered_files"])
    assert {"at rest", "forward", "backward"} <= seen


def test_where_it_does_not_fit_the_first_allocation_without_room_is_an_oom(full: Report, plain: Report) -> None:
    assert full.verdict == "oom"
    (events,) = snapshot(full)["device_traces"]
    (at,) = [n for n, e in enumerate(events) if e["action"] == "oom"]
    oom, refused = events[at], events[at + 1]
    assert refused["action"] == "alloc"
    assert refused["size"] == oom["size"] > oom["device_free"] >= 0
    assert "addr" not in oom
    assert allocated_bytes(events)[at] < max(allocated_bytes(events))
    assert not any(e["action"] == "oom" for e in snapshot(plain)["device_traces"][0])


def test_a_long_trace_is_told_by_layer_and_category_and_keeps_its_peak(plain: Report) -> None:
    short = simulated(postings=300)
    assert len(pickled(short)) < len(pickled(plain)) / 2
    test_replayed_it_is_the_report(short)
    (note,) = [line for line in notes(short) if "not told by themselves" in line]
    births = sum(e["action"] == "alloc" for e in snapshot(plain)["device_traces"][0])
    assert note.startswith(f"{births:,} allocations")
    assert note in snapshot(short)["rankscope"]["notes"]
    assert not any("not told by themselves" in line for line in notes(plain))


def test_microbatches_that_are_not_written_out_are_told() -> None:
    many = simulated("megatron", {"dp_shard": 2}, microbatches=32)
    assert any(line.endswith("the others repeat the steady ones") for line in notes(many))
    assert not any("microbatches" in line for line in notes(simulated("megatron", {"dp_shard": 2}, microbatches=1)))


def test_all_microbatches_are_written_out_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    few = simulated("megatron", {"dp_shard": 2}, microbatches=32)
    assert whole_fits(few)
    assert not whole_fits(simulated("megatron", {"dp_shard": 2}, microbatches=1))
    assert not whole_fits(simulated("megatron", {"dp_shard": 2}, microbatches=32, postings=300))
    monkeypatch.setattr(module, "MAX_POSTINGS", 5000)
    assert not whole_fits(few)


def test_an_oom_that_only_draws_have_is_told(plain: Report, full: Report) -> None:
    (note,) = [line for line in notes(plain.model_copy(update={"verdict": "oom"})) if "draw" in line]
    assert note not in (*notes(plain), *notes(full))


def test_a_report_without_lifetimes_has_no_snapshot() -> None:
    with pytest.raises(ValueError, match="without lifetimes"):
        snapshot(simulate(small.scenario("fsdp2", {"dp_shard": 4}), detail=True))


def test_first_fit_takes_the_first_gap_that_holds_it() -> None:
    gaps = module._Gaps()
    assert [gaps.take(size) for size in (4, 8, 4, 2)] == [0, 4, 12, 16]
    gaps.give(4, 8)
    gaps.give(0, 4)
    assert (gaps.starts, gaps.sizes) == ([0], {0: 12})
    assert (gaps.take(5), gaps.take(7), gaps.take(1)) == (0, 5, 18)
    assert gaps.end == 19


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, whose memory_viz reads the file")
def test_torchs_own_tool_reads_it(full: Report, tmp_path: Path) -> None:
    path = tmp_path / "mem.pickle"
    path.write_bytes(pickled(full))
    html = ("-o", str(tmp_path / "out.html"))
    for command in (("stats",), ("trace",), ("trace_plot", *html), ("trace_plot", "-s", "-f", *html),
                    ("segment_plot", *html)):
        tool = [sys.executable, "-m", "torch.cuda._memory_viz", command[0], str(path), *command[1:]]
        ran = subprocess.run(tool, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
