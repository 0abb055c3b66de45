"""Sequences that ranks share under FSDP2, as accelerate has it: what is refused, and by whom."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.simulate import simulate

SHARED = {"dp_shard": 2, "cp": 2}
SDPA = "Context parallelism is supported only with SDPA attention, you are using eager"


def _told(options: dict[str, Any] | None = None, model: Any = "llama-tiny", **training: Any) -> str:
    report = simulate(small.scenario("fsdp2", SHARED, model=model, options=options, **training))
    return "; ".join(str(problem.message) for problem in report.problems)


@pytest.mark.parametrize(("options", "model", "training", "told"), [
    ({"attn_implementation": "eager"}, "llama-tiny", {}, SDPA),
    ({}, "gemma-3-1b", {}, "does not support attention layers of type ['sliding_attention']"),
    ({}, "nemotron-3-tiny", {}, "other layers than attention and MLPs"),
    ({}, "llama-tiny", {"seq_len": 66}, "66 over cp 2, which torch shares without a balance"),
    ({}, "llama-tiny", {"lengths": "packed", "packed_length": 16}, "Packing is not compatible with context paral"),
    ({}, "llama-tiny", {"loss": "liger"}, "liger beside accelerate's context parallelism"),
    ({"use_liger_kernel": True}, "llama-tiny", {}, "kernels of that kind beside accelerate's"),
    ({"sdpa_backend": "math"}, "llama-tiny", {}, "attention of plain operators over sequences that ranks share"),
])
def test_what_accelerates_context_parallelism_does_not_do(options: dict[str, Any], model: str,
                                                          training: dict[str, Any], told: str) -> None:
    assert told in _told(options, model, **training)


def test_copies_without_shards_are_refused_as_accelerate_refuses_them() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_replicate": 2, "cp": 2}, model="llama-tiny"))
    assert "cannot be used with pure data parallelism" in report.problems[0].message


@pytest.mark.parametrize(("axis", "told"), [("cp", "dpo with accelerate's context"), ("tp", "dpo with transformers'")])
def test_preferences_are_not_answered_with_the_trainers_plans(axis: str, told: str) -> None:
    """NeMo RL's DPO has plans and a context of its own."""
    given = small.scenario("fsdp2", {"dp_shard": 2, axis: 2}, model="llama-tiny").model_copy(update={"workload": "dpo"})
    assert told in simulate(given).problems[0].message


def test_ranks_that_share_sequences_run_sdpa_by_a_ring_and_flash_attn_by_verls_exchanges() -> None:
    assert _told() == _told({"attn_implementation": "flash_attention_2"}) == ""
    rings, exchanges = (small.prepared("fsdp2", SHARED, model="llama-tiny", options=options)[1].options
                        for options in (None, {"attn_implementation": "flash_attention_2"}))
    assert (rings.sequences, exchanges.sequences) == ("ring", "parts")  # type: ignore[attr-defined]
