"""Results that are read again: exactly, a line at a time, and of many what a page of many shows."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import small
from checkout import ROOT
from simcore.batch.stored import for_a_list, read_results, results_in, uncollected
from simcore.errors import InputError
from simcore.inputs.loading import load
from simcore.results.report import Report
from simcore.simulate import check, simulate
from viz.pages.page import render

REFUSED = check(small.scenario("fsdp2", {"dp_shard": 6, "ep": 3}))
FITS = check(small.scenario("fsdp2", {"dp_shard": 6}))


def _stored(path: Path, *reports: Report) -> Path:
    path.write_text("".join(report.model_dump_json() + "\n" for report in reports), encoding="utf-8")
    return path


def test_results_are_read_as_they_were_written_whatever_is_known_of_the_layout(tmp_path: Path) -> None:
    """Reports share equal values; evidence of a recipe holds a mapping, which has no hash."""
    shipped = load(ROOT / "scenarios/nano-grpo/full-ep8.yaml")[0]
    reports = [simulate(shipped), FITS, simulate(shipped)]
    assert reports[0].evidence
    assert reports[0].evidence.recipes
    found = read_results(_stored(tmp_path / "results.jsonl", *reports))
    assert found == reports
    assert found[0].evidence is found[2].evidence


def test_a_baseline_may_be_lines(tmp_path: Path) -> None:
    assert read_results(_stored(tmp_path / "results.jsonl", FITS, REFUSED)) == [FITS, REFUSED]


def test_a_line_ends_only_where_a_line_ends(tmp_path: Path) -> None:
    odd = FITS.model_copy(update={"name": "a\u2028b\u0085c"})
    assert read_results(_stored(tmp_path / "results.jsonl", odd, FITS)) == [odd, FITS]


def test_a_line_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = _stored(tmp_path / "results.jsonl", FITS, REFUSED)
    text = path.read_text(encoding="utf-8")
    path.write_text(text[:-40], encoding="utf-8")
    with pytest.raises(InputError, match=r"results\.jsonl:2: the last line is cut off"):
        read_results(path)
    path.write_text("{\n" + text, encoding="utf-8")
    with pytest.raises(InputError, match=r"results\.jsonl:1: is no result"):
        read_results(path)


@pytest.mark.parametrize("name", ["results.jsonl", "main.json"])
def test_what_is_nested_without_end_is_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"a":' * 100_000, encoding="utf-8")
    with pytest.raises(InputError, match="is no result"):
        read_results(path)


def test_numbers_without_end_are_told(tmp_path: Path) -> None:
    timed = simulate(small.scenario("fsdp2", {"dp_shard": 6}))
    assert timed.time is not None
    path = _stored(tmp_path / "results.jsonl", timed)
    text = path.read_text(encoding="utf-8")
    for odd in ("NaN", "1e999", "-Infinity"):
        path.write_text(text.replace(f'"step_s":{timed.time.step_s}', f'"step_s":{odd}'), encoding="utf-8")
        with pytest.raises(InputError, match="is no result"):
            read_results(path)


def test_a_step_of_no_time_is_no_result(tmp_path: Path) -> None:
    timed = simulate(small.scenario("fsdp2", {"dp_shard": 6}))
    assert timed.time is not None
    none = timed.model_copy(update={"time": timed.time.model_copy(update={"step_s": 0.0})})
    with pytest.raises(InputError, match="is no result"):
        read_results(_stored(tmp_path / "results.jsonl", none))


def test_a_device_without_memory_is_no_result(tmp_path: Path) -> None:
    path = _stored(tmp_path / "results.jsonl", FITS.model_copy(update={"capacity_bytes": 0}))
    with pytest.raises(InputError, match="is no result"):
        read_results(path)


@pytest.mark.parametrize("name", ["results.jsonl", "main.json"])
def test_a_name_may_be_a_word_for_no_number(tmp_path: Path, name: str) -> None:
    odd = FITS.model_copy(update={"name": "NaN[Infinity=1e999]"})
    path = _stored(tmp_path / "results.jsonl", odd)
    (tmp_path / name).write_text(path.read_text() if name != "main.json" else f"[{path.read_text()}]")
    assert read_results(tmp_path / name) == [odd]


def test_lines_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    path = _stored(tmp_path / "results.jsonl", FITS)
    path.write_text(path.read_text() + "no result\n")
    some = results_in(path)
    assert next(some) == FITS
    with pytest.raises(InputError, match=r"results\.jsonl:2"):
        next(some)


def test_collection_is_as_before_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("no result\n")
    for begin in (gc.enable, gc.disable):
        begin()
        before = gc.isenabled()
        with pytest.raises(InputError):
            read_results(path)
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == before
    gc.enable()


def test_a_page_of_many_is_the_same_from_what_is_kept_for_a_list() -> None:
    meshes = ({"dp_shard": 4}, {"dp_shard": 2, "ep": 2}, {"dp_shard": 8}, {"dp_shard": 1})
    some = [simulate(small.scenario(framework, mesh)) for framework in ("fsdp2", "megatron") for mesh in meshes]
    every = [*some, REFUSED, *(one.model_copy(update={"name": f"again {one.name}"}) for one in some)]
    assert render([*map(for_a_list, every)]) == render(every)
    assert [for_a_list(one).job_verdict for one in every] == [one.job_verdict for one in every]
    timed = next(one for one in some if one.time)
    assert len(for_a_list(timed).model_dump_json()) < 0.6 * len(timed.model_dump_json())
