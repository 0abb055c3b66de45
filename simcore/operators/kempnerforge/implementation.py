"""KempnerForge 5666d0d16153 (`kempnerforge/model`, `training/loss.py`) on eager PyTorch 2.13: tensors and tapes.

Norms are written out in fp32, queries and keys are rotated by real tables, keys and values are repeated for every
query head, what attention puts out is copied before its projection, and the loss takes logits as they are. The tables
are fp32 on the model (`standing`); FSDP2 casts them for every layer (`cast_forward_inputs`). With tensor parallelism
the plan is that of `distributed/tensor_parallel.py`: every column-parallel linear gathers the sequence for itself and
keeps it, the embedding is whole on every rank and its output is cut by the first layer, the logits are whole for the
loss. In a pipeline stage (`run.sequence_parallel` false) all sequences are whole, and the output's weight too.

The training loop (`scripts/train.py`) drops logits only when the next forward has returned: those of the step before
are there when a step begins.

`run.checkpoint`: none, full, or per_module: only attention.

[Note: compiled gathers] torch.compile finds that linears of one input gather the same and gathers it once (counted on
KempnerForge's model with torch 2.13, without checkpoints: two gathers a layer and forward pass, where eager has five);
in backward each of them scatters its own gradient, as before. The rest of a compiled layer is recorded as eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from simcore.models.blocks import Attention, Embedding, FinalNorm, Head, LayerKind, Loss, Moe
from simcore.operators.implementation import Implementation
from simcore.operators.kempnerforge.moe import Router, moe
from simcore.operators.kempnerforge.options import KempnerforgeOptions
from simcore.operators.kempnerforge.tensors import tensors
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import (
    cut_sequence,
    gather_last,
    gather_sequence,
    own_sequence,
    same_everywhere,
    scatter_sequence,
    sum_everywhere,
    sum_norms,
    whole_gradient,
)
from simcore.operators.shared.features import refuse
from simcore.operators.shared.layer_borders import (
    drop_held_logits,
    hand_on,
    hidden_state,
    hold_logits,
    run_backward,
    run_backward_of_loss,
    simple_part,
)
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op, Param, Section
from simcore.recording.tape import Tape, Tensor

__all__ = ["IMPLEMENTATION", "record", "standing", "tensors"]

SERVED: Final = frozenset({"gated experts", "a router by softmax"})
"""Features (`operators/shared/features.py`) of models that these layers are recorded with."""


class Tables(NamedTuple):
    """Rotary tables of one layer: cosines and sines, each [sequence, 1, head dim / 2]."""

    cos: Tensor
    sin: Tensor


def standing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """{"rotary_tables": bytes} of the model's fp32 cosines and sines; 0 without attention.

    One each for every pair of a head's dimensions and position.
    """
    found = [run.seq * block.block.head_dim // 2 * 8 for kind, run in runs for block in kind.branches
             if isinstance(block.block, Attention)]
    return {"rotary_tables": max(found, default=0)}


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    Raises NotYet for features that are not recorded. `slots`, `comms`: shared tables of storages and communications,
    see `recording.rows.Recorder`; entries are added.
    """
    refuse(kind, SERVED, "kempnerforge")
    assert run.cp == run.etp == 1, "KempnerForge has neither"
    if kind.block is None:
        return _layer(kind, run, slots, comms)
    tape, run = Tape(slots, comms, no_grad=run.no_grad), run if run.sequence_parallel else replace(run, tp=1)
    if isinstance(kind.block, Embedding):
        return _embedding(tape, run)
    if isinstance(kind.block, Loss):
        return _loss(tape, kind.block, run)
    if isinstance(kind.block, FinalNorm):
        return simple_part(tape, run, partial(sum_norms, run=run), kind.hidden,
                           lambda x: _rms_norm(tape, x, run.params["weight"]))
    assert isinstance(kind.block, Head)
    return simple_part(tape, run, partial(sum_norms, run=run), kind.hidden, partial(_output, tape, run))


# ---- layers ---------------------------------------------------------------------------------------------------------
Left = list[list[tuple[int, int]]]
"""Tensors that a router keeps after a step, (slot, bytes) each: those of its first loss, then of the second."""


