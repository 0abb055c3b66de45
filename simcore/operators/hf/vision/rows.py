"""Pixtral's tower under eager PyTorch: patches of images of any size, and layers (transformers 5.23 `models/pixtral`).

The patches of all images of a microbatch are one sequence, under a mask of all its pairs. The tower is asked for the
outputs of its layers (`output_capturing.py`), so that all of them live until it returns. What layers of a tower with
gradients save of it, tables and the mask, lives until its backward is over.
"""

from __future__ import annotations

from functools import partial

from simcore.models.vision_blocks import RowLayer, RowPatches
from simcore.operators.hf.vision.grid import joined
from simcore.operators.hf.vision.part import Modules, asks, front, leaf, normed, regrouped, tower_layer
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["kept_by_graph", "kept_by_rows", "row_layer", "row_patches"]

_Spec = tuple[tuple[int, ...], str]
_COPY, _CONV, _POSITIONS, _MASK = "pixel_values.to", "patch_conv", "patches.positions", "patches.mask"
_FLASH = "flash_attention_2"
_NUMBERS = ("patches.rows", "patches.columns")
_TABLES = ("patches.cos", "patches.sin")


def kept_by_graph(run: LayerWorkload) -> tuple[str, ...]:
    """Names of `kept_by_rows` that a tower with gradients keeps for its backward: what its layers save.

    So is the output of the convolution where it requires a gradient by itself.
    """
    return (*[_CONV] * asks(run), *_TABLES, _MASK)


def kept_by_rows(run: LayerWorkload, modules: Modules, sides: tuple[int, int], width: int,
                 dim: int) -> dict[str, _Spec]:
    """(shape, dtype) by name of what lives from the patches to the end of the tower, beside hidden states.

    `sides`: patches of an image by rows and columns, whose numbers live as those of the last image; `width`: elements
    of a patch; `dim`: elements of a head. flash-attn gets the numbers of patches of images in place of a mask
    (generate_block_attention_mask).
    """
    rows, columns = sides
    patches = run.images * rows * columns
    stream = modules.stream or run.compute
    table: _Spec = ((1, patches, 1, dim), stream)
    mask: dict[str, _Spec] = {} if modules.attention == _FLASH else {_MASK: ((1, patches, patches), stream)}
    return {_CONV: ((patches, width), run.compute), _POSITIONS: ((patches, 2), "int64"),
            "patches.rows": ((rows,), "int64"), "patches.columns": ((columns,), "int64"),
            **dict.fromkeys(_TABLES, table), **mask}


