"""Pixtral's tower under eager PyTorch: patches of images of any size, and layers (transformers 5.23 `models/pixtral`).

The patches of all images of a microbatch are one sequence, under a mask of all its pairs. The tower is asked for the
outputs of its layers (`output_capturing.py`), so that all of them live until it returns. What layers of a trained tower
save of it, tables and the mask, lives until its backward is over.
"""

from __future__ import annotations

from simcore.models.vision_blocks import RowLayer, RowPatches
from simcore.operators.hf.vision.rotation import turned
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.layer_borders import BEFORE, hand_on, nothing, run_backward
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["kept_by_rows", "row_layer", "row_patches"]

_Spec = tuple[tuple[int, ...], str]
_COPY, _CONV, _POSITIONS, _MASK = "pixel_values.to", "patch_conv", "patches.positions", "patches.mask"
_NUMBERS = ("patches.rows", "patches.columns")
_TABLES = ("patches.cos", "patches.sin")
_SAVED = (*_TABLES, _MASK)
"""Names of what layers of a trained tower save."""


def kept_by_rows(run: LayerWorkload, sides: tuple[int, int], width: int, dim: int) -> dict[str, _Spec]:
    """(shape, dtype) by name of what lives from the patches to the end of the tower, beside hidden states.

    The end of a trained tower has an input with a gradient, and less to drop.

    `sides`: patches of an image by rows and columns, whose numbers live as those of the last image; `width`: elements
    of a patch; `dim`: elements of a head.
    """
    rows, columns = sides
    patches = run.images * rows * columns
    table: _Spec = ((1, patches, 1, dim), run.compute)
    found = {_CONV: ((patches, width), run.compute), _POSITIONS: ((patches, 2), "int64"),
             "patches.rows": ((rows,), "int64"), "patches.columns": ((columns,), "int64"),
             **dict.fromkeys(_TABLES, table), _MASK: ((1, patches, patches), run.compute)}
    return {name: spec for name, spec in found.items() if not (run.input_requires_grad and name in _SAVED)}


def row_patches(tape: Tape, block: RowPatches, run: LayerWorkload) -> RecordedLayer:
    """Front of `PixtralVisionModel.forward`: a convolution without overlap, one sequence of it, tables and a mask."""
    rows, given = run.images * block.count, run.options.pixels
    specs = kept_by_rows(run, (block.rows, block.columns), block.width, block.rotary_dim)
    copy = None if given == run.compute else aten.new(tape, (run.images * block.pixels,), run.compute, _COPY,
                                                      run.images * block.pixels * dtype_bytes(given))
    made = {_CONV: _convolved(tape, block, run, copy)}
    del copy
    joined = _joined_patches(tape, made[_CONV], (1, rows, block.width))
    out = rms_norm(tape, run.params["ln_pre.weight"], joined, weight_in_fp32=False)
    del joined
    made |= {name: aten.new(tape, *specs[name], name) for name in _NUMBERS}
    made[_POSITIONS] = aten.new(tape, *specs[_POSITIONS], _POSITIONS)
    made |= dict(zip(_TABLES, _tables(tape, run, rows, block.rotary_dim, made[_POSITIONS]), strict=True))
    made[_MASK] = aten.new(tape, *specs[_MASK], _MASK)
    hand_on(tape, out)
    if out.node is not None:
        tape.save(made[_CONV].node, *(made.pop(name) for name in _SAVED))
    for name, tensor in made.items():
        tape.rename(tensor.storage, tape.slot(name, "activation"))
        tensor.disown()
    made.clear()
    forward = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, None, nothing), grads=tape.release_grads())


def _convolved(tape: Tape, block: RowPatches, run: LayerWorkload, pixels: Tensor | None) -> Tensor:
    """Patches [patches of all images, width]; `pixels`: in the layers' type, None if they are given so."""
    weight, rows, moved = run.params["patch_conv.weight"], run.images * block.count, 2 * run.images * block.pixels

    def backward(tape: Tape, _grads: Grads, _saved: Saved) -> Grads:
        return [aten.new(tape, weight.shape, weight.dtype, "grad_patch_conv", moved, Kernel.GEMM, flops)]

    flops = 2 * rows * weight.numel
    node = tape.node((weight,), (pixels,) if pixels is not None else (), backward)
    out = aten.new(tape, (rows, block.width), run.compute, _CONV, moved + weight.nbytes, Kernel.GEMM,
                   flops)
    out.node = node
    return out


def _joined_patches(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """One sequence of the patches of all images; its gradient is put together image by image (torch's unbind)."""
    given, dtype, size = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, _grads: Grads, _saved: Saved) -> Grads:
        return [aten.new(tape, given, dtype, "grad_patches", size, Kernel.COPY)]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, shape, dtype, "patches", size, Kernel.COPY)
    out.node = node
    return out


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


def row_layer(tape: Tape, block: RowLayer, run: LayerWorkload, attention: str) -> RecordedLayer:
    """`PixtralAttentionLayer`; the tower holds its input. `attention`: eager, flash_attention_2, or torch's (sdpa)."""
    hidden = tape.external((1, run.images * block.patches, block.width), run.compute, HIDDEN, BEFORE)
    hidden.disown()
    leaf = Node() if run.input_requires_grad else None
    hidden.node = leaf
    held: list[Tensor] = []
    made = _attention(tape, block, run, attention, _norm(tape, run, "attention_norm", hidden), held)
    residual = aten.add(tape, hidden, made, "residual")
    del made
    made = _mlp(tape, run, _norm(tape, run, "ffn_norm", residual))
    out = aten.add(tape, residual, made, "residual")
    del residual, made
    hand_on(tape, out)
    held.clear()
    forward = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, leaf, nothing), grads=tape.release_grads())


def _attention(tape: Tape, block: RowLayer, run: LayerWorkload, attention: str, x: Tensor,
               held: list[Tensor]) -> Tensor:
    """`PixtralAttention`; `held`: gets the probabilities, which the layer binds to a name."""
    tape.scope = "attention."
    rows, dim = x.shape[1], block.head_dim
    q, k, v = (_linear(tape, run, f"attention.{part}_proj", x).view(1, rows, block.num_heads, dim) for part in "qkv")
    table = Tensor(None, (1, rows, 1, dim), run.compute)
    both = [turned(tape, part, table) for part in (q, k)]
    q, k = both
    both.clear()
    mask = Tensor(None, (1, rows, rows), run.compute)
    if attention == "eager":
        out = eager_core(tape, mask, held, by_heads=False)(q, k, v)
    elif attention == "flash_attention_2":
        pairs = 2 * run.images * block.patches**2
        out = aten.flash_attention(tape, q, k, v, pairs, run.images)
    else:
        out = aten.masked_attention(tape, q, k, v, mask)
    return _linear(tape, run, "attention.o_proj", out.view(*x.shape))


def _mlp(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """`PixtralMLP`."""
    tape.scope = "feed_forward."
    gate = aten.silu(tape, _linear(tape, run, "feed_forward.gate_proj", x))
    product = aten.mul(tape, gate, _linear(tape, run, "feed_forward.up_proj", x))
    del gate
    return _linear(tape, run, "feed_forward.down_proj", product)


def _norm(tape: Tape, run: LayerWorkload, at: str, x: Tensor) -> Tensor:
    tape.scope = f"{at}."
    return rms_norm(tape, run.params[f"{at}.weight"], x, weight_in_fp32=False)


def _linear(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    return aten.linear(tape, x, run.params[f"{name}.weight"], name.removeprefix(tape.scope))
