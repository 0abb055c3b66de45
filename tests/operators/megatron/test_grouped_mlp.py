"""Experts as grouped linears: what activation and probabilities keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.megatron.kinds import GPT_MOE, MOE, PLAIN, QWEN3, T, check_closed, kept_in, run_of
from simcore.models.blocks import LayerKind, Moe
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.rows import Op


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


FUSER = MegatronOptions(use_transformer_engine_op_fuser=True, fp8_recipe="mxfp8", fp8_transposes=False,
                        keeps_fp8_weights=True)
COLUMNS = "mlp.experts.linear_fc2.input.fp8_columns"


@pytest.mark.parametrize(("kind", "top_k", "again"), [(MOE, 6, True), (QWEN3, 8, False)])
def test_one_operation_makes_only_squared_relu_again(kind: LayerKind, top_k: int, again: bool) -> None:
    """TransformerEngine d0067d0d ops/fused/grouped_mlp.py:1756: fc2's columns are kept, or made by dSReLU's product.

    A byte an element, and one for 32 rows of a column; no kernel of their own makes them.
    """
    kind = replace(kind, fp8=True)
    held, kernels = list[int](), list[int]()
    for checkpoint in ("none", "moe_act"):
        run = run_of(kind, options=FUSER, ep=8, top_k=top_k, checkpoint=checkpoint)
        slots: dict[tuple[str, str], int] = {}
        tape = record(kind, run, slots, {})
        check_closed(kind, run, tape)
        columns = {number for (name, _), number in slots.items() if name == COLUMNS}
        held.append(sum(row[3] for row in tape.forward.rows if row[0] in (Op.ALLOC, Op.FREE) and row[2] in columns))
        kernels.append(sum(row[0] == Op.COMPUTE for row in (*tape.forward.rows, *tape.backward.rows)))
        made = [row[3] for row in tape.backward.rows if row[0] == Op.ALLOC and row[2] in columns]
        assert made == ([held[0]] if again and checkpoint == "moe_act" else [])
    ffn = 1856 if again else 768
    assert held[0] == pytest.approx(top_k * T * ffn * 33 / 32, rel=5e-3)
    assert held[1] == (0 if again else held[0])
    assert kernels[0] == kernels[1]
