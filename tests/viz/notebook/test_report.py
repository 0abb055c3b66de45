"""The card of one result."""

from __future__ import annotations

import pytest

import fakes
from cards import parsed, words
from simcore.results.report import Report


def test_a_result_says_what_a_person_asks_first(simulated: Report) -> None:
    text, peak = words(simulated), simulated.peak_rank
    assert peak is not None
    assert "✓ Fits" in text
    for name in ("peak of the device", "headroom", "step", "MFU", "Memory at the highest moment",
                 "Where the time of a step goes", "What leaves a rank in one step", "Allocated memory over one step"):
        assert name in text
    assert "all_gather · dp_shard" in text


def test_without_memory_over_the_step_there_is_no_chart() -> None:
    assert "Allocated memory over one step" not in words(fakes.report("a"))


def test_parts_of_a_step_fill_its_bar(simulated: Report) -> None:
    bar = next(svg for svg in parsed(simulated).iter("svg") if str(svg.get("aria-labelledby")).endswith("-time-title"))
    shares = [float(e.attrib["width"].rstrip("%")) for e in bar.iter("rect") if "segment" in str(e.get("class"))]
    assert len(shares) > 3
    assert sum(shares) == pytest.approx(100, abs=0.1)


def test_what_is_refused_says_why() -> None:
    text = words(fakes.illegal("odd"))
    assert "⚠ Illegal layout" in text
    assert "x.yaml:3 ep=3 does not divide 128 experts [fsdp2: experts]" in text
