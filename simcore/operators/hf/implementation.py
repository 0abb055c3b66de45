"""transformers 5.23 models on eager PyTorch 2.13: tensors and tapes.

What crosses the border between layers:

 * the stem's rotary tables and position ids belong to the embedding, which makes them; the layer with `run.stem` posts
   their deaths (row offset -stem) in its backward; what nobody keeps that with `run.first` does, in `late`;
 * the head's input, where nobody keeps it, dies when the causal model returns: `after` of the head belongs behind the
   loss;
 * `late` of the loss is what the training loop holds until backward is over: the loss, its gradient, and the logits if
   it keeps the output object;
 * a tied head's gradient waits in the engine for the embedding's; the embedding posts its death with offset TIED_HEAD.

`run.options`: ("experts", "unit"): the experts are a data-parallel unit of their own; ("inv_freq", dtype): the stored
type of the rotary frequencies; ("embeddings", "require_grad"): the embedding's output takes a gradient, which nobody
needs, so that replays carry one; ("inputs", "on_host"): those of replayed layers wait on the host;
("loss", "automodel"): NeMo Automodel trains the model, head and loss are its own; ("code", "hub"): the model's own
repository has the layers; ("stream", "cast"): a hidden state in fp32 is cast to the compute dtype before each layer;
("layers", "unsloth"): see `hf_unsloth.py`; ("kernels", "liger"): see `hf_liger.py`; ("autocast", "on"): see
`hf_autocast.py`; ("hidden", dtype): what layers hand on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Loss, Mlp, Moe
from simcore.operators.hf import gpt_oss as hf_gpt_oss
from simcore.operators.hf import hybrid as hf_hybrid
from simcore.operators.hf import liger as hf_liger
from simcore.operators.hf import nemotron as hf_nemotron
from simcore.operators.hf import phi3 as hf_phi3
from simcore.operators.hf import remote_code
from simcore.operators.hf.chunked import chunked_loss
from simcore.operators.hf.layers import (
    Inputs,
    attention,
    has_eager_attention,
    has_flash_attention,
    is_of_hub,
    linear,
    mlp,
)
from simcore.operators.hf.moe import moe
from simcore.operators.hf.tensors import tensors
from simcore.operators.hf.unsloth import fast_norm, has_fast_layers, unsloth_layer, weight_buffer
from simcore.operators.shared import aten
from simcore.operators.shared.features import refuse
from simcore.operators.shared.layer_borders import (
    TIED_HEAD,
    hand_on,
    hidden_state,
    leave_waiting,
    meet_waiting,
    nothing,
    run_backward,
    run_backward_of_loss,
    simple_part,
    stream_dtype,
)
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.kernel_shape import shape_of
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Param, Section, Tape, Tensor

__all__ = ["TIED_HEAD", "record", "standing", "tensors"]

SERVED: Final = frozenset({"norms of query and key", "biases of query, key and value", "biases of attention",
                           "attention sinks", "attention within a window", "gated experts", "a router by softmax",
                           "a router by softmax of the chosen", "biases of experts", "gated experts with a shared one",
                           "a router by softmax, not normalised", "a gate of the shared expert",
                           "rotation of a part of each head", "scaled residuals",
                           "a scaled embedding or scaled logits", "residuals in fp32"})
"""What of `features.py` is recorded here."""

_BEFORE = -1


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Record one layer or part."""
    refuse(kind, SERVED, "hf")
    assert run.tp == run.cp == run.etp == 1, "transformers' own tensor and context parallelism are not modelled"
    tape = Tape(slots, comms)
    if isinstance(kind.block, Embedding):
        return _embedding(tape, kind, kind.block, run)
    if isinstance(kind.block, Head | Loss) and ("loss", "automodel") in run.options:
        from simcore.operators.automodel import implementation as automodel

        return automodel.record(kind, replace(run, params=_outside(run)), slots, comms)
    if isinstance(kind.block, Loss):
        return _loss(tape, kind.block, run)
    if isinstance(kind.block, FinalNorm):
        return _final_norm(tape, kind, run)
    if isinstance(kind.block, Head):
        return _head(tape, kind, kind.block, run)
    return _layer(tape, kind, run)


