"""Sequences that ranks share under DeepSpeed: what is refused, the work, and what is cut over which ranks."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.program.program import Program
from simcore.recording.tape import Kernel, Op
from small import calls, plan_of, program_of

SMALL: dict[str, Any] = {"seq_len": 512, "model": {"config": "llama-tiny", "overrides": {
    "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}}}


def test_sequences_that_the_class_does_not_take_are_refused() -> None:
    for told, changed in (
            ("eager isn't currently supported", {"options": {"attn_implementation": "eager"}}),
            ("head count 8 is not divisible by SP size 3", {"mesh": {"dp_shard": 1, "cp": 3}, "seq_len": 510}),
            ("head count 3 is not divisible by SP size 2", {"model": {"config": "llama-tiny", "overrides": {
                "hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3}}}),
            ("seqlen=511 isn't divisible by sp-size=2", {"seq_len": 511}),
            ("packs that ranks share", {"lengths": "packed"}),
            ("with sinks or a window", {"model": {"config": "gpt-oss-20b", "overrides": {"num_hidden_layers": 2}},
                                        "options": {"attn_implementation": "flash_attention_2"}})):
        given: dict[str, Any] = {"mesh": {"dp_shard": 2, "cp": 2}, **SMALL} | changed
        mesh = given.pop("mesh")
        for stage in (0, 3):
            shares = "dp_shard" if stage else "dp_replicate"
            with pytest.raises((IllegalLayout, NotYet), match=told):
                plan_of(f"zero{stage}", {shares: mesh["dp_shard"], "cp": mesh["cp"]}, **given)


def test_ranks_share_the_work_and_zero_cuts_over_all_of_them() -> None:
    """Half of the pairs a rank; shards are as long as without; gradients travel in fp32, twice as many bytes."""
    def attended(program: Program) -> int:
        return sum(row[3] for row in program.columns.tolist() if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION)

    for stage, reduction in ((0, "all_reduce"), (1, "all_reduce"), (2, "all_reduce"), (3, "reduce_scatter")):
        alone, shared = ({"dp_shard": 4}, {"dp_shard": 2, "cp": 2}) if stage else (
            {"dp_replicate": 4}, {"dp_replicate": 2, "cp": 2})
        of = [program_of(f"zero{stage}", mesh, **SMALL) for mesh in (alone, shared)]
        assert attended(of[0]) == 2 * attended(of[1]) > 0, stage
        sent = [sum(size for *_, size in calls(one, reduction)) for one in of]
        assert 2 * sent[0] == sent[1] > 0, stage
        assert len(calls(of[1], "all_to_all")) == 8, stage
        rest = [sum(p.rest_bytes for p in plan_of(f"zero{stage}", mesh, **SMALL).of_layer(1))
                for mesh in (alone, shared)]
        assert rest[0] == rest[1], stage
    strategy = plan_of("zero3", {"dp_shard": 2, "cp": 2}, **SMALL).framework.strategy
    assert isinstance(strategy, ZeroStrategy)
    assert (strategy.axis, strategy.reduce_dtype) == ("dp_shard_cp", "fp32")
