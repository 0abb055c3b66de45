"""Buckets of torch's DistributedDataParallel as they were reduced: `tests/truth/probe_ddp.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small

TRUTH: dict[str, Any] = json.loads((Path(__file__).parent / "truth/ddp/torch-2.13.0.json").read_text(encoding="utf-8"))
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