def _outside(run: LayerWorkload) -> dict[str, Param]:
    """The head's parameters as they are called outside of it."""
    return {f"lm_head.{name}": param for name, param in run.params.items()}


# ---- layers -----------------------------------------------------------------------------------------------------
def _layer(tape: Tape, kind: LayerKind, run: LayerWorkload) -> RecordedLayer:
    inputs: Inputs | None = _stem(tape, kind, run)
    assert inputs is not None
    positions = inputs.positions
    if kind.family == "granitemoehybrid":  # whose layers are not told positions
        inputs = inputs._replace(positions=None)
    stream: Tensor | None = inputs.hidden
    leaf = inputs.hidden.node
    if ("stream", "cast") in run.options:  # by FSDP2's hook; the model holds what it was until the layer returns
        inputs = inputs._replace(hidden=aten.cast(tape, inputs.hidden, run.compute))
    body: Callable[[], Tensor] = partial(_body, tape, kind, run, inputs)
    held: list[Callable[[], Tensor]] = []
    if waits := run.checkpoint != "none" and dict(run.options).get("inputs") == "on_host":
        held.append(_Function(tape, inputs, body))
        body = held[0]
    out = tape.checkpoint(body, nested=waits) if run.checkpoint != "none" else body()
    hand_on(tape, out)
    forward = tape.cut()
    tape.casts.clear()
    casts = tape.cut()
    del body
    # A mask that is added is kept by nobody, another one here or above if anything trains here.
    mask = inputs.mask if out.node is not None and not has_eager_attention(run) else None
    if waits:
        inputs.hidden.storage = None
    inputs = None
    del positions, stream
    dropped = tape.cut()
    del mask
    empty = Section(())
    after, late = (empty, dropped) if run.first else (dropped, empty)
    back = run_backward(tape, out, leaf, nothing, held)
    tape.graph.clear()
    return RecordedLayer(forward, back, after, late, grads=tape.release_grads(), casts=casts, release=tape.cut())


class _Function:
    """A replayed layer as one function of autograd whose input is on the host until backward.

    It holds the gradient that came in, the input that came back and what the replay put out until all of the layer is
    differentiated (unsloth-zoo `gradient_checkpointing.py`, Unsloth_Offloaded_Gradient_Checkpointer; axolotl's
    `gradient_checkpointing: offload` is a copy of it). Both copies are on the stream of the kernels.
    """

    def __init__(self, tape: Tape, inputs: Inputs, body: Callable[[], Tensor]) -> None:
        self.tape, self.inputs, self.body = tape, inputs, body
        self.out: Tensor | None = None

    def __call__(self) -> Tensor:
        hidden = self.inputs.hidden
        if hidden.storage is not None:  # the first run
            self.tape.copy("to_host", hidden.nbytes, hidden.dtype)
            return self.body()
        self.tape.copy("to_device", hidden.nbytes, hidden.dtype)
        hidden.storage = self.tape.empty(hidden.shape, hidden.dtype, "hidden_states.from_host").storage
        out = self.body()
        self.out = out.detach()
        return out


def _stem(tape: Tape, kind: LayerKind, run: LayerWorkload) -> Inputs:
    """One layer posts deaths of what all layers share: the lowest that keeps it, or the first; a mask's the first."""
    hidden = hidden_state(tape, run, run.seq, kind.hidden, "fp32" if kind.wide and not run.first else "")
    down = -(run.stem or run.first)
    shared = [] if kind.family == "mamba2" else [
        tape.external((run.seq,), "int64", tape.slot("position_ids", "activation"), down)]
    rotary = next((b.block.rotated or b.block.head_dim for b in kind.branches
                   if isinstance(b.block, Attention) and b.block.rotary), kind.tables)
    if rotary:
        rotary //= 1 + (kind.family == "gpt_oss")
        shared += [tape.external((1, run.seq, 1, rotary), stream_dtype(run), tape.slot(f"rotary.{name}", "activation"),
                                 down) for name in ("cos", "sin")]
    mask = _mask(tape, run, _window(kind))
    for number, tensor in enumerate(shared):  # only a checkpoint keeps positions, which come first
        if not (run.first if run.checkpoint == "none" and number == 0 else run.stem):
            tensor.disown()
    if mask is not None and not run.first:
        mask.disown()
    positions, cos, sin = [*shared, None, None, None][:3]
    return Inputs(hidden, cos, sin, positions, mask)


