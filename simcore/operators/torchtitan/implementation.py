"""torchtitan 0.2.2 Llama 3 and 4, Qwen3, DeepSeek V3 (`models/*/model/model.py`) on eager PyTorch 2.13: tensors, tapes.

Norms are one kernel each, attention is in `attention.py`, and the training loop drops the logits before
backward. With tensor parallelism the plan is that of
`infra/parallelize.py`: sequences split between blocks and in norms, gathered before attention and MLP, scattered after;
the embedding and the output split by vocabulary; the loss too unless `disable_loss_parallel`.

`run.checkpoint`: none, full, or per_op, which keeps what `_op_sac_save_list` names: attention, reduce-scatters, and of
the matrix products every second (the first, the third, ...; `distributed/activation_checkpoint.py`). Compiled blocks
are in `compiled.py`, the compiled loss in `compiled_loss.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

from simcore.models.blocks import Attention, Embedding, FinalNorm, Head, LatentAttention, LayerKind, Loss, Mixer, Moe
from simcore.operators.implementation import Implementation
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import (
    gather_last,
    gather_sequence,
    own_rows,
    scatter_sequence,
    sum_norms,
    sum_partial,
)
from simcore.operators.shared.features import CHUNKS, TEMPERED, UNIT_NORMS, WEIGHED_INPUT, refuse
from simcore.operators.shared.layer_borders import (
    hand_on,
    hidden_state,
    run_backward,
    run_backward_of_loss,
    run_halves,
    simple_part,
)
from simcore.operators.torchtitan import compiled as torchtitan_compiled
from simcore.operators.torchtitan import compiled_loss, compiled_parts, gpt_oss
from simcore.operators.torchtitan.attention import attention, linear, rotary_buffer, rotary_table
from simcore.operators.torchtitan.latent import latent_attention
from simcore.operators.torchtitan.loss import cross_entropy, parallel_cross_entropy, shifted_indices
from simcore.operators.torchtitan.moe import Places, moe
from simcore.operators.torchtitan.options import KEEP_EXCHANGE, TorchtitanOptions
from simcore.operators.torchtitan.tensors import tensors
from simcore.recording.checkpoint import Keeps
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Section, Tape, Tensor

__all__ = ["IMPLEMENTATION", "record", "standing", "tensors"]

SERVED: Final = frozenset({"norms of query and key", "latent attention", "gated experts",
                           "a router by softmax, not normalised", "a router by softmax",
                           "gated experts chosen by sigmoid", "gated experts with a shared one", WEIGHED_INPUT,
                           UNIT_NORMS, TEMPERED, CHUNKS, "attention sinks", "attention within a window",
                           "biases of attention", "a router by softmax of the chosen", "biases of experts"})
"""Features (`operators/shared/features.py`) of models that these layers are recorded with. torchtitan's Llama 4 has no
norms of query and key and no queries by position; of chunks its `irope` flavors alone know (`models/llama4/model`)."""


def standing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """{name: bytes} of the rotary table, a buffer of the model, see `rotary_buffer`, and of masks of FlexAttention.

    Masks are those of GPT-OSS, which `train.py` makes for each microbatch.
    """
    seqs = [run.seq for kind, run in runs if kind.family == "gpt_oss" and kind.branches]
    return {**rotary_buffer(runs), **({"block_masks": gpt_oss.block_masks(max(seqs))} if seqs else {})}


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    Raises NotYet for features that are not recorded. `slots`, `comms`: shared tables of storages and communications,
    see `recording.rows.Recorder`; entries are added.
    """
    refuse(kind, SERVED, "torchtitan")
    tape = Tape(slots, comms, no_grad=run.no_grad)
    if isinstance(kind.block, Embedding):
        return _embedding(tape, run)
    if isinstance(kind.block, Loss):
        return _loss(tape, kind.block, run)
    if isinstance(kind.block, FinalNorm):
        return simple_part(tape, run, partial(sum_norms, run=run), kind.hidden,
                           lambda x: aten.rms_norm(tape, x, run.params["weight"], "norm"))
    if isinstance(kind.block, Head):
        return simple_part(tape, run, partial(sum_norms, run=run), kind.hidden, partial(_output, tape, run))
    return _layer(tape, kind, run)


def _options(run: LayerWorkload) -> TorchtitanOptions:
    return TorchtitanOptions.of(run.options)