def _layer(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recorded twice where a router holds something: what the first recording leaves, the second finds."""
    layer, left = _recorded(Tape(slots, comms, no_grad=run.no_grad), kind, run, [[], []])
    return _recorded(Tape(slots, comms, no_grad=run.no_grad), kind, run, left)[0] if any(left) else layer


def _recorded(tape: Tape, kind: LayerKind, run: LayerWorkload, left: Left) -> tuple[RecordedLayer, Left]:
    router = Router(*([tape.external((size,), "int8", slot, 0) for slot, size in of] for of in left))
    rest = Section(tuple((Op.ALLOC, 0, slot, size, 0, 0) for of in left for slot, size in of))
    seq = run.seq if run.first or not run.sequence_parallel else run.seq // run.tp
    x: Tensor | None = hidden_state(tape, run, seq, kind.hidden)
    assert x is not None
    leaf = x.node
    body = partial(_body, tape, kind, run, x, _tables(tape, kind, run), router)
    x = None
    out = tape.checkpoint(body) if run.checkpoint == "full" else body()
    hand_on(tape, out)
    forward = tape.cut()
    del body
    after = tape.cut()
    balance = _seeded(tape, router)
    back = run_backward(tape, out, leaf, lambda tape: sum_norms(tape, run) if run.sequence_parallel else None)
    grads = tape.release_grads()
    del balance, out
    return RecordedLayer(forward, back, after, grads=grads, rest=rest), _what_is_left(tape, router)


def _seeded(tape: Tape, router: Router) -> list[Tensor]:
    """The step's loss has the balancing loss's gradient, and holds it until then."""
    for loss in router.balance:
        tape.seed(loss, Tensor(None, (), loss.dtype))
    return list(router.balance)


def _what_is_left(tape: Tape, router: Router) -> Left:
    router.balance = ()
    of_balance = tape.cut()
    router.z = ()
    return [[(row[2], -row[3]) for row in section.rows] for section in (of_balance, tape.cut())]


def _tables(tape: Tape, kind: LayerKind, run: LayerWorkload) -> Tables:
    """FSDP2's pre-forward casts what the layer is given."""
    mixer = kind.branches[0].block
    assert isinstance(mixer, Attention)
    shape = (run.seq, 1, mixer.head_dim // 2)
    if run.compute == "fp32":
        return Tables(Tensor(None, shape, "fp32"), Tensor(None, shape, "fp32"))
    return Tables(aten.new(tape, shape, run.compute, "rotary.cos"), aten.new(tape, shape, run.compute, "rotary.sin"))


def _body(tape: Tape, kind: LayerKind, run: LayerWorkload, x: Tensor, tables: Tables,
          router: Router) -> Tensor:
    """`TransformerBlock.forward`."""
    mixer = kind.branches[0].block
    assert isinstance(mixer, Attention)
    cut = run.first and run.tp > 1 and run.sequence_parallel
    given = cut_sequence(tape, run, x, "attention_norm_in") if cut else x
    normed: Tensor | None = _rms_norm(tape, given, run.params["attention_norm.weight"])
    assert normed is not None
    del given
    attend = partial(_attention, tape, run, mixer, normed, tables)
    mixed: Tensor | None = tape.checkpoint(attend) if run.checkpoint == "per_module" else attend()
    del attend
    normed = None
    assert mixed is not None
    hidden = aten.add(tape, own_sequence(tape, run, x, "residual") if cut else x, mixed, "residual")
    mixed = None
    normed = _rms_norm(tape, hidden, run.params["mlp_norm.weight"])
    experts = kind.branches[1].block
    mixed = moe(tape, run, experts, router, normed) if isinstance(experts, Moe) else _feed_forward(tape, run, normed)
    del normed
    return aten.add(tape, hidden, mixed, "residual")


def _rms_norm(tape: Tape, x: Tensor, weight: Param) -> Tensor:
    """`RMSNorm.forward`: the product with the weight is made in fp32."""
    dtype = x.dtype
    x = aten.cast(tape, x, "fp32")
    norm = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, aten.mean(tape, aten.square(tape, x)))))
    return aten.cast(tape, aten.mul(tape, norm, weight), dtype)


def _column(tape: Tape, run: LayerWorkload, name: str, x: Tensor, gathered: list[Tensor]) -> Tensor:
    """A linear whose output is cut: it gathers its input for itself, unless it is compiled with one that has.

    `gathered`: what those before it have gathered of x. See [Note: compiled gathers].
    """
    label = name.rpartition(".")[2]
    if run.sequence_parallel or run.tp == 1:
        x = gather_sequence(tape, run, x, f"{label}_in", *gathered)
        if _options(run).compiled and not gathered:
            gathered.append(x)
    else:
        x = same_everywhere(tape, x, f"{label}_in")
    return aten.linear(tape, x, run.params[f"{name}.weight"], label)