def row_patches(tape: Tape, block: RowPatches, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """Front of `PixtralVisionModel.forward`: a convolution without overlap, one sequence of it, tables and a mask."""
    rows, given = run.images * block.count, run.options.pixels
    specs = kept_by_rows(run, modules, (block.rows, block.columns), block.width, block.rotary_dim)
    _narrow = aten.cast(tape, run.params["patch_conv.weight"], run.compute)  # by autocast, before the images
    copy = None if given == run.compute else aten.new(tape, (run.images * block.pixels,), run.compute, _COPY,
                                                      run.images * block.pixels * dtype_bytes(given))
    made = {_CONV: _convolved(tape, block, run, copy)}
    del copy, _narrow
    joined = regrouped(tape, made[_CONV].view(1, rows, block.width), "patches")
    out = rms_norm(tape, run.params["ln_pre.weight"], joined, weight_in_fp32=False)
    del joined
    made |= {name: aten.new(tape, *specs[name], name) for name in _NUMBERS}
    made[_POSITIONS] = aten.new(tape, *specs[_POSITIONS], _POSITIONS)
    made |= dict(zip(_TABLES, _tables(tape, out.dtype, rows, block.rotary_dim, made[_POSITIONS]), strict=True))
    made |= {name: aten.new(tape, *specs[name], name) for name in (_MASK,) if name in specs}
    kept = tuple(name for name in kept_by_graph(run) if name in made)
    return front(tape, out, made, made[_CONV].node or out.node, kept)


def _convolved(tape: Tape, block: RowPatches, run: LayerWorkload, pixels: Tensor | None) -> Tensor:
    """Patches [patches of all images, width]; `pixels`: in the layers' type, None if they are given so."""
    weight, rows, moved = run.params["patch_conv.weight"], run.images * block.count, 2 * run.images * block.pixels

    def backward(tape: Tape, _grads: Grads, _saved: Saved) -> Grads:
        return [aten.new(tape, weight.shape, weight.dtype, "grad_patch_conv", moved, Kernel.GEMM, flops)]

    flops = 2 * rows * weight.numel
    node = tape.node((weight,), (pixels,) if pixels is not None else (), backward)
    out = aten.new(tape, (rows, block.width), run.compute, _CONV, moved + weight.nbytes, Kernel.GEMM, flops)
    out.node = leaf(tape, out) if node is None and asks(run) else node
    return out


def _tables(tape: Tape, dtype: str, rows: int, dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Tables of cos and sin [patches, dim] in `dtype`, made in fp32 (`PixtralVisionRotaryEmbedding`)."""
    freqs = aten.select(tape, aten.select(tape, positions, (rows, 2), "fp32", "positions"), (rows, 2, dim // 2), "fp32",
                        "freqs")
    cos, sin = (aten.select(tape, aten.select(tape, freqs, freqs.shape, "fp32", name), freqs.shape, "fp32", name)
                for name in ("cos", "sin"))
    cos = joined(tape, cos, rows, dim)
    sin = joined(tape, sin, rows, dim)
    return aten.cast(tape, cos, dtype), aten.cast(tape, sin, dtype)


def row_layer(tape: Tape, block: RowLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`PixtralAttentionLayer`; the tower holds its input, unless a checkpoint keeps it longer: no operator does."""
    def body(x: Tensor) -> Tensor:
        held: list[Tensor] = []
        made = _attention(tape, block, run, modules, normed(tape, run, "attention_norm", x), held)
        residual = aten.add(tape, x, made, "residual")
        del made
        made = _mlp(tape, run, modules, normed(tape, run, "ffn_norm", residual))
        return aten.add(tape, residual, made, "residual")

    shape = (1, run.images * block.patches, block.width)
    return tower_layer(tape, run, modules, shape, body, stays=not (modules.is_replayed and run.input_requires_grad))


def _attention(tape: Tape, block: RowLayer, run: LayerWorkload, modules: Modules, x: Tensor,
               held: list[Tensor]) -> Tensor:
    """`PixtralAttention`; `held`: gets the probabilities, which the layer binds to a name."""
    tape.scope = "attention."
    rows, dim = x.shape[1], block.head_dim
    copies = modules.attention == "eager"  # scores and values by heads have gradients by heads
    flat = [modules.linear(tape, run, f"attention.{part}_proj", x) for part in "qkv"]
    q, k, v = (aten.to_heads(tape, flat.pop(0), dim, copy_grad=copies) for _ in range(3))
    stream = modules.stream or run.compute
    table = Tensor(None, (1, rows, 1, dim), stream)
    both = [aten.rotate_halves(tape, part, table, table) for part in (q, k)]
    q, k = both
    both.clear()
    mask = Tensor(None, (1, rows, rows), stream)
    if modules.attention == "eager":
        out = eager_core(tape, mask, held, by_heads=False, narrowed=partial(modules.narrowed, tape, run))(q, k, v)
        return modules.linear(tape, run, "attention.o_proj", out.view(*x.shape))
    value, key, query = (modules.narrowed(tape, run, part) for part in (v, k, q))
    if modules.attention == _FLASH:
        pairs = 2 * run.images * block.patches**2
        out = aten.flash_attention(tape, query, key, value, pairs, run.images)
    else:
        out = aten.masked_attention(tape, query, key, value, modules.narrowed(tape, run, mask))
    return modules.linear(tape, run, "attention.o_proj", out.view(*x.shape))


def _mlp(tape: Tape, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`PixtralMLP`."""
    tape.scope = "feed_forward."
    gate = aten.silu(tape, modules.linear(tape, run, "feed_forward.gate_proj", x))
    product = aten.mul(tape, gate, modules.linear(tape, run, "feed_forward.up_proj", x))
    del gate
    return modules.linear(tape, run, "feed_forward.down_proj", product)
