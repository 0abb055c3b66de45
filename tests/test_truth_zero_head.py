"""Messages of ZeRO-3 where TRL's head reads its weight itself: `tests/truth/probe_zero_head.py`."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

import small
from checkout import ROOT

TRUTH: Final[dict[str, Any]] = json.loads(
    (ROOT / "tests/truth/deepspeed/drawn-head-0.19.6.json").read_text(encoding="utf-8"))["cases"]
APART: Final = ("h25",)
"""Adapters of which upstream gathers two linears again in backward where one is counted: the only such case."""
NAMES: Final = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}


@pytest.mark.parametrize("name", [name for name in TRUTH if name not in APART])
def test_the_heads_weight_is_gathered_where_upstream_gathers_it(name: str) -> None:
    case = TRUTH[name]
    small.forget_outlines()
    method: dict[str, Any] = {"method": "lora", "lora": {"rank": case["lora"], "target_modules": ["q_proj", "v_proj"]}}
    program = small.program_of(
        "zero3", {"dp_shard": case["ranks"]}, microbatches=2, loss="fused_lm_head",
        recompute="full" if case["checkpoint"] else "none", options=case["options"],
        model={"config": "llama-3.2-3b", "overrides": case["model"]}, **(method if case["lora"] else {}))
    theirs = [call for rows in case["found"]["microbatches"] for call in rows if call[1] > 8]
    for call, told in NAMES.items():
        ours = [size for _, phase, size in small.calls(program, call) if phase != "optimizer" and size]
        assert ours == [size for one, size in theirs if one == told], call