# ---- layers ---------------------------------------------------------------------------------------------------------
def _layer(tape: Tape, kind: LayerKind, run: LayerWorkload) -> RecordedLayer:
    x: Tensor | None = hidden_state(tape, run, run.seq // run.tp, kind.hidden)
    assert x is not None
    leaf = x.node
    table, places = rotary_table(tape, run, kind), _places(tape, kind, run)
    rest = places.rest() if places else Section(())
    body = partial(_body, tape, kind, run, table, x, places)
    whole = _options(run).compiled_blocks and not isinstance(kind.branches[1].block, Moe)
    if whole:
        body = partial(torchtitan_compiled.block, tape, kind, run, x, table)
    x = table = None
    keeps = _kept(kind, run) if run.checkpoint == "per_op" else None
    if run.checkpoint == "none" or whole:
        out = body()
    else:
        out = tape.checkpoint(body, keeps, early_stop=_options(run).early_stop)
    hand_on(tape, out)
    forward = tape.cut()
    del body  # FSDP2's cast of what the layer was given lasts as long as the call
    after = tape.cut()
    if run.split:
        return run_halves(tape, run, out, leaf, RecordedLayer(forward, after, after))
    backward = run_backward(tape, out, leaf, lambda tape: sum_partial(tape, run, _partial(kind, run)))
    if places:
        places.leave()
    return RecordedLayer(forward, backward, after, grads=tape.release_grads(), rest=rest)


def _partial(kind: LayerKind, run: LayerWorkload) -> list[str]:
    """Parameters of whose gradients each tensor parallel rank makes a part: norms, outside latent attention.

    There it is the projection of the key that all heads share.
    """
    if isinstance(kind.branches[0].block, LatentAttention):
        return ["attention_norm.weight", "ffn_norm.weight", "attention.wkv_a.weight"]
    return [name for name in run.params if name.endswith("norm.weight")]


def _places(tape: Tape, kind: LayerKind, run: LayerWorkload) -> Places | None:
    block = kind.branches[1].block
    return Places(tape, run, block) if isinstance(block, Moe) and run.ep > 1 else None


def _kept(kind: LayerKind, run: LayerWorkload) -> Keeps:
    """Every second product; lists of DeepSeek V3 and Llama 4 have the all-to-all too, Qwen3's has not.

    `models/*/infra/parallelize.py`, _op_sac_save_list.
    """
    products, left = count(1), {"gate", "addmm"}
    if kind.family not in KEEP_EXCHANGE or not _options(run).keeps_exchange:
        left.add("all_to_all")
    return lambda operator: operator not in left and (operator != "mm" or next(products) % 2 == 1)


def _body(tape: Tape, kind: LayerKind, run: LayerWorkload, table: Tensor | None, x: Tensor,
          places: Places | None) -> Tensor:
    """`TransformerBlock.forward`."""
    mixer, block = (branch.block for branch in kind.branches)
    normed: Tensor | None = aten.rms_norm(tape, x, run.params["attention_norm.weight"], "attention_norm")
    assert normed is not None
    mixed: Tensor | None = _mixed(tape, run, mixer, normed, table)
    normed = None
    assert mixed is not None
    hidden = aten.add(tape, x, mixed, "residual")
    mixed = None
    normed = aten.rms_norm(tape, hidden, run.params["ffn_norm.weight"], "ffn_norm")
    mixed = moe(tape, run, block, normed, places) if isinstance(block, Moe) else _feed_forward(tape, run, normed)
    del normed
    return aten.add(tape, hidden, mixed, "residual")


def _mixed(tape: Tape, run: LayerWorkload, mixer: Mixer, x: Tensor, table: Tensor | None) -> Tensor:
    if isinstance(mixer, LatentAttention):
        return latent_attention(tape, run, mixer, x)
    assert isinstance(mixer, Attention)
    if _options(run).compiled_blocks:
        return compiled_parts.attention(tape, run, mixer, x, table)
    if mixer.sinks:
        assert table is not None
        return gpt_oss.attention(tape, run, mixer, x, table)
    return attention(tape, run, mixer, x, table)


def _feed_forward(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    x = gather_sequence(tape, run, x, "feed_forward_in")
    gate = aten.silu(tape, linear(tape, run, "feed_forward.w1", x))
    product = aten.mul(tape, gate, linear(tape, run, "feed_forward.w3", x))
    del gate
    out = linear(tape, run, "feed_forward.w2", product)
    return scatter_sequence(tape, run, out, "feed_forward_out")


# ---- parts around the layers ----------------------------------------------------------------------------------------
def _embedding(tape: Tape, run: LayerWorkload) -> RecordedLayer:
    out = scatter_sequence(tape, run, _rows(tape, run), "embedding")
    hand_on(tape, out)
    forward = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, None, lambda tape: own_rows(tape, run)),
                     grads=tape.release_grads())


def _rows(tape: Tape, run: LayerWorkload) -> Tensor:
    """The table's rows; with tp each rank looks up what it has and puts zeros elsewhere. Its gradient is whole."""
    weight = run.params["weight"]
    if run.tp == 1:
        return aten.embedding(tape, weight, run.batch, run.seq)
    shape = (run.batch, run.seq)
    _mask = _outside(tape, shape)
    _indices = shifted_indices(tape, shape)
    return aten.embedding(tape, weight, run.batch, run.seq, grad_rows=weight.shape[0] * run.tp)


def _outside(tape: Tape, shape: tuple[int, int]) -> Tensor:
    low, high = (aten.new(tape, shape, "int8", "mask") for _ in range(2))
    out = aten.new(tape, shape, "int8", "mask")
    del low, high
    return out


def _output(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    logits = aten.linear(tape, gather_sequence(tape, run, x, "output_in"), run.params["weight"], "logits")
    return gather_last(tape, run, logits) if run.tp > 1 and _options(run).disable_loss_parallel else logits


def _loss(tape: Tape, block: Loss, run: LayerWorkload) -> RecordedLayer:
    split = run.tp > 1 and not _options(run).disable_loss_parallel
    logits: Tensor | None = hidden_state(tape, run, run.seq, block.vocab // (run.tp if split else 1))
    assert logits is not None
    leaf = logits.node
    loss = _divided(tape, _loss_function(run, split=split)(tape, logits))
    held = logits if _options(run).keeps_logits else None
    logits = None
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf, split=run.split)
    del ones, loss, held
    return RecordedLayer(forward, backward, late=tape.cut(), seed=seed)


def _loss_function(run: LayerWorkload, *, split: bool) -> Callable[[Tape, Tensor], Tensor]:
    """Assumed: loss parallel allocates what eager DTensor does, compiled or not; that was not measured."""
    if split:
        return parallel_cross_entropy
    return compiled_loss.cross_entropy if _options(run).compiled_loss else cross_entropy


def _divided(tape: Tape, loss: Tensor) -> Tensor:
    """By the number of tokens that count."""
    return aten.mul_scalar(tape, loss)


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors, standing=standing)
