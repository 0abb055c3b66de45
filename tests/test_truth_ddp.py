"""Buckets of torch's DistributedDataParallel as they were reduced: `tests/truth/probe_ddp.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.simulate import simulate

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/ddp/torch-2.13.0.json").read_text(encoding="utf-8"))
OPTIMIZER: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/ddp/optimizer-torch-2.13.0.json").read_text(encoding="utf-8"))["cases"]
PRESETS = {"llama": "llama-3.2-3b", "qwen2": "qwen2.5-7b"}


@pytest.mark.parametrize("name", TRUTH["cases"])
def test_buckets_are_reduced_as_upstream_reduces_them(name: str) -> None:
    case = TRUTH["cases"][name]
    model = {"config": PRESETS[case["type"]], "overrides": case["model"]}
    program = small.program_of("ddp", {"dp_replicate": 8}, model=model, options=case["options"])
    assert [size for *_, size in small.calls(program, "all_reduce")] == case["found"]["later"]


@pytest.mark.parametrize("name", TRUTH["cases"])
def test_the_first_step_has_one_bucket_of_the_same_bytes(name: str) -> None:
    """Why buckets of the first step are not modelled: their bytes are the same."""
    found = TRUTH["cases"][name]["found"]
    assert found["first"] == [sum(found["later"])]


@pytest.mark.parametrize("name", OPTIMIZER)
def test_the_peak_and_the_end_of_a_step_on_one_process(name: str) -> None:
    """With the optimizer after backward or inside it, tied or not: `tests/truth/probe_optimizer.py`."""
    case = OPTIMIZER[name]
    report = simulate(small.scenario(
        "ddp", model={"config": case["preset"], "overrides": case["overrides"]}, recompute="full",
        options={"optimizer_in_bwd": case["optimizer_in_bwd"]}))
    (rank,) = report.ranks
    assert rank.peak is not None
    assert rank.end_bytes is not None
    kept = rank.peak.by_category["workspace"]  # no library multiplies fake tensors
    found = {"peak": rank.peak.allocated_bytes - kept, "end": rank.end_bytes - kept}
    assert found == case["found"]
