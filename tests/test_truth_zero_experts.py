"""Gathers and reductions of ZeRO-3 where experts are modules: `tests/truth/probe_zero_experts.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
import zero3_calls
from checkout import ROOT
from simcore.program.program import Program
from simcore.recording.tape import Op

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/experts-0.19.6.json").read_text(encoding="utf-8"))["cases"]
PRESETS = {"qwen3_moe": ("qwen3-30b-a3b", "hf4"), "mixtral": ("mixtral-8x7b", "hf4"),
           "nemotron_h": ("nemotron-3-nano-30b-a3b", "hub")}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
DTYPES = {"uint8": "uint8", "bfloat16": "bf16", "float32": "fp32"}


def asked(name: str) -> dict[str, Any]:
    case = TRUTH[name]
    fields = dict(case["model"])
    preset, implementation = PRESETS[fields.pop("model_type")]
    lora = {"lora": {"rank": 8, "target_modules": case["targets"], "dtype": "bf16",
                     "use_dora": case.get("dora", False)}} if "targets" in case else {}
    return {"microbatches": 1, "model": {"config": preset, "overrides": fields}, "implementation": implementation,
            "options": case["options"], "method": case["method"], "seq_len": 8,
            "recompute": "full" if case["recompute"] else "none"} | lora


def made(name: str) -> Program:
    return small.program_of("zero3", {"dp_shard": 4}, **asked(name))


def fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    return zero3_calls.fetched(lambda: made(name), monkeypatch)


def upstream(name: str) -> list[list[int]]:
    return [rest for _, *rest in TRUTH[name]["found"]["fetched"]]


@pytest.mark.parametrize("name", TRUTH)
def test_every_call_has_gathered_what_upstreams_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetched(name, monkeypatch) == upstream(name)


@pytest.mark.parametrize("name", TRUTH)
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_collectives_are_upstreams_in_their_order(collective: str, name: str) -> None:
    """Every expert's gradients go into the bucket one by one; a leaf's when it is over."""
    program = made(name)
    kinds = {number: (what, dtype) for (what, _, dtype), number in program.tables.comms.items()}
    ours = [(*kinds[slot], size) for (op, _, slot, size, _, _), phase in zip(
        program.columns.tolist(), program.phase.tolist(), strict=True)
        if op == Op.COLLECTIVE and phase < max(program.phase)]
    theirs = [(OURS[what], DTYPES[dtype], size) for what, size, dtype in TRUTH[name]["found"]["calls"] if size > 8]
    assert [row for row in ours if row[0] == collective] == [row for row in theirs if row[0] == collective]


@pytest.mark.parametrize("name", TRUTH)
def test_every_linear_of_every_expert_is_cut_alone(name: str) -> None:
    plan = small.plan_of("zero3", {"dp_shard": 4}, **asked(name))
    ours = [placed.padded // placed.used_copies // placed.policy.at_rest.values for layer in plan.layers
            for placed in plan.of_layer(layer) if not placed.spec.is_buffer for _ in range(placed.used_copies)]
    assert sorted(ours) == sorted(TRUTH[name]["found"]["parts"])
