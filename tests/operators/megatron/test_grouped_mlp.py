"""Experts as grouped linears: what activation and probabilities keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.megatron.kinds import GPT_MOE, MOE, PLAIN, QWEN3, T, check_closed, kept_in, run_of
from simcore.models.blocks import LayerKind, Moe
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions


def test_squared_relu_may_be_apart_from_the_probabilities() -> None:
    """Its output is kept besides fc1's: two bytes a row and expert column."""
    kept = [kept_in(MOE, run_of(MOE, ep=8, options=options)) for options in (
        MegatronOptions(use_fused_weighted_squared_relu=False), PLAIN)]
    assert kept[0] - kept[1] == 6 * T * 2 * 1856


def test_experts_with_gelu_keep_what_both_factors_read() -> None:
    """Input, fc1's output, GELU's output, and the product: the rows of one rank by two experts a token."""
    def kept(ffn: int) -> int:
        block = Moe(512, 8, 2, ffn, 0, router="softmax", gelu=True)
        kind = replace(GPT_MOE, branches=(GPT_MOE.branches[0], replace(GPT_MOE.branches[1], block=block)))
        return kept_in(kind, run_of(kind, top_k=2, ep=4))

    assert kept(2048) - kept(1024) == 2 * T * 1024 * 3 * 2


@pytest.mark.parametrize(("kind", "options", "dropped"), [
    (GPT_MOE, PLAIN, 2 * (2 * 1024 + 2 * 1024)),
    (QWEN3, MegatronOptions(bias_activation_fusion=False), 8 * 4 * 2 * 768)])
def test_an_unfused_activation_is_made_again_too(kind: LayerKind, options: MegatronOptions,
                                                 dropped: int) -> None:
    """Drops of a row GELU's output and its product with the probability; of SwiGLU its halves, theirs, and that too.

    Two rows a token, and eight.
    """
    kept = [kept_in(kind, run_of(kind, options=options, checkpoint=again)) for again in ("none", "moe_act")]
    assert kept[0] - kept[1] == dropped * T
    run = run_of(kind, options=options, checkpoint="moe_act", tokens=512)
    check_closed(kind, run, record(kind, run, {}, {}))
