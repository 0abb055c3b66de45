"""MoonViT and Kimi-VL's projector under eager PyTorch (nemo-automodel 0.7.0 `models/kimivl/model.py`).

The patches of all images of a microbatch are one sequence.

[Note: attention of MoonViT]
vision_attention_sdpa calls torch's attention with query, key and value of three dimensions, [heads, patches, d], and a
mask of all pairs. No kernel of torch takes three dimensions (torch 2.13 `ATen/native/transformers/sdp_utils_cpp.h`,
check_tensor_shapes), so plain operators run, which write every pair of two patches of a microbatch in fp32
([Note: attention without a kernel] in `operators/shared/math_attention.py`). flash-attn is never called: the layer
asks for it by its configuration's `_attn_implementation`, which is none in that of the tower, whatever is asked of the
model (`tests/truth/probe_kimi_tower.py`, attention).

[Note: tokens of Kimi-VL]
_merge_with_image_features writes tokens over rows of the embedding's output in place, which is a view. In backward the
gradient is copied, and the part that was written once more.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.placed_blocks import MoonEnd, MoonLayer, MoonNorm, MoonPatches
from simcore.operators.hf.vision.part import Modules, end, entered, front, layer_norm, tower_layer
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, hand_on, nothing, run_backward
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["moon_end", "moon_layer", "moon_norm", "moon_patches"]

_TABLE, _LENGTHS, _ENDS, _COPY = "patches.freqs_cis", "patches.lengths", "patches.ends", "pixel_values.to"
_Spec = tuple[tuple[int, ...], str]


def _kept(run: LayerWorkload, rows: int, dim: int) -> dict[str, _Spec]:
    """(shape, dtype) by name of what lives until the tower's norm; `rows`: all patches, `dim`: elements of a head."""
    return {_TABLE: ((rows, dim // 2, 2), "fp32"), _LENGTHS: ((run.images + 1,), "int64"),
            _ENDS: ((run.images + 1,), "int32")}


# ---- the front ------------------------------------------------------------------------------------------------------
def moon_patches(tape: Tape, block: MoonPatches, run: LayerWorkload) -> RecordedLayer:
    """`MoonVisionPatchEmbed`, then the angles of the patches of all images, and where images end."""
    rows, pixels, width = run.images * block.count, run.images * block.pixels, block.width
    weight, given = run.params["proj.weight"], pixels * dtype_bytes(run.options.pixels)
    copies = [] if run.options.pixels == run.compute else [aten.new(tape, (pixels,), run.compute, _COPY, given)]
    found = aten.new(tape, (rows, width), run.compute, "patch_embed", 2 * pixels + weight.nbytes, Kernel.GEMM,
                     2 * rows * weight.numel)
    node = found.node = _convolved(tape, run, 2 * rows * weight.numel)
    positions = _positions(tape, block, run)
    placed = aten.new(tape, (rows, width), run.compute, "positions.cat", sum(one.nbytes for one in positions))
    placed.node = tape.node(tuple(positions), (), _parted(positions))
    out = aten.add(tape, found, placed, "embeddings")
    del found, placed
    positions.clear()
    out = out.view(1, rows, width)
    made = {**_angles(tape, block, run), **dict(zip((_COPY,), copies, strict=False))}
    copies.clear()
    return front(tape, out, made, node, [name for name in (_TABLE, _COPY) if name in made])


def _convolved(tape: Tape, run: LayerWorkload, flops: int) -> Node | None:
    """Node of the product of patches; images get no gradient, and the front keeps a copy of them (`moon_patches`)."""
    weight, bias = run.params["proj.weight"], run.params["proj.bias"]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_bias = aten.new(tape, bias.shape, bias.dtype, "grad_patch_embed.bias")
        return [aten.new(tape, weight.shape, weight.dtype, "grad_patch_embed", weight.nbytes, Kernel.GEMM, flops),
                to_bias]

    return tape.node((weight, bias), (), backward)


def _positions(tape: Tape, block: MoonPatches, run: LayerWorkload) -> list[Tensor]:
    """Learned positions [patches, width] of each image, interpolated from all where its sides are others."""
    table, shape = run.params["pos_emb.weight"], (block.count, block.width)
    is_whole = (block.rows, block.columns) == block.table

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        found = [_to_table(tape, table, shape, run.compute) for _ in grads[:1]]
        for _ in grads[1:]:
            found.append(_to_table(tape, table, shape, run.compute))
            found = [aten.new(tape, table.shape, table.dtype, "grad_tables", 2 * table.nbytes)]
        return [aten.new(tape, table.shape, table.dtype, "grad_pos_emb", table.nbytes, Kernel.COPY)]

    node = tape.node((table,), (), backward)
    made = [Tensor(None, shape, run.compute) if is_whole else aten.new(
        tape, shape, run.compute, "positions", table.nbytes) for _ in range(run.images)]
    return [Tensor(one.storage, shape, run.compute, node, number) for number, one in enumerate(made)]


def _to_table(tape: Tape, table: Param, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Gradient of the `table` of positions from those of one image [patches, width], which are copied for it."""
    out = aten.new(tape, table.shape, table.dtype, "grad_interpolated")
    _lying = aten.new(tape, shape, dtype, "grad_positions", out.nbytes, Kernel.COPY)
    return out


def _parted(parts: list[Tensor]) -> Callable[[Tape, Grads, Saved], Grads]:
    """Backward of a join of `parts`, which get views of its gradient."""
    shapes, dtype = [part.shape for part in parts], parts[0].dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (whole,) = grads
        assert whole is not None
        return [Tensor(whole.storage, shape, dtype) for shape in shapes]

    return backward


def _angles(tape: Tape, block: MoonPatches, run: LayerWorkload) -> dict[str, Tensor]:
    """Complex numbers of each patch, those of images joined, and lengths and ends of images, whose numbers are read."""
    specs = _kept(run, run.images * block.count, block.rotary_dim)
    tape.stop()
    each = [aten.new(tape, (block.count, block.rotary_dim // 2, 2), "fp32", "angles") for _ in range(run.images)]
    made = {_TABLE: aten.new(tape, *specs[_TABLE], _TABLE, sum(one.nbytes for one in each))}
    each.clear()
    _products = aten.new(tape, (run.images,), "int64", "patches.products")
    made[_LENGTHS] = aten.new(tape, *specs[_LENGTHS], _LENGTHS)
    del _products
    _narrow = aten.new(tape, *specs[_ENDS], "patches.lengths.to")
    made[_ENDS] = aten.new(tape, *specs[_ENDS], _ENDS)
    return made


# ---- a layer --------------------------------------------------------------------------------------------------------
def moon_layer(tape: Tape, block: MoonLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`MoonVitEncoderLayer`, whose variables of attention live until it returns."""
    def body(x: Tensor) -> Tensor:
        held: list[Tensor] = []
        normed = layer_norm(tape, run, modules, "norm0.", x)
        made = _attended(tape, block, run, modules, normed, held)
        residual = aten.add(tape, x, made, "residual")
        del made, normed
        tape.scope = "mlp."
        normed = layer_norm(tape, run, modules, "norm1.", residual)
        tape.scope = "mlp."
        made = modules.linear(tape, run, "mlp.fc1", aten.gelu(tape, modules.linear(tape, run, "mlp.fc0", normed)))
        del normed
        out = aten.add(tape, residual, made, "residual")
        held.clear()
        return out

    shape = (1, run.images * block.patches, block.width)
    return tower_layer(tape, run, modules, shape, body, stays=block.first and not run.input_requires_grad)


def _attended(tape: Tape, block: MoonLayer, run: LayerWorkload, modules: Modules, x: Tensor,
              held: list[Tensor]) -> Tensor:
    """Output of attention for `x` [1, patches, width]; `held`: gets what the layer names until it returns."""
    tape.scope = ""
    qkv = modules.linear(tape, run, "wqkv", x)
    rows, shape = x.shape[1], (1, x.shape[1], block.num_heads, block.head_dim)
    parts = _unbound(tape, qkv, shape)
    v = parts.pop()
    q, k = _rotated(tape, *parts)
    parts.clear()
    held += [qkv, q, k]
    mask = aten.new(tape, (1, rows, rows), "uint8", "attention_mask")
    out = _plain_attention(tape, q, k, v, mask, run.images)
    out = aten.contiguous(tape, out, "attention").view(1, rows, block.width)
    del mask
    held.append(out)
    tape.scope = ""
    return modules.linear(tape, run, "wo", out)


def _unbound(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """Query, key and value, views of `x`; their gradients are put side by side in a new tensor."""
    whole, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, whole, dtype, "grad_qkv", sum(grad.nbytes for grad in grads if grad))]

    node = tape.node((x,), (), backward)
    return [Tensor(x.storage, shape, dtype, node, number) for number in range(3)]


def _rotated(tape: Tape, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """`_apply_rope_vision`: products of complex numbers in fp32, then back."""
    table = Tensor(None, (q.shape[1], q.shape[3] // 2, 2), "fp32")
    wide = [aten.cast(tape, q, "fp32"), aten.cast(tape, k, "fp32")]
    turned = [aten.rotate(tape, one, table, copy_grad=True) for one in wide]
    q, k = (aten.cast(tape, one, q.dtype) for one in turned)
    return q, k


def _plain_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, images: int) -> Tensor:
    """[Note: attention of MoonViT]: output for `q`, `k`, `v` [1, patches, heads, d], in their shape."""
    dtype, (_, rows, heads, dim) = q.dtype, q.shape
    for _ in range(2 * images):  # numbers of the first and the last patch of each image are read
        tape.stop()
    _added = aten.new(tape, mask.shape, dtype, "attention_bias", mask.nbytes)
    q_wide, k_wide, v_wide = (aten.cast(tape, one, "fp32") for one in (q, k, v))
    query = aten.mul_scalar(tape, q_wide)
    keys = aten.mul_scalar(tape, k_wide)
    scores = aten.product(tape, query, keys, (1, heads, rows, rows), dim, "scores")
    del keys
    tape.compute(Kernel.ELEMENTWISE, scores.numel, 2 * scores.nbytes + _added.nbytes, 0)
    weights = aten.softmax(tape, scores)
    masked = aten.new(tape, scores.shape, "uint8", "masked", scores.nbytes)
    rows_masked = aten.new(tape, (1, heads, rows), "uint8", "masked_rows", masked.nbytes)
    tape.compute(Kernel.ELEMENTWISE, scores.numel, rows_masked.nbytes + 2 * weights.nbytes, 0)
    del masked, rows_masked, scores
    _second_result = aten.new(tape, weights.shape, dtype, "unused", weights.nbytes)
    found = aten.product(tape, weights, v_wide, v_wide.shape, rows, "attention")
    return aten.cast(tape, found, dtype)


# ---- the end --------------------------------------------------------------------------------------------------------
def moon_norm(tape: Tape, block: MoonNorm, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """The norm behind the layers, with which the encoder returns, and the copies of patch_merger, one an image."""
    rows = run.images * block.patches
    hidden: Tensor | None
    hidden, node = entered(tape, run, (1, rows, block.width), run.compute)
    first = [] if node is not None else [tape.external((1, rows, block.width), run.compute, HIDDEN,
                                                       BEFORE - block.layers)]
    first += [tape.external(*spec, tape.slot(name, "activation"), BEFORE - block.layers)
              for name, spec in _kept(run, rows, block.rotary_dim).items() if node is None or name != _TABLE]
    normed = layer_norm(tape, run, modules, "", hidden)
    hidden = None
    first.clear()
    out = _squares(tape, normed, run.images)
    del normed
    hand_on(tape, out)
    forward = tape.cut()
    back = run_backward(tape, out, node, nothing)
    return RecordedLayer(forward, back, grads=tape.release_grads())


def _squares(tape: Tape, x: Tensor, images: int) -> Tensor:
    """Copy of `x` [1, patches, width] with the patches of a token side by side; each image's gradient is put in zeros.

    One tensor, where upstream has one for each image.
    """
    shape, dtype, size = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        whole: list[Tensor | None] = []
        for image in range(images):
            lying = aten.new(tape, (shape[1] // images, shape[2]), dtype, "grad_squares", size // images, Kernel.COPY)
            if image == images - 1:
                grads.clear()
            whole.append(aten.new(tape, shape, dtype, "grad_slice", lying.nbytes))
            del lying
            whole = whole if len(whole) == 1 else [aten.new(tape, shape, dtype, "grad_sum", 2 * size)]
        return whole

    node = tape.node((x,), (), backward)
    out = aten.new(tape, shape, dtype, "squares", size, Kernel.COPY)
    out.node = node
    return out


def moon_end(tape: Tape, block: MoonEnd, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """Recording of the projector: its output is the embedded sequence [batch, seq, hidden] with image tokens.

    The decoder then makes angles for its layers, which live until their backward is over.
    """
    rows = run.images * block.patches
    patches: Tensor | None
    patches, below = entered(tape, run, (1, rows, block.width), run.compute)
    tokens = [_tokens(tape, block, run, modules, patches)]
    patches = None
    mask = aten.new(tape, (run.batch, run.seq), "uint8", "image_mask", 8 * run.tokens)
    embedded = [tape.external((run.batch, run.seq, block.hidden), run.compute, HIDDEN, -block.below)]
    leaf = embedded[0].node = Node() if run.embedding_trains else None
    copied = 3 * run.images * block.patches * block.patch**2
    pixels = [tape.external((copied,), run.compute, tape.slot(_COPY, "activation"), 1 - block.below)
              for _ in range(run.options.pixels != run.compute and below is None)]
    out = _put(tape, embedded, tokens[0], mask)
    del mask
    angles = [aten.new(tape, (run.batch, run.seq, block.decoder.rotary_dim), "fp32", "freqs_cis")]
    hand_on(tape, out)
    forward = tape.cut()
    tokens.clear()
    pixels.clear()
    late = tape.cut()
    angles.clear()
    return RecordedLayer(forward, end(tape, out, below, leaf), late=late, grads=tape.release_grads())


def _tokens(tape: Tape, block: MoonEnd, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`KimiVLMultiModalProjector`: [1, tokens of all images, hidden] of squares `x`, which are joined first."""
    count, shape = run.images * block.tokens, x.shape
    node = tape.node((x,), (), _parted([x]))
    joined = aten.new(tape, shape, x.dtype, "image_features", x.nbytes)
    joined.node = node
    made = layer_norm(tape, run, modules, "pre_norm.", joined).view(1, count, block.merged * block.width)
    tape.scope = ""
    made = modules.linear(tape, run, "linear_1", made)
    made = aten.gelu(tape, made)
    return modules.linear(tape, run, "linear_2", made)


def _put(tape: Tape, embedded: list[Tensor], tokens: Tensor, mask: Tensor) -> Tensor:
    """The one tensor [batch, seq, hidden] of a list with `tokens` in their place; the list is emptied.

    [Note: tokens of Kimi-VL]. Its storage is that tensor's, recorded as one that dies where the next is made. `mask`:
    of image tokens, a byte each, which is kept for backward.
    """
    x = embedded.pop()
    shape, dtype, given, size, needs = x.shape, x.dtype, tokens.shape, x.nbytes, aten.needs_grad(tokens)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        copied = aten.new(tape, shape, dtype, "grad_view", size, Kernel.COPY)
        grads.clear()
        rest = aten.new(tape, shape, dtype, "grad_inputs_embeds", size, Kernel.COPY)
        part = aten.new(tape, shape, dtype, "grad_slice", size, Kernel.COPY)
        zeros = aten.new(tape, given, dtype, "zeros")
        filled = aten.new(tape, shape, dtype, "grad_index_put", size, Kernel.PERMUTE)
        found = [aten.new(tape, given[1:2], "int64", "nonzero")]
        found.clear()
        del zeros
        found += [aten.new(tape, given[1:2], "int64", "nonzero") for _ in range(needs)]
        values = aten.new(tape, given, dtype, "grad_values", 0, Kernel.PERMUTE) if needs else None
        found.clear()
        del copied, part, filled
        return [rest, values]

    node = tape.node((x, tokens), (mask,), backward)
    _numbers = aten.new(tape, given[1:2], "int64", "nonzero", mask.nbytes)
    del x
    out = aten.new(tape, shape, dtype, "inputs_embeds", tokens.nbytes, Kernel.PERMUTE)
    out.node = node
    return out
