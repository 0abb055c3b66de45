"""Inputs of layers with experts that outlast a step, beside those that Megatron-Core's own schedule leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Op

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "truth/schedules/overlapped-core-0.16.1.json").read_text())
TOKENS, WIDTH = 64, 64
OVERLAP = {"overlap_moe_expert_parallel_comm": True}


def _left(*, layers: int = 3, microbatches: int = 2, shared: int = 0, options: dict[str, Any] | None = None,
          mesh: dict[str, int] | None = None, **given: Any) -> tuple[int, int]:
    """Hidden states and gradients of them that a step finds, and that it leaves; all in one dtype of two bytes."""
    model = {"config": "gpt2", "overrides": {
        "n_embd": WIDTH, "n_layer": layers, "n_head": 4, "n_inner": 128, "vocab_size": 512, "add_bias_linear": False,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
        "moe_shared_expert_intermediate_size": shared}}
    program = small.program_of("megatron", mesh or {"dp_shard": 2, "ep": 2, "etp": 1}, model=model,
                               microbatches=microbatches, options=options or {}, **given)
    rows = [(phase, row[3]) for row, phase in zip(program.columns.tolist(), program.phase.tolist(), strict=True)
            if row[0] in (Op.ALLOC, Op.FREE) and row[2] in (HIDDEN, GRAD_HIDDEN)]
    size = TOKENS * WIDTH * 2
    return sum(n for phase, n in rows if not phase) // size, sum(n for _, n in rows) // size


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['layers']}x{case['microbatches']} {case['overlap']}")
def test_a_step_leaves_what_cores_schedule_leaves(case: dict[str, Any]) -> None:
    modules = case["fields"].get("recompute_modules")
    found = _left(
        layers=case["layers"], microbatches=case["microbatches"], options=OVERLAP if case["overlap"] else {},
        shared=case["fields"].get("moe_shared_expert_intermediate_size", 0),
        **({"recompute": modules} if modules else {}))
    assert found == (case["hidden"], case["hidden"])


def test_the_flex_dispatcher_keeps_nothing() -> None:
    assert _left(options=OVERLAP | {"moe_token_dispatcher_type": "flex"}) == (0, 0)


def test_an_input_without_a_gradient_is_not_kept() -> None:
    """The first of three layers with adapters on a frozen base has such an input."""
    assert _left(options=OVERLAP, method="lora", lora={"target_modules": ["linear_qkv"]}) == (4, 4)