def _row(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """A linear whose input is cut: its output is summed and scattered."""
    label = name.rpartition(".")[2]
    out = aten.linear(tape, x, run.params[f"{name}.weight"], label)
    if run.sequence_parallel or run.tp == 1:
        return scatter_sequence(tape, run, out, label)
    return sum_everywhere(tape, out, label)


def _attention(tape: Tape, run: LayerWorkload, block: Attention, x: Tensor, tables: Tables) -> Tensor:
    """`Attention.forward`. A rotated gradient comes in [b, heads, s, d] order, and so does a summed one.

    That is another order than [b, s, heads, d] where there is more than one head.
    """
    dim, repeats = block.head_dim, block.num_heads // block.num_kv_heads
    several, several_kv = block.num_heads > run.tp, block.num_kv_heads > run.tp
    gathered: list[Tensor] = []
    q, k, v = (aten.to_heads(tape, _column(tape, run, f"attention.{name}_proj", x, gathered), dim, copy_grad=copied)
               for name, copied in (("q", several), ("k", several_kv), ("v", several_kv and repeats > 1)))
    gathered.clear()
    q = _rotate(tape, q, tables)
    k = _rotate(tape, k, tables)
    k = aten.repeat_heads(tape, k, repeats)
    v = aten.repeat_heads(tape, v, repeats)
    out = aten.scaled_dot_product_attention(tape, q, k, v)
    if several:
        out = aten.contiguous(tape, out, "attention_rows")
    return _row(tape, run, "attention.o_proj", out.view(*out.shape[:2], out.shape[2] * dim))


def _rotate(tape: Tape, x: Tensor, tables: Tables) -> Tensor:
    """`apply_rope`."""
    cos, sin = tables
    first, second = aten.slice_half(tape, x), aten.slice_half(tape, x)
    return aten.cat(
        tape, aten.sub(tape, aten.mul(tape, first, cos, "rotary"), aten.mul(tape, second, sin, "rotary"), "rotary"),
        aten.add(tape, aten.mul(tape, second, cos, "rotary"), aten.mul(tape, first, sin, "rotary"), "rotary"))


def _feed_forward(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """`SwiGLUMLP.forward`."""
    gathered: list[Tensor] = []
    gate = aten.silu(tape, _column(tape, run, "mlp.gate_proj", x, gathered))
    product = aten.mul(tape, gate, _column(tape, run, "mlp.up_proj", x, gathered))
    del gate
    gathered.clear()
    return _row(tape, run, "mlp.down_proj", product)


# ---- parts around the layers ----------------------------------------------------------------------------------------
def _embedding(tape: Tape, run: LayerWorkload) -> RecordedLayer:
    out = aten.embedding(tape, run.params["weight"], run.batch, run.seq)
    if run.tp > 1:
        out = whole_gradient(tape, run, out)
    hand_on(tape, out)
    forward = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, None, lambda _: None), grads=tape.release_grads())


def _output(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    logits = aten.linear(tape, gather_sequence(tape, run, x, "output_in"), run.params["weight"], "logits")
    return gather_last(tape, run, logits) if run.tp > 1 else logits


# ---- loss -----------------------------------------------------------------------------------------------------------
def _loss(tape: Tape, block: Loss, run: LayerWorkload) -> RecordedLayer:
    """`logits = model(...)` drops the last ones; these are kept until the next."""
    if _options(run).is_stage:
        return _loss_of_stage(tape, block, run)
    tape.is_alone = True  # `training/loss.py`: the model is compiled, its loss is not
    rest = drop_held_logits(tape, run, block.vocab)
    logits: Tensor | None = hidden_state(tape, run, run.seq, block.vocab)
    assert logits is not None
    leaf = logits.node
    loss = _cross_entropy(tape, logits.view(run.tokens, block.vocab))
    scaled = _divided(tape, loss)
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, scaled, leaf)
    del ones, loss, scaled
    logits = None
    hold_logits(tape, run, block.vocab)
    return RecordedLayer(forward, backward, late=tape.cut(), seed=seed, rest=rest)


def _loss_of_stage(tape: Tape, block: Loss, run: LayerWorkload) -> RecordedLayer:
    """The stage holds what it puts out until its backward pass is over (torch 2.13 `pipelining/stage.py`)."""
    logits: Tensor | None = hidden_state(tape, run, run.seq, block.vocab)
    assert logits is not None
    leaf = logits.node
    loss = _cross_entropy(tape, logits.view(run.tokens, block.vocab))
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    logits = None
    return RecordedLayer(forward, backward, late=tape.cut(), seed=seed)


def _options(run: LayerWorkload) -> KempnerforgeOptions:
    return KempnerforgeOptions.of(run.options)


def _cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """`cross_entropy_loss`: is any label not ignored, then the mean of those. Labels are the data loader's."""
    _is_any_left(tape, logits.shape[0])
    return aten.cross_entropy(tape, logits, Tensor(None, logits.shape[:1], "int64"))


def _is_any_left(tape: Tape, rows: int) -> None:
    ignored = aten.new(tape, (rows,), "int8", "ignored")
    _answer = aten.new(tape, (), "int8", "all_ignored", rows)
    del ignored


def _divided(tape: Tape, loss: Tensor) -> Tensor:
    """By the number of microbatches."""
    return aten.mul_scalar(tape, loss)


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors, standing=standing, follows_fullest_expert=True)
