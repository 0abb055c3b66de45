"""Slices of a thread: a span that starts later covers the one in which it starts; nothing is counted twice."""

from __future__ import annotations

from functools import cache

import pytest

import small
from simcore.results.detail import ClassDetail, Span
from simcore.results.report import Report
from simcore.simulate import simulate
from viz.exports.slices import Process, left_out, plain, processes


@cache
def simulated() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 4}), detail=True)


def with_spans(*spans: Span, end_s: float) -> Process:
    report = simulated()
    assert report.detail is not None
    assert report.time is not None
    detail = report.detail.model_copy(update={"classes": (ClassDetail(spans=spans),), "end_s": end_s})
    time = report.time.model_copy(update={"step_s": end_s + 5e-9})
    (process,) = processes(report.model_copy(update={"detail": detail, "time": time}))
    return process


def kernel(start: int, end: int, kind: str = "forward") -> Span:
    return Span(lane="compute", kind=kind, label="a", start_s=start / 1e9, end_s=end / 1e9)


def call(start: int, end: int, num_bytes: int, count: int = 1) -> Span:
    return Span(lane="reduce", kind="all_reduce", label="tp", start_s=start / 1e9, end_s=end / 1e9, bytes=num_bytes,
                exposed_s=num_bytes / 1e9, count=count, meets="one")


def seen(process: Process, thread: str) -> list[tuple[str, int, int]]:
    return [(piece.name, piece.start, piece.end) for piece in process.threads[thread]]


def test_waits_are_cut_out_of_the_kernels_in_whose_midst_they_fall() -> None:
    process = with_spans(kernel(0, 100), kernel(30, 40, "host"), kernel(60, 70, "bubble"), kernel(100, 120, "backward"),
                         end_s=120e-9)
    assert seen(process, "compute") == [("forward a", 0, 30), ("forward a", 40, 60), ("forward a", 70, 100),
                                        ("backward a", 100, 120)]
    assert seen(process, "waits") == [("waiting for the host", 30, 40), ("waiting for another stage (bubble)", 60, 70),
                                      ("waiting for the host", 120, 125)]
    assert seen(process, "step") == [("step", 0, 125), ("forward 0", 0, 100), ("backward 0", 100, 120)]


def test_pieces_that_cross_are_cut_where_the_later_one_starts() -> None:
    process = with_spans(kernel(0, 60), kernel(0, 50, "loss"), kernel(40, 90, "host"), end_s=90e-9)
    assert seen(process, "compute") == [("loss a", 0, 40)]
    assert seen(process, "waits")[0] == ("waiting for the host", 40, 90)


def test_what_is_counted_of_a_span_is_in_its_first_piece() -> None:
    process = with_spans(kernel(0, 99), call(0, 90, 700, 3), call(0, 20, 10), call(30, 40, 8), end_s=99e-9)
    pieces = process.threads["reduce"]
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 20), (20, 30), (30, 40), (40, 90)]
    spans = [piece.span for piece in pieces if piece.span]
    assert [span.bytes for span in spans] == [10, 700, 8, 0]
    assert sum(span.exposed_s for span in spans) == pytest.approx(718e-9)
    assert [span.count for span in spans] == [1, 3, 1, 1]
    assert [bool(span.meets) for span in spans] == [True, True, True, False]


@pytest.mark.parametrize(("texts", "members"), [
    (("5",), [5]), (("0-3",), [0, 1, 2, 3]), (("0-6:3", "7"), [0, 3, 6, 7])])
def test_texts_of_ranks_are_read(texts: tuple[str, ...], members: list[int]) -> None:
    rank = simulated().ranks[0].model_copy(update={"ranks": texts, "memory": None})
    report = simulated().model_copy(update={"ranks": (rank,)})
    assert [process.number for process in processes(report, range(10))] == members
    assert [process.number for process in processes(report)] == members[:1]


def test_a_name_says_for_whom_a_rank_stands() -> None:
    rank = simulated().ranks[0]
    assert Process(0, rank, {}).name == "rank 0, stands for 0-3"
    assert Process(0, rank.model_copy(update={"num_ranks": 1}), {}).name == "rank 0"
    many = rank.model_copy(update={"ranks": tuple(str(2 * n) for n in range(1010)), "num_ranks": 1010})
    assert Process(4, many, {}).name == "rank 4, stands for 0, 2, 4, 6, 8, 10, 12, 14 and 1,002 runs more"


def test_of_very_many_classes_the_first_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    report = simulate(small.scenario("automodel", {"dp_shard": 2, "pp": 5}, microbatches=5), detail=True)
    assert left_out(report) == []
    monkeypatch.setattr("viz.exports.slices._MOST", 2)
    assert [process.number for process in processes(report)] == [0, 2]
    assert left_out(report) == ["2 of 5 classes of ranks are written out"]
    assert left_out(report, [8]) == []
    assert [process.number for process in processes(report, [8, 8])] == [8]


def test_odd_characters_become_their_escapes() -> None:
    assert plain("a b\u00e9\x1b\u202e\ud800\U0001f600\n") == "a b\u00e9\\x1b\\u202e\\ud800\U0001f600\\n"
