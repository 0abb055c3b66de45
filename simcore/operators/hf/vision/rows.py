"""Pixtral's tower under eager PyTorch: patches of images of any size, and layers (transformers 5.23 `models/pixtral`).

The patches of all images of a microbatch are one sequence, under a mask of all its pairs. The tower is frozen: see
`parts`. It is asked for the outputs of its layers (`output_capturing.py`), so that all of them live until it returns.
"""

from __future__ import annotations

from simcore.models.vision_blocks import RowLayer, RowPatches
from simcore.operators.hf.vision.part import Modules, asks, front, leaf, normed, regrouped, tower_layer
from simcore.operators.hf.vision.rotation import turned
from simcore.operators.shared import aten
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["DIFFERENTIATED", "kept_by_rows", "row_layer", "row_patches"]

_Spec = tuple[tuple[int, ...], str]
_COPY, _CONV, _POSITIONS, _MASK = "pixel_values.to", "patch_conv", "patches.positions", "patches.mask"
_FLASH = "flash_attention_2"
_NUMBERS = ("patches.rows", "patches.columns")
_TABLES = ("patches.cos", "patches.sin")
DIFFERENTIATED = (_CONV, *_TABLES, _MASK)
"""Tensors of `kept_by_rows` that a differentiated tower keeps for the backward of its layers."""


def kept_by_rows(run: LayerWorkload, modules: Modules, sides: tuple[int, int], width: int,
                 dim: int) -> dict[str, _Spec]:
    """(shape, dtype) by name of what lives from the patches to the end of the tower, beside hidden states.

    `sides`: patches of an image by rows and columns, whose numbers live as those of the last image; `width`: elements
    of a patch; `dim`: elements of a head. flash-attn gets the numbers of patches of images in place of a mask
    (generate_block_attention_mask).
    """
    rows, columns = sides
    patches = run.images * rows * columns
    table: _Spec = ((1, patches, 1, dim), run.compute)
    mask: dict[str, _Spec] = {} if modules.attention == _FLASH else {_MASK: ((1, patches, patches), run.compute)}
    return {_CONV: ((patches, width), run.compute), _POSITIONS: ((patches, 2), "int64"),
            "patches.rows": ((rows,), "int64"), "patches.columns": ((columns,), "int64"),
            **dict.fromkeys(_TABLES, table), **mask}


def row_patches(tape: Tape, block: RowPatches, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """Front of `PixtralVisionModel.forward`: a convolution without overlap, one sequence of it, tables and a mask."""
    rows, given = run.images * block.count, run.options.pixels
    specs = kept_by_rows(run, modules, (block.rows, block.columns), block.width, block.rotary_dim)
    weight = run.params["patch_conv.weight"]
    _copy = None if given == run.compute else aten.new(tape, (run.images * block.pixels,), run.compute, _COPY,
                                                       run.images * block.pixels * dtype_bytes(given))
    made = {_CONV: aten.new(tape, *specs[_CONV], _CONV, 2 * run.images * block.pixels + weight.nbytes, Kernel.GEMM,
                            2 * rows * weight.numel)}
    del _copy
    conv = made[_CONV]
    node = conv.node = leaf(tape, conv) if asks(run) else None
    joined = regrouped(tape, conv.view(1, rows, block.width), "patches")
    out = rms_norm(tape, run.params["ln_pre.weight"], joined, weight_in_fp32=False)
    del joined, conv
    made |= {name: aten.new(tape, *specs[name], name) for name in _NUMBERS}
    made[_POSITIONS] = aten.new(tape, *specs[_POSITIONS], _POSITIONS)
    made |= dict(zip(_TABLES, _tables(tape, run, rows, block.rotary_dim, made[_POSITIONS]), strict=True))
    made |= {name: aten.new(tape, *specs[name], name) for name in (_MASK,) if name in specs}
    return front(tape, out, made, node, tuple(name for name in DIFFERENTIATED if name in made))


def _tables(tape: Tape, run: LayerWorkload, rows: int, dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Tables of cos and sin [patches, dim], made in fp32 (`PixtralVisionRotaryEmbedding`)."""
    freqs = aten.select(tape, aten.select(tape, positions, (rows, 2), "fp32", "positions"), (rows, 2, dim // 2), "fp32",
                        "freqs")
    cos, sin = (aten.select(tape, aten.select(tape, freqs, freqs.shape, "fp32", name), freqs.shape, "fp32", name)
                for name in ("cos", "sin"))
    cos = _joined(tape, cos, rows, dim)
    sin = _joined(tape, sin, rows, dim)
    return aten.cast(tape, cos, run.compute), aten.cast(tape, sin, run.compute)


def _joined(tape: Tape, x: Tensor, rows: int, dim: int) -> Tensor:
    half = aten.select(tape, x, (rows, dim // 2), "fp32", "rotary")
    return aten.select(tape, half, (rows, dim), "fp32", "rotary")


def row_layer(tape: Tape, block: RowLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`PixtralAttentionLayer`; the tower holds its input."""
    def body(x: Tensor) -> Tensor:
        held: list[Tensor] = []
        made = _attention(tape, block, run, modules, normed(tape, run, "attention_norm", x), held)
        residual = aten.add(tape, x, made, "residual")
        del made
        made = _mlp(tape, run, modules, normed(tape, run, "ffn_norm", residual))
        return aten.add(tape, residual, made, "residual")

    shape = (1, run.images * block.patches, block.width)
    return tower_layer(tape, run, modules, shape, body, stays=not run.input_requires_grad)


def _attention(tape: Tape, block: RowLayer, run: LayerWorkload, modules: Modules, x: Tensor,
               held: list[Tensor]) -> Tensor:
    """`PixtralAttention`; `held`: gets the probabilities, which the layer binds to a name."""
    tape.scope = "attention."
    rows, dim = x.shape[1], block.head_dim
    copies = modules.attention == "eager"  # scores and values by heads have gradients by heads
    q, k, v = (aten.to_heads(tape, modules.linear(tape, run, f"attention.{part}_proj", x), dim, copy_grad=copies)
               for part in "qkv")
    table = Tensor(None, (1, rows, 1, dim), run.compute)
    both = [turned(tape, part, table) for part in (q, k)]
    q, k = both
    both.clear()
    mask = Tensor(None, (1, rows, rows), run.compute)
    if modules.attention == "eager":
        out = eager_core(tape, mask, held, by_heads=False)(q, k, v)
    elif modules.attention == _FLASH:
        pairs = 2 * run.images * block.patches**2
        out = aten.flash_attention(tape, q, k, v, pairs, run.images)
    else:
        out = aten.masked_attention(tape, q, k, v)
    return modules.linear(tape, run, "attention.o_proj", out.view(*x.shape))


def _mlp(tape: Tape, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`PixtralMLP`."""
    tape.scope = "feed_forward."
    gate = aten.silu(tape, modules.linear(tape, run, "feed_forward.gate_proj", x))
    product = aten.mul(tape, gate, modules.linear(tape, run, "feed_forward.up_proj", x))
    del gate
    return modules.linear(tape, run, "feed_forward.down_proj", product)
