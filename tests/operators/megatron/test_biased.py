"""Experts with biases (GPT-OSS)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operators.megatron.kinds import OSS, QWEN3, T, check_closed, kept_in, run_of
from simcore.models.blocks import Moe
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.rows import HOST_STOPS
from simcore.recording.tape import Kernel, Op

APART = MegatronOptions(bias_activation_fusion=False)


@pytest.mark.parametrize("checkpoint", ["none", "moe_act"])
def test_experts_with_biases_keep_what_the_clamp_made(checkpoint: str) -> None:
    """Both halves of fc1's output again, unless the activation is made again; no scores for a balance loss."""
    attention, experts = OSS.branches
    block = Moe(2880, 32, 4, 2880, 0, gated=True, router="softmax")
    plain = replace(OSS, branches=(attention, replace(experts, block=block)))
    kept = [kept_in(kind, run_of(kind, top_k=4, ep=4, checkpoint=checkpoint)) for kind in (OSS, plain)]
    assert kept[0] - kept[1] == (4 * 2 * 2 * 2880 if checkpoint == "none" else 0) * T - 4 * 32 * T


def test_without_fusion_the_gate_its_activation_the_sum_and_their_product_are_kept() -> None:
    """For the clamped halves side by side: 6 times n in all, as core 0.16.1's `glu` keeps under torch 2.13."""
    apart, fused = (kept_in(OSS, run_of(OSS, top_k=4, options=options)) for options in (APART, MegatronOptions()))
    assert apart - fused == 4 * (4 - 2) * 2 * 2880 * T
    again = run_of(OSS, top_k=4, options=APART, checkpoint="moe_act")
    assert apart - kept_in(OSS, again) == 4 * (4 + 1) * 2 * 2880 * T  # and the input of the second product


@pytest.mark.parametrize("options", [
    {}, {"options": APART}, {"options": APART, "checkpoint": "moe_act"}, {"ep": 8},
    {"tp": 2, "sequence_parallel": True, "etp": 2}, {"checkpoint": "moe_act"}, {"lora": 8},
    {"checkpoint": "core_attn"}, {"frozen": True}])
def test_all_that_biased_experts_bear_dies(options: dict[str, Any]) -> None:
    run = run_of(OSS, top_k=4, **options)
    check_closed(OSS, run, record(OSS, run, {}, {}))


@pytest.mark.parametrize(("checkpoint", "again"), [("none", 0), ("moe_act", 1)])
def test_quick_geglu_stops_the_host_each_time_that_it_runs(checkpoint: str, again: int) -> None:
    """Besides the rows of each expert, which every layer of experts waits for."""
    stops = [[sum(r[0] == Op.WAIT and r[5] == HOST_STOPS for r in part.rows) for part in (tape.forward, tape.backward)]
             for tape in (record(kind, run_of(kind, top_k=4, checkpoint=checkpoint), {}, {}) for kind in (OSS, QWEN3))]
    assert stops == [[2, again], [1, 0]]


def test_the_second_bias_is_added_expert_by_expert() -> None:
    """Backward in fp32: 6 passes of products, sums and the first cast; rows' own gradient cast, and put together."""
    given = 4 * 2880
    rows = record(OSS, run_of(OSS, top_k=4), {}, {}).backward.rows
    moved = [r[5] // T for r in rows if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE]
    assert given * (6 * 4 + 2 * (4 + 2) + 2 * 2) in moved
