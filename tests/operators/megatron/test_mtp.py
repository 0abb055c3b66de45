"""Multi-token prediction of Megatron-Core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.megatron.kinds import ATTENTION, MOE, MTP, SHARED_HEAD, V3, H, T, kept_in, live_bytes, run_of
from simcore.models.blocks import Head, LayerKind, Mtp
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Op


@pytest.mark.parametrize("sp", [1, 4])
def test_multi_token_prediction_keeps_the_closed_form(sp: int) -> None:
    """By the source: inputs of three norms and of the projection (both halves), and what a layer keeps.

    The projected stream is gathered over tp and cut: what the layer keeps as its input is a view of all of it.
    """
    run = run_of(MTP, tp=sp, sequence_parallel=sp > 1)
    inner = kept_in(V3, run_of(V3, tp=sp, sequence_parallel=sp > 1)) + (sp - 1) * 2 * 7168 * T // sp
    norms, projection = 3 * (2 * 7168 + 4), 2 * 2 * 7168
    assert kept_in(MTP, run) == inner + (norms + projection) * T // sp
    joined = [r[3] for r in record(MTP, run, {}, {}).forward.rows if r[0] == Op.ALLOC and r[2] == HIDDEN]
    assert joined == [2 * 2 * 7168 * T // sp], "both outputs in one tensor"


@pytest.mark.parametrize("loss", ["megatron", "te"])
@pytest.mark.parametrize("sp", [1, 4])
def test_a_shared_head_keeps_the_other_loss(loss: str, sp: int) -> None:
    """The module's logits live until its caller is over; of its loss stay the mask and what is scaled, fp32 each."""
    tape = record(SHARED_HEAD, run_of(SHARED_HEAD, tp=sp, sequence_parallel=sp > 1, loss=loss), {}, {})
    logits = 2 * 129280 // sp * T
    of_loss = 2 * logits + {"megatron": (1 + 8) * T, "te": 0}[loss] + 2 * 4 * T
    kept = [r for r in tape.forward.rows if r[0] in (Op.ALLOC, Op.FREE) and r[2] != HIDDEN]
    assert sum(r[3] for r in kept) == of_loss + logits
    assert [r[3] for r in tape.after.rows] == [-logits]
    crossed = [(r[1], r[3]) for s in (tape.forward, tape.after, tape.backward) for r in s.rows
               if r[0] in (Op.ALLOC, Op.FREE) and r[2] == HIDDEN]
    assert crossed == [(0, logits), (-1, -2 * 2 * 7168 * T // sp)]


def test_a_shared_head_adds_its_weight_gradients() -> None:
    """Autograd's sum of both, even of TE's idle tensors; one that waits where a GEMM does not add it to main_grad."""
    weight = 2 * 7168 * 129280
    for fused, born in ((True, 1), (False, 3)):
        run = run_of(SHARED_HEAD, options=MegatronOptions(gradient_accumulation_fusion=fused))
        rows = record(SHARED_HEAD, run, {}, {}).backward.rows
        assert [r[3] for r in rows if r[0] == Op.ALLOC].count(weight) == born
        assert live_bytes([record(SHARED_HEAD, run, {}, {}).backward], (HIDDEN, GRAD_HIDDEN))[0] < 0


def test_multi_token_prediction_recomputes_all_but_embedding_and_head() -> None:
    """`_checkpointed_forward` keeps its two inputs, the embedding and the decoder's output, as the norms do."""
    full, none = (kept_in(MTP, run_of(MTP, checkpoint=how)) for how in ("full", "none"))
    assert none - full == kept_in(V3, run_of(V3)) + (3 * 4 + 2 * 2 * 7168 + 2 * 7168) * T


def test_a_hybrids_module_may_predict_several_tokens() -> None:
    """By the source: each further token keeps as much as one more run of the layers, three norms and projection."""
    one, two = (LayerKind("mtp", "nemotron_h", H, (*ATTENTION.branches, *MOE.branches), Mtp(H, 1024, depths=depths))
                for depths in (1, 2))
    layers = sum(kept_in(kind, run_of(kind)) for kind in (ATTENTION, MOE))
    layers -= (4 + 1) * 128 * T  # the dispatcher holds one map, and fp32 probabilities: those of the last run
    norms, projection = 3 * (2 * H + 4), 2 * 2 * H
    assert kept_in(two, run_of(two)) - kept_in(one, run_of(one)) == layers + (norms + projection) * T
    joined = [r[3] for r in record(two, run_of(two), {}, {}).forward.rows
              if r[0] == Op.ALLOC and r[2] == HIDDEN and r[1] == 0]
    assert joined == [3 * 2 * H * T], "the decoder's output and both further ones"


@pytest.mark.parametrize("loss", ["megatron", "te"])
def test_a_hybrids_output_layer_runs_for_every_token(loss: str) -> None:
    """Each further token keeps its loss, its logits go with process_mtp_loss; gradients of the weight are one sum."""
    vocab = 1024
    one, two = (LayerKind("head", "nemotron_h", H, block=Head(vocab, H, shared=further)) for further in (1, 2))
    of_loss = (4 * vocab + {"megatron": 1 + 8, "te": 0}[loss] + 2 * 4) * T  # and the mask, and the scaled loss
    assert kept_in(two, run_of(two, loss=loss)) - kept_in(one, run_of(one, loss=loss)) == of_loss
    for kind in (one, two):
        slots: dict[tuple[str, str], int] = {}
        tape = record(kind, run_of(kind, loss=loss), slots, {})
        assert not [r for r in tape.after.rows if r[0] == Op.FREE and r[3] == -2 * vocab * T]
        sums = slots["mtp.grad_sum", "backward_temp"]
        assert [r[3] for r in tape.backward.rows if r[0] in (Op.ALLOC, Op.FREE) and r[2] == sums] == [
            2 * vocab * H, -2 * vocab * H]


def test_gradients_of_two_further_lookups_wait_as_one() -> None:
    """The first waits for the model's own; the second is added to it, and lies beside it for a moment."""
    kind = LayerKind("mtp", "nemotron_h", H, ATTENTION.branches, Mtp(H, 1024, depths=2))
    run = run_of(kind, loss="te")
    table = "embedding.word_embeddings.weight"
    shared = {**run.params, table: replace(run.params[table], tied=True)}
    slots: dict[tuple[str, str], int] = {}
    rows = record(kind, replace(run, params=shared), slots, {}).backward.rows
    waiting, beside = slots["tied.grad", "backward_temp"], slots[f"mtp.{table}.grad", "backward_temp"]
    assert [(r[0], r[3]) for r in rows if r[2] == waiting and r[0] in (Op.ALLOC, Op.FREE)] == [
        (Op.ALLOC, 2 * 1024 * H)]
    assert [r[3] for r in rows if r[2] == beside and r[0] in (Op.ALLOC, Op.FREE)] == [2 * 1024 * H, -2 * 1024 * H]


@pytest.mark.parametrize("depths", [1, 2, 3])
def test_lookups_of_a_later_stages_own_table_add_up_in_place(depths: int) -> None:
    """torch's engine adds to the first gradient; the table's hook sees the sum, once. Two lie side by side at most."""
    kind = LayerKind("mtp", "nemotron_h", H, ATTENTION.branches, Mtp(H, 1024, depths=depths))
    slots: dict[tuple[str, str], int] = {}
    rows = record(kind, run_of(kind, loss="te"), slots, {}).backward.rows
    sums = slots["mtp.embedding.word_embeddings.weight.grad", "backward_temp"]
    table, live, highest = 2 * 1024 * H, 0, 0
    for row in rows:
        if row[2] == sums and row[0] in (Op.ALLOC, Op.FREE):
            live += row[3]
            highest = max(highest, live)
    assert (live, highest) == (0, min(depths, 2) * table)


def test_a_frozen_table_and_head_have_no_gradients() -> None:
    """With adapters: no part of the projection's gradient for the embedding, no sum of the output layer's."""
    kind = LayerKind("mtp", "nemotron_h", H, ATTENTION.branches, Mtp(H, 1024, depths=2))
    for one, names in ((kind, ("mtp.grad_embedding_normed", "mtp.embedding.word_embeddings.weight.grad")),
                       (LayerKind("head", "nemotron_h", H, block=Head(1024, H, shared=2)), ("mtp.grad_sum",))):
        trained, frozen = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
        run = run_of(one)
        still = {name: replace(param, trainable=False) for name, param in run.params.items()}
        record(one, run, trained, {})
        record(one, replace(run, params=still), frozen, {})
        for name in names:
            assert (name, "backward_temp") in trained
            assert (name, "backward_temp") not in frozen


def test_detached_modules_leave_decoder_embedding_and_output_weight_alone() -> None:
    """By the source (main `multi_token_prediction.py` process_mtp_loss, _get_embeddings, forward): three detach()."""
    options = MegatronOptions(mtp_detach_heads=True)
    apart, joint = (run_of(MTP, options=one) for one in (options, MegatronOptions()))
    assert kept_in(MTP, apart) == kept_in(MTP, joint)
    made = {name: record(MTP, run, {}, {}).backward for name, run in (("apart", apart), ("joint", joint))}
    table = 2 * 129280 * 7168
    assert [sum(r[3] == table for r in made[name].rows if r[0] == Op.ALLOC) for name in ("joint", "apart")] == [1, 0]
    for detached, count in ((False, 3), (True, 1)):
        options = MegatronOptions(mtp_detach_heads=detached, gradient_accumulation_fusion=False)
        rows = record(SHARED_HEAD, run_of(SHARED_HEAD, options=options), {}, {}).backward.rows
        assert [r[3] for r in rows if r[0] == Op.ALLOC].count(table) == count, "gradients of the output layer's weight"


def test_further_tokens_keep_their_cross_entropy_beside_log_probabilities() -> None:
    """Chunks of NeMo RL's are no part of the head, which keeps and makes the same as beside a cross entropy."""
    chunked = run_of(SHARED_HEAD, loss="log-probabilities in chunks",
                     options=MegatronOptions(logprob_chunk_size=1024, mtp_loss="megatron"))
    plain = run_of(SHARED_HEAD, loss="megatron")
    made, usual = (record(SHARED_HEAD, run, {}, {}) for run in (chunked, plain))
    assert made.forward.rows == usual.forward.rows
    assert made.backward.rows == usual.backward.rows
