"""Output layer and losses of Megatron-Core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from operators.megatron.kinds import EMBEDDING, HEAD, LOSS, T, V, kept_in, live_bytes, run_of
from simcore.models.blocks import Head
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.tape import Kernel, Op


def test_loss_heads_keep_and_peak_as_measured() -> None:
    # research/nano_runs.md section 3, one head, in units of bytes per token and vocabulary entry.
    for loss, kept, forward, backward in (("megatron", 4, 6, 10), ("megatron_unfused", 4, 6, 6), ("te", 4, 6, 6),
                                          ("te_inplace", 2, 2, 2)):
        run = run_of(LOSS, loss=loss)
        tape = record(LOSS, run, {}, {})
        unit, logits = T * V, 2 * T * V
        small = 64 * T  # masks, targets and losses: a few bytes a token
        assert kept_in(LOSS, run) == pytest.approx(kept * unit, abs=small)
        _, top = live_bytes((tape.forward,))
        assert logits + top == pytest.approx(forward * unit, abs=small)
        _, top = live_bytes((tape.seed, tape.backward))
        assert kept_in(LOSS, run) + top == pytest.approx(backward * unit, abs=small)


def test_logits_in_fp32_become_their_own_gradient() -> None:
    """Without fusion `float()` copies nothing, and all is done in place (core `tensor_parallel/cross_entropy.py`)."""
    tape = record(LOSS, replace(run_of(LOSS, loss="megatron_unfused"), compute="fp32"), {}, {})
    unit, small = T * V, 64 * T
    assert live_bytes((tape.forward,))[1] <= small
    kept, _ = live_bytes((tape.forward, tape.after))
    assert kept <= small
    births = [row[3] for row in tape.backward.rows if row[0] == Op.ALLOC and row[3] > small]
    deaths = [-row[3] for row in tape.backward.rows if row[0] == Op.FREE and -row[3] > small]
    assert births == deaths == [4 * unit]


@pytest.mark.parametrize(("fuses", "opens_first"), [(True, True), (False, False)])
def test_a_bucket_is_made_when_the_product_or_the_hook_wants_it(fuses: bool, opens_first: bool) -> None:
    """Megatron-FSDP: the output layer's bucket, before or after what autograd makes of the weight's gradient."""
    options = MegatronOptions(gradient_buckets=True, gradient_accumulation_fusion=fuses)
    tape = record(HEAD, replace(run_of(HEAD), options=options), {}, {})
    marks = [at for at, row in enumerate(tape.backward.rows) if row[0] == Op.MARK]
    products = [at for at, row in enumerate(tape.backward.rows) if row[0] == Op.COMPUTE]
    assert len(marks) == 1
    assert (marks[0] < max(products)) is opens_first


@pytest.mark.parametrize(("loss", "passes", "operators"), [("megatron_unfused", (9, 3), [18, 8]),
                                                           ("megatron", (5, 4), [0, 0])])
def test_native_losses_pass_over_an_fp32_softmax(loss: str, passes: tuple[int, int], operators: list[int]) -> None:
    """And one over the logits, or their gradient, in bf16. Without fusion each is torch's own operator."""
    tape = record(LOSS, replace(run_of(LOSS), loss=loss), {}, {})
    rows = [r for section in (tape.forward, tape.backward) for r in section.rows
            if r[0] == Op.COMPUTE and r[2] == Kernel.ELEMENTWISE]
    assert [r[5] for r in rows] == [T * V * (4 * count + 2) for count in passes]
    assert [int(shapes_in(np.array([r[4]]))[0]) for r in rows] == operators


def test_a_head_in_8_bits_is_a_column_parallel_linear_of_transformer_engine() -> None:
    """Its three products read 8 bits, its input is kept in 8 bits, its gradient is cast (Megatron-LM d98e8a64)."""
    eight = replace(HEAD, fp8=True)
    options = MegatronOptions(fp8_recipe="mxfp8", fp8_transposes=True, keeps_fp8_weights=True)
    run = replace(run_of(HEAD), options=options)
    tapes = [record(kind, run, {}, {}) for kind in (HEAD, eight)]
    products = [[row[2] for tape in (found.forward, found.backward) for row in tape.rows
                 if row[0] == Op.COMPUTE and row[2] in (Kernel.GEMM, Kernel.FP8_GEMM)] for found in tapes]
    assert products == [3 * [Kernel.GEMM], 3 * [Kernel.FP8_GEMM]]
    size = T * HEAD.hidden
    assert kept_in(HEAD, run) - kept_in(eight, run) in (0, 2 * size - size * 33 // 32)
    peaks = [live_bytes((found.backward,))[1] for found in tapes]
    assert peaks[1] - peaks[0] == 2 * T * V * 33 // 32


def test_a_scaled_embedding_is_a_tensor_more_while_it_is_multiplied() -> None:
    """Gemma's, behind the lookup, and its gradient is one more before the table's."""
    plain, scaled = (record(kind, run_of(kind), {}, {}) for kind in (EMBEDDING, replace(EMBEDDING, scaled=True)))
    size = 2 * EMBEDDING.hidden * T
    for one, other in ((plain.forward, scaled.forward), (plain.backward, scaled.backward)):
        counts = [sum(row[0] == Op.ALLOC and row[3] == size for row in section.rows) for section in (one, other)]
        assert counts[1] == counts[0] + 1


def test_logits_below_a_cap_keep_what_tanh_has_made() -> None:
    """Beside the logits there are a quotient and its tanh, then the product, of which the head keeps the tanh."""
    assert isinstance(HEAD.block, Head)
    capped = replace(HEAD, block=replace(HEAD.block, capped=True))
    plain, more = (live_bytes((record(kind, run_of(kind), {}, {}).forward,)) for kind in (HEAD, capped))
    assert more[0] - plain[0] == 2 * T * V
    assert more[1] - plain[1] == 2 * 2 * T * V