def _window(kind: LayerKind) -> int:
    """Tokens that the layer sees by a mask; attention with sinks knows its window itself."""
    blocks = (b.block for b in kind.branches if isinstance(b.block, Attention))
    return max((block.window for block in blocks if not block.sinks), default=0)


def _mask(tape: Tape, run: LayerWorkload, window: int) -> Tensor | None:
    """Which keys a query of packed sequences sees, or one within a window, a byte a pair.

    The stem makes it, unless flash-attn runs (`masking_utils.py`: _ignore_causal_mask_sdpa, flash_attention_mask).
    Eager attention adds a mask of the compute dtype: one for whole layers, one for those within a window.
    """
    if not _is_masked(run, window):
        return None
    slot = tape.slot("causal_mask", "activation")
    if has_eager_attention(run):
        return tape.external((1 if is_of_hub(run) else 2, run.seq, run.seq), run.compute, slot, _BEFORE)
    return tape.external((run.seq, run.seq), "uint8", slot, _BEFORE)


def _is_masked(run: LayerWorkload, window: int) -> bool:
    special = run.sequences > 0 or 0 < window <= run.seq
    return has_eager_attention(run) or (special and not has_flash_attention(run))


def _body(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> Tensor:
    """`x + block(norm(x))` for every branch. A replay is a region of autocast's own."""
    try:
        return _branches(tape, kind, run, inputs)
    finally:
        if tape.phase == "recompute":
            tape.casts.clear()


def _branches(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs) -> Tensor:
    if has_fast_layers(run):
        return unsloth_layer(tape, kind, run, inputs.hidden)
    x = inputs.hidden
    for branch in kind.branches:
        residual = x
        tape.scope = f"{branch.norm}."
        seen = aten.cast(tape, x, run.compute) if kind.wide else x
        x = _norm(tape, run, run.params[f"{branch.norm}.weight"], seen, kind.family)
        del seen
        if kind.wide:
            residual = aten.cast(tape, residual, "fp32")
        tape.scope = f"{branch.name}."
        x, _held = _mix(tape, run, branch, inputs._replace(hidden=x), kind.family)
        tape.scope = ""
        x = aten.add(tape, residual, aten.mul_scalar(tape, x) if kind.scaled else x, "residual")
    return x


def standing(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """Buffers that all layers share."""
    return weight_buffer(runs)


def _norm(tape: Tape, run: LayerWorkload, weight: Param, x: Tensor, family: str) -> Tensor:
    if hf_liger.has_liger(run):
        return hf_liger.rms_norm(tape, weight, x)
    if family == "gpt_oss":
        return hf_gpt_oss.rms_norm(tape, weight, x)
    return rms_norm(tape, weight, x, weight_in_fp32=family == "nemotron_h")


def _mix(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, family: str) -> tuple[Tensor, object]:
    """The block's output, and what the layer holds of it until it returns."""
    if family == "phi3":
        return _of_phi3(tape, run, branch, inputs), None
    if isinstance(branch.block, Attention):
        if is_of_hub(run):
            return attention(tape, run, branch, inputs, core=remote_code.core(tape, run)), None
        if family != "gpt_oss":
            return attention(tape, run, branch, inputs), None
        held: list[Tensor] = []
        core = hf_gpt_oss.eager_core(tape, run, branch.name, inputs.mask, held) if has_eager_attention(run) else None
        return attention(tape, run, branch, inputs, hf_gpt_oss.rotate, core), held
    if family == "granitemoehybrid" and isinstance(branch.block, Moe):
        return hf_hybrid.moe(tape, run, branch, inputs.hidden)
    if family == "granitemoehybrid" and isinstance(branch.block, Mlp):
        return hf_hybrid.shared_mlp(tape, run, branch.name, inputs.hidden), None
    if isinstance(branch.block, Mlp):
        return mlp(tape, run, branch.name, branch.block, inputs.hidden), None
    if isinstance(branch.block, Moe) and family == "gpt_oss":
        return hf_gpt_oss.moe(tape, run, branch, inputs.hidden)
    if isinstance(branch.block, Moe):
        return moe(tape, run, branch, inputs.hidden, family), None
    return hf_nemotron.mamba(tape, run, branch, inputs.hidden), None


def _of_phi3(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> Tensor:
    if isinstance(branch.block, Attention):
        return hf_phi3.attention(tape, run, branch, inputs)
    return hf_phi3.mlp(tape, run, branch.name, inputs.hidden)


# ---- parts around the layers ------------------------------------------------------------------------------------
def _embedding(tape: Tape, kind: LayerKind, block: Embedding, run: LayerWorkload) -> RecordedLayer:
    weight = run.params["weight"]
    out = aten.embedding(tape, weight, run.batch, run.seq)
    if kind.scaled:
        out = aten.mul_scalar(tape, out)
    hand_on(tape, out)
    _shared_tables(tape, kind.family, block, run)
    forward = tape.cut()
    meet = partial(meet_waiting, in_place=run.loss == "chunked")  # a sum of chunks is nobody else's
    if out.node is None and ("embeddings", "require_grad") in run.options:
        out.node = tape.node((Tensor(None, (), "fp32", Node()),), (), lambda tape, grads, saved: [None])
    back = run_backward(tape, out, None, meet if weight.tied else nothing)
    return RecordedLayer(forward, back, grads=tape.release_grads())


def _shared_tables(tape: Tape, family: str, block: Embedding, run: LayerWorkload) -> None:
    """Position ids and, for rotary models, cos and sin: the layers' to free. GPT-OSS has tables of half a head's size.

    Mamba-2 alone knows no positions.
    """
    if family == "mamba2":
        return
    positions = _positions(tape, run, family)
    made = [positions]
    if block.rotary_dim:
        made += _rotary_tables(tape, run, block.rotary_dim, positions, halves=family == "gpt_oss")
    names = ["position_ids", "rotary.cos", "rotary.sin"][:len(made)]
    if _is_masked(run, block.window):
        names.insert(1, "causal_mask")
        made.insert(1, _added_masks(tape, run) if has_eager_attention(run) else _block_diagonal(tape, run.seq))
    for name, tensor in zip(names, made, strict=True):
        tape.rename(tensor.storage, tape.slot(name, "activation"))
        tensor.disown()


def _block_diagonal(tape: Tape, seq: int) -> Tensor:
    """Earlier, and in the same sequence or the window (`masking_utils.py`, and_masks)."""
    seen = aten.new(tape, (seq, seq), "uint8", "is_near")
    earlier = aten.new(tape, (seq, seq), "uint8", "is_earlier")
    return aten.new(tape, (seq, seq), "uint8", "causal_mask", seen.nbytes + earlier.nbytes)


def _added_masks(tape: Tape, run: LayerWorkload) -> Tensor:
    """Both masks as one, each made of truth values (`masking_utils.py`, eager_mask); smaller things are left out."""
    if is_of_hub(run):
        return remote_code.causal_mask(tape, run)
    seen = aten.new(tape, (run.seq, run.seq), "uint8", "is_seen")
    return aten.new(tape, (2, run.seq, run.seq), run.compute, "causal_mask", 2 * seen.nbytes)


def _positions(tape: Tape, run: LayerWorkload, family: str) -> Tensor:
    """What a cache has seen already is added, a zero, but by Bamba."""
    count = aten.new(tape, (run.seq,), "int64", "arange")
    if family == "bamba":
        return count
    return aten.select(tape, count, (run.seq,), "int64", "position_ids")


def _rotary_tables(tape: Tape, run: LayerWorkload, dim: int, positions: Tensor, *, halves: bool) -> tuple[Tensor,
                                                                                                          Tensor]:
    """The tables of cos and sin, made in fp32."""
    shape = (run.seq, dim // 2 if halves else dim)
    freqs = _frequencies(tape, run, dim, aten.select(tape, positions, positions.shape, "fp32", "positions"))
    angles = freqs if halves else aten.select(tape, freqs, shape, "fp32", "angles")
    cos = aten.select(tape, aten.select(tape, angles, shape, "fp32", "cos"), shape, "fp32", "cos")
    sin = aten.select(tape, aten.select(tape, angles, shape, "fp32", "sin"), shape, "fp32", "sin")
    return aten.cast(tape, cos, stream_dtype(run)), aten.cast(tape, sin, stream_dtype(run))


def _frequencies(tape: Tape, run: LayerWorkload, dim: int, positions: Tensor) -> Tensor:
    half, stored = dim // 2, dict(run.options).get("inv_freq", "fp32")
    _inverse = None if stored == "fp32" else aten.new(tape, (half,), "fp32", "inv_freq")
    return aten.select(tape, positions, (run.seq, half), "fp32", "freqs")


def _final_norm(tape: Tape, kind: LayerKind, run: LayerWorkload) -> RecordedLayer:
    weight = run.params["weight"]
    if has_fast_layers(run):
        return simple_part(tape, run, nothing, kind.hidden, lambda hidden: fast_norm(tape, hidden, weight, last=True))
    return simple_part(tape, run, nothing, kind.hidden, lambda hidden: _norm(tape, run, weight, hidden, kind.family),
                       _stream(kind))


def _stream(kind: LayerKind) -> str:
    """The type of a hidden state that is not the compute dtype's."""
    return "fp32" if kind.wide else ""


def _head(tape: Tape, kind: LayerKind, block: Head, run: LayerWorkload) -> RecordedLayer:
    """Losses that make the logits themselves know nothing of what they are divided by."""
    weight = run.params["weight"]
    body = {"cut": _cut_loss, "liger": _liger_loss, "chunked": chunked_loss}.get(run.loss, _logits)
    if body != _logits and "lora_a.weight" in run.params:
        raise NotYet(Problem("training.loss", f"not yet: {run.loss} with an adapter of lm_head"))
    if (kind.scaled or kind.wide) and body != _logits:
        raise NotYet(Problem("training.loss", f"not yet: {run.loss} of scaled logits or a hidden state in fp32"))
    return simple_part(tape, run, leave_waiting if weight.tied else nothing, block.hidden,
                       lambda hidden: (_scaled_logits if kind.scaled else body)(
                           tape, run, aten.cast(tape, hidden, run.compute) if kind.wide else hidden), _stream(kind))


def _logits(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    return linear(tape, run, "", hidden)


def _scaled_logits(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    return aten.mul_scalar(tape, _logits(tape, run, hidden))


def _cut_loss(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """The loss from hidden state and weight, block by block (cut-cross-entropy d42911f7 `cce.py`, impl "cce").

    Kept: both, the log-sum-exp, labels, which of them count, the mean of each logit. Gradients are summed in the
    compute dtype (`cce_backward.py`: accum_e_fp32 and accum_c_fp32 are off).
    """
    weight, tokens = run.params["weight"], run.tokens
    shape, dtype, vocab = hidden.shape, hidden.dtype, weight.shape[0]
    needs, flops = (aten.needs_grad(hidden), weight.trainable), 2 * tokens * weight.numel
    moved, logits = hidden.nbytes + weight.nbytes, shape_of(tokens, vocab)

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        wide = aten.new(tape, (vocab,), "int64", "vocabulary_order")
        _order = aten.new(tape, (vocab,), "int32", "vocabulary_order")
        del wide
        tape.compute(Kernel.GEMM, flops, moved, logits)  # the logits once more
        made = [aten.new(tape, s, dtype, name, moved, Kernel.GEMM, flops) if need else None for s, name, need in (
            (shape, "grad_hidden", needs[0]), (weight.shape, "grad_weight", needs[1]))]
        return [*made]

    labels = aten.new(tape, (tokens,), "int64", "labels")
    valids = aten.new(tape, (tokens,), "int64", "valids", labels.nbytes)
    node = tape.node((hidden, weight), (hidden, weight, labels, valids), backward)
    lse = aten.new(tape, (tokens,), "fp32", "log_sum_exp", moved, Kernel.GEMM, flops, logits)
    means = aten.new(tape, (vocab,), "fp32", "logit_means") if any(needs) else None
    losses = aten.new(tape, (tokens,), "fp32", "losses", moved)
    tape.save(node, lse, means)
    del labels, valids, lse, means
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes, Kernel.LOSS)
    out.node = node
    return out


def _liger_loss(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Loss and gradients in forward, chunk by chunk (Liger-Kernel ead96b61 `ops/fused_linear_cross_entropy.py`).

    Both gradients are all that is kept; a chunk's part of the weight's is made in the compute dtype, then in fp32. A
    chunk's logits, which become their gradient, die when the next ones are there.
    """
    weight, tokens = run.params["weight"], run.tokens
    shape, dtype, (vocab, width) = hidden.shape, hidden.dtype, weight.shape
    needs, moved = (aten.needs_grad(hidden), weight.trainable), hidden.nbytes + weight.nbytes
    rows = 1 << max(0, -(-tokens // -(-vocab // width)) - 1).bit_length()

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        saved.clear()  # scaled in place: only the owners of the bytes change
        return [aten.new(tape, s, dtype, name, moved) if need else None for s, name, need in (
            (shape, "grad_hidden", needs[0]), (weight.shape, "grad_weight", needs[1]))]

    _labels = aten.new(tape, (tokens,), "int64", "labels")
    node = tape.node((hidden, weight), (), backward)
    to_hidden = aten.new(tape, (tokens, width), dtype, "grad_hidden")
    to_weight = aten.new(tape, weight.shape, dtype, "grad_weight") if needs[1] else None
    losses = aten.new(tape, (tokens,), "fp32", "losses")
    logits: Tensor | None = None
    for start in range(0, tokens, rows):
        size = (min(rows, tokens - start), vocab)
        product = 2 * size[0] * vocab * width
        logits = aten.new(tape, size, dtype, "chunk_logits", moved, Kernel.GEMM, product)
        tape.compute(Kernel.LOSS, 3 * logits.numel, 2 * logits.nbytes)
        aten.new(tape, (size[0], width), dtype, "chunk_grad_hidden", moved, Kernel.GRAD_GEMM, product)
        if to_weight is not None:
            part = aten.new(tape, weight.shape, dtype, "chunk_grad_weight", moved, Kernel.GRAD_GEMM, product)
            _wide = aten.cast(tape, part, "fp32")
            del part, _wide
    del logits
    tape.save(node, to_hidden, to_weight)
    del to_hidden, to_weight
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes, Kernel.LOSS)
    out.node = node
    return out


# ---- loss -------------------------------------------------------------------------------------------------------
def _loss(tape: Tape, block: Loss, run: LayerWorkload) -> RecordedLayer:
    cut = run.loss in ("cut", "liger", "chunked")  # the head has made it already, it is divided by the number of labels
    logits: Tensor | None = _scalar(tape, run) if cut else hidden_state(tape, run, run.seq, block.vocab,
                                                                                run.compute)
    assert logits is not None
    leaf = logits.node
    if block.upcast and not cut:
        logits = aten.cast(tape, logits, "fp32")
    loss = aten.mul_scalar(tape, logits) if cut else _causal_loss(tape, run, logits)
    forward = tape.cut()
    outputs = [logits] if run.loss == "hf_keep_logits" else []
    logits = None
    after = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    outputs.clear()
    return RecordedLayer(forward, backward, after, tape.cut(), seed)


def _scalar(tape: Tape, run: LayerWorkload) -> Tensor:
    loss = tape.external((), "fp32", HIDDEN, _BEFORE)
    loss.node = Node() if run.input_requires_grad else None
    return loss


def _causal_loss(tape: Tape, run: LayerWorkload, logits: Tensor) -> Tensor:
    """Logits in fp32, labels shifted by one, cross entropy."""
    logits = aten.cast(tape, logits, "fp32")
    labels = aten.new(tape, (run.batch, run.seq + 1), "int64", "labels", 8 * run.tokens)
    target = labels  # a slice of one row is contiguous
    if run.batch > 1:
        target = aten.select(tape, labels, (run.batch, run.seq), "int64", "shifted_labels")
    if is_of_hub(run):
        logits = remote_code.shifted(tape, logits)
        return aten.cross_entropy(tape, logits.view(run.tokens - run.batch, logits.shape[-1]), target)
    return aten.cross_entropy(tape, logits.view(run.tokens, logits.shape[-1]), target)
