"""RADIO under eager PyTorch, as published code runs it over timm's ViT: patches, layers, and the projector behind.

NVlabs RADIO c0f3701 `radio/{radio_model,vit_patch_generator,enable_cpe_support}.py`, timm 1.0.31
`layers/attention.py`, `models/vision_transformer.py`, NeMo Automodel 0.7.0 `models/nemotron_omni/model.py`. Images of a
microbatch are one batch, which the collator stacks where all have one size. The tower and its projector are frozen: no
operator of theirs makes a node. Attention is torch's (`components/utils/model_utils.py`, enable_radio_vit_fused_attn).

[Note: tokens of images by Automodel]
Tokens are written over rows of the embedding's output in place, which is a view: those rows are taken out, times zero,
and added to the tokens before (`model.py:forward`). In backward the gradient is copied, and the part that was written
once more; what went through the rows that were taken is put into zeros, and added.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector
from simcore.operators.hf.vision.part import Modules, gelu_mlp, layer_norm
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, hand_on, nothing, run_backward
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Section, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["radio_layer", "radio_patches", "radio_projector"]


def radio_patches(tape: Tape, block: RadioPatches, run: LayerWorkload) -> RecordedLayer:
    """`ViTPatchGenerator`: patches times `embedder`, positions interpolated in fp32 from all, learned tokens before."""
    shape, weight = (run.images, block.count, block.width), run.params["embedder.weight"]
    pixels, given = run.images * block.pixels, run.options.pixels
    copies = [] if given == run.compute else [aten.new(tape, (pixels,), run.compute, "pixel_values.to",
                                                       pixels * dtype_bytes(given))]
    patches = aten.new(tape, (pixels,), run.compute, "patches.pixels", pixels * 2, Kernel.COPY)
    found = aten.new(tape, shape, run.compute, "embedder", patches.nbytes + weight.nbytes, Kernel.GEMM,
                     2 * run.images * block.count * weight.numel)
    del patches
    positions = _positions(tape, block, run)
    placed = aten.add(tape, found, positions, "patches.placed")
    del found
    out = aten.new(tape, (run.images, block.count + block.prefix, block.width), run.compute, "hidden_states",
                   placed.nbytes, Kernel.COPY)
    hand_on(tape, out)
    del placed, positions
    copies.clear()
    return RecordedLayer(tape.cut(), Section(()))


def _positions(tape: Tape, block: RadioPatches, run: LayerWorkload) -> Tensor:
    """Those of an image: a square as long as its longer side, cut; narrow ones are copied into rows."""
    side = max(block.rows, block.columns)
    table = aten.new(tape, (1, block.positions**2, block.width), "fp32", "positions.float",
                     2 * block.positions**2 * block.width)
    square = aten.new(tape, (1, side**2, block.width), "fp32", "positions.interpolated", table.nbytes)
    del table
    found = aten.new(tape, square.shape, run.compute, "positions", square.nbytes)
    del square
    if block.columns == side:
        return Tensor(found.storage, (1, block.count, block.width), run.compute)
    return aten.new(tape, (1, block.count, block.width), run.compute, "positions.cut", 0, Kernel.COPY)


def radio_layer(tape: Tape, block: RadioLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """Timm's `Block`; its caller holds the input until it has returned, that of the first layer to the tower's end."""
    hidden: Tensor | None = tape.external((run.images, block.patches, block.width), run.compute, HIDDEN, BEFORE)
    assert hidden is not None
    if block.first:
        hidden.disown()
    made = _attention(tape, block, run, modules, layer_norm(tape, run, modules, "norm1.", hidden))
    residual = aten.add(tape, hidden, made, "residual")
    del made
    made = gelu_mlp(tape, run, modules, layer_norm(tape, run, modules, "norm2.", residual))
    out = aten.add(tape, residual, made, "residual")
    del residual, made
    hand_on(tape, out)
    forward = tape.cut()
    hidden = None
    return RecordedLayer(forward, Section(()), tape.cut())


def _attention(tape: Tape, block: RadioLayer, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """Query, key and value are views of one product, which lives until the module returns."""
    tape.scope = "attn."
    qkv = modules.linear(tape, run, "attn.qkv", x)
    heads = (*x.shape[:2], block.num_heads, block.head_dim)
    q, k, v = (Tensor(qkv.storage, heads, qkv.dtype) for _ in range(3))
    out = aten.scaled_dot_product_attention(tape, q, k, v, 2 * run.images * block.patches**2)
    return modules.linear(tape, run, "attn.proj", out.view(*x.shape))


def radio_projector(tape: Tape, block: RadioProjector, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """Recording of the projector: its output is the embedded sequence [batch, seq, hidden] with image tokens."""
    whole = (run.images, block.patches + block.prefix, block.width)
    features: Tensor | None = tape.external(whole, run.compute, HIDDEN, BEFORE)
    assert features is not None
    _first = [tape.external(whole, run.compute, HIDDEN, BEFORE - block.depth)]
    _first.clear()
    made = _projected(tape, block, run, modules)
    features = None
    kept = [aten.new(tape, made.shape, run.compute, "vit_embeds", made.nbytes, Kernel.PERMUTE)]  # by image_flags
    del made
    seq = run.seq * run.cp
    embedded = [tape.external((run.batch, seq, block.hidden), run.compute, HIDDEN, -block.below)]
    leaf = embedded[0].node = Node() if run.embedding_trains else None
    kept.append(tape.empty((run.batch, seq), "uint8", "selected"))
    out = _put(tape, embedded, *kept)
    out = _of_this_rank(tape, out, run) if run.cp > 1 else out
    hand_on(tape, out)
    forward = tape.cut()
    kept.clear()
    late = tape.cut()
    backward = run_backward(tape, out, leaf, nothing)
    made_of = RecordedLayer(forward, backward, late=late, grads=tape.release_grads())
    return replace(made_of, release=tape.cut())


def _projected(tape: Tape, block: RadioProjector, run: LayerWorkload, modules: Modules) -> Tensor:
    """`VisionProjector`: [images, tokens, hidden] of squares of patches, which two copies and a join have made."""
    shape = (run.images, block.tokens, block.merged * block.width)
    turned = aten.new(tape, shape, run.compute, "squares.turned", 0, Kernel.COPY)
    shuffled = aten.new(tape, shape, run.compute, "squares.shuffled", turned.nbytes, Kernel.COPY)
    del turned
    x = aten.new(tape, shape, run.compute, "squares", shuffled.nbytes, Kernel.COPY)
    del shuffled
    tape.scope = "vision_projector."
    x = rms_norm(tape, run.params["norm.weight"], x, weight_in_fp32=True)
    x = modules.linear(tape, run, "linear1", x)
    x = aten.square(tape, aten.relu(tape, x))
    x = modules.linear(tape, run, "linear2", x)
    tape.scope = ""
    return x


def _put(tape: Tape, embedded: list[Tensor], tokens: Tensor, mask: Tensor) -> Tensor:
    """The one tensor [batch, seq, hidden] of a list with `tokens` in their place; the list is emptied.

    See [Note: tokens of images by Automodel]. Its storage is that tensor's, recorded as one that dies where the next
    is made. `mask`: of image tokens, a byte each, which is kept for backward.
    """
    x = embedded.pop()
    shape, dtype, given, size = x.shape, x.dtype, tokens.shape, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        copied = aten.new(tape, shape, dtype, "grad_view", size, Kernel.COPY)
        grads.clear()
        rest = aten.new(tape, shape, dtype, "grad_inputs_embeds", size, Kernel.COPY)
        part = aten.new(tape, shape, dtype, "grad_slice", size, Kernel.COPY)
        nothing = aten.new(tape, given, dtype, "zeros")
        filled = aten.new(tape, shape, dtype, "grad_index_put", size, Kernel.PERMUTE)
        del nothing
        values = aten.new(tape, given, dtype, "grad_values", 0, Kernel.PERMUTE)
        del copied, part, filled
        taken = aten.new(tape, given, dtype, "grad_mul", values.nbytes)
        del values
        zeros = aten.new(tape, shape, dtype, "zeros")
        put = aten.new(tape, shape, dtype, "grad_index", size + taken.nbytes, Kernel.PERMUTE)
        del zeros, taken
        saved.clear()
        return [aten.new(tape, shape, dtype, "grad_sum", rest.nbytes + put.nbytes)]

    node = tape.node((x,), (mask,), backward)
    rows = aten.new(tape, given, dtype, "image_tokens", 0, Kernel.PERMUTE)
    scaled = aten.new(tape, given, dtype, "image_tokens.mul", rows.nbytes)
    del rows
    _summed = aten.new(tape, given, dtype, "image_tokens.add", 2 * scaled.nbytes)
    del scaled, x
    out = aten.new(tape, shape, dtype, "inputs_embeds", _summed.nbytes, Kernel.PERMUTE)
    out.node = node
    return out


def _of_this_rank(tape: Tape, x: Tensor, run: LayerWorkload) -> Tensor:
    """The rank's two chunks of the sequence, selected by their numbers; the gradient is added into zeros.

    0.7.0 `components/distributed/context_parallel/sharder.py`, shard_sequence_for_cp_round_robin.
    """
    whole, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, whole, dtype, "grad_index_select", 0, Kernel.PERMUTE)]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, (run.batch, run.seq, whole[2]), dtype, "inputs_embeds", 0, Kernel.PERMUTE)
    out.node = node
    return out
