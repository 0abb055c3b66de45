"""A snapshot's peak and what was there, by hand; files that are no snapshot."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

import recorded
import small
from recorded import BACKWARD, FORWARD, LOADED, MIB, STATES
from simcore.errors import InputError
from simcore.simulate import simulate
from simcore.validation.memory_snapshot import Dump, read_dump
from viz.exports.snapshot import MAX_POSTINGS, pickled


def read(value: object) -> Dump:
    return read_dump(pickle.dumps(value), "mem.pickle")


def refused(value: object) -> str:
    with pytest.raises(InputError) as caught:
        read(value)
    return caught.value.problems[0].message


def test_the_peak_of_the_window_and_what_was_there() -> None:
    dump = read(recorded.step())
    assert dump.peak_bytes == 35 * MIB - 100
    assert dump.end_bytes == 25 * MIB
    assert dump.groups == {
        "parameters": 10 * MIB, "activations": 8 * MIB, "backward: gradients and temporaries": 6 * MIB,
        "reduced gradients and their buffers": 5 * MIB - 100, "gathered parameters": 4 * MIB, "other": 2 * MIB}
    assert (dump.reserved_bytes, dump.device, dump.devices, dump.num_events) == (64 * MIB, 0, (0,), 17)
    assert (dump.ours, dump.has_frames, dump.refused) == (False, True, False)


def test_what_is_waiting_to_be_freed_is_free_as_torch_counts() -> None:
    held = [("alloc", 0, MIB, FORWARD), ("alloc", 5, MIB, FORWARD), ("free_requested", 0, MIB, [])]
    waiting = read(recorded.snapshot(held, [(5, MIB, FORWARD)]))
    assert (waiting.peak_bytes, waiting.end_bytes) == (2 * MIB, MIB)


def test_a_completion_whose_request_was_lost_changes_nothing() -> None:
    events = [("free_completed", 7, 3 * MIB, []), ("alloc", 7, MIB, FORWARD)]
    dump = read(recorded.snapshot(events, [(7, MIB, FORWARD)]))
    assert (dump.peak_bytes, dump.end_bytes) == (MIB, MIB)


def test_a_lost_free_is_found_when_its_address_is_used_again() -> None:
    events = [("alloc", 7, 3 * MIB, FORWARD), ("alloc", 7, MIB, FORWARD)]
    dump = read(recorded.snapshot(events, [(7, MIB, FORWARD)]))
    assert (dump.peak_bytes, dump.end_bytes) == (3 * MIB, MIB)


def test_segments_that_were_given_back_were_reserved() -> None:
    events = [("segment_alloc", 100, 40 * MIB, []), ("alloc", 1, MIB, FORWARD), ("segment_free", 100, 40 * MIB, []),
              ("segment_map", 0, 4 * MIB, [])]
    assert read(recorded.snapshot(events, [(1, MIB, FORWARD)])).reserved_bytes == (64 - 4 + 40) * MIB


def test_an_allocation_that_failed_is_told() -> None:
    events = [("alloc", 1, MIB, FORWARD), ("oom", 3, 9 * MIB, FORWARD)]
    dump = read(recorded.snapshot(events, [(1, MIB, FORWARD)]))
    assert dump.refused
    assert dump.peak_bytes == MIB


def test_of_several_devices_the_fullest() -> None:
    low, high = (recorded.snapshot([], [(0, size * MIB, LOADED)], device=device) for size, device in ((3, 2), (9, 5)))
    dump = read({**low, "segments": low["segments"] + high["segments"]})
    assert (dump.device, dump.devices, dump.peak_bytes) == (5, (2, 5), 9 * MIB)


def test_without_any_frames_nothing_is_told_apart() -> None:
    dump = read(recorded.snapshot([("alloc", 1, MIB, BACKWARD)], [(1, MIB, BACKWARD)]))
    assert (dump.has_frames, dump.groups) == (False, {"other": MIB})


def test_blocks_of_old_snapshots_have_no_address() -> None:
    made = recorded.snapshot([], [(2, MIB, LOADED), (9, 2 * MIB, STATES)])
    for block in made["segments"][0]["blocks"]:
        del block["address"]
    made["device_traces"][0] = [{"action": "free_requested", "addr": recorded.BASE + 2 * MIB, "size": MIB},
                                {"action": "alloc", "addr": recorded.BASE + 2 * MIB, "size": MIB}]
    assert read(made).peak_bytes == 3 * MIB


def test_our_own_comes_back_by_category() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "tp": 2}), detail=True, postings=MAX_POSTINGS)
    dump = read_dump(pickled(report), "ours")
    (rank,) = report.ranks
    assert rank.peak is not None
    assert dump.ours
    assert dump.peak_bytes == rank.peak.allocated_bytes
    assert dump.end_bytes == rank.end_bytes
    assert dump.groups["optimizer states"] == rank.peak.by_category["opt_state"] + rank.peak.by_category["main_param"]
    assert sum(dump.groups.values()) == dump.peak_bytes


def test_files_that_are_damaged_anywhere_are_told_without_a_traceback() -> None:
    dice = random.Random(0)
    whole = pickle.dumps(recorded.step(), protocol=4)
    told = 0
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(dice.choice((1, 2, 9))):
            at = dice.randrange(len(content))
            content[at:at + dice.randrange(4)] = dice.randbytes(dice.randrange(4))
        try:
            read_dump(bytes(content), "mem.pickle")
        except InputError:
            told += 1
    assert told > 300


def test_what_is_no_text_is_never_spelled_out() -> None:
    endless: list[Any] = []
    for _ in range(60):
        endless = [endless, endless]
    grown = {"action": endless, "addr": 1, "size": 1, "category": endless,
             "frames": [{"filename": endless, "name": endless}]}
    held = {**grown, "action": "alloc"}
    dump = read({"segments": [], "device_traces": [[held, {**held, "addr": 2, "category": "activation"}, grown, {
        key: value for key, value in held.items() if key != "category"} | {"addr": 3}]]})
    assert dump.groups == {"other": 2, "activations": 1}


def traced(**event: object) -> dict[str, Any]:
    return {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, **event}]]}


@pytest.mark.parametrize(("value", "told"), [
    (3, "expected a dictionary, got 3"), ([], "expected a dictionary, got list"),
    ({}, "no segments and no device_traces"),
    ({"segments": []}, "has no device_traces"),
    ({"segments": 1, "device_traces": []}, "segments: expected a list, got 1"),
    ({"segments": [1], "device_traces": []}, "a segment: expected a dictionary"),
    ({"segments": [{}], "device_traces": []}, "a segment's device: expected a whole number, got nothing"),
    ({"segments": [], "device_traces": [[], []]}, "of nothing"),
    ({"segments": [], "device_traces": [[1]]}, "an event: expected a dictionary"),
    (traced(addr="x"), "addr: expected a whole number, got 'x'"),
    (traced(size=-1), "size: expected a whole number, got -1"), (traced(frames=[1]), "frames: expected"),
    (traced(frames=7), "frames: expected a list")])
def test_what_is_no_snapshot_is_told(value: Any, told: str) -> None:
    assert told in refused(value)
