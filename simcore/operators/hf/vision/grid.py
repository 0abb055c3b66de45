"""Tower of Qwen 2.5 VL under eager PyTorch: patches of images of any size, and layers (`models/qwen2_5_vl`).

The patches of all images of a microbatch are one sequence.

[Note: attention of windows]
Qwen2_5_VLVisionAttention.forward: without flash-attn each window, or each image, is a call of attention of its own,
whose outputs, query, key and value all live until the module returns. Rotation is in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from simcore.models.vision_blocks import GridLayer, GridPatches
from simcore.operators.hf.vision.part import Modules, asks, front, layer_norm, leaf, normed, tower_layer
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.eager_attention import eager_core
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Node, Tape, Tensor

__all__ = ["TABLES", "attention_of_parts", "grid_layer", "grid_patches", "in_order", "joined", "kept_by_tower",
           "tables_of_patches", "two_linears", "until_backward", "until_return"]

_FLASH, _ORDER = "flash_attention_2", "patches.window_index"
_PIXELS, _WIDE, _ROOT = "pixel_values.to", "pixel_values.type", "pixel_values.cast"
TABLES = ("patches.cos", "patches.sin")
"""Tensors of `kept_by_tower` that a differentiated tower keeps for the backward of its layers."""
_Spec = tuple[tuple[int, ...], str]


def kept_by_tower(run: LayerWorkload, patches: int, dim: int, merged: int, pixels: int) -> dict[str, _Spec]:
    """(shape, dtype) by name of what lives from the patches to the end of the tower, beside hidden states.

    `patches`, `pixels`: of all images; `dim`: elements of a head; `merged`: patches of a token, 0 without windows.
    """
    table: _Spec = ((1, patches, 1, dim), "fp32")
    copies: dict[str, _Spec] = {} if run.options.pixels == run.compute else {
        _PIXELS: ((pixels,), run.compute)}
    if copies and run.options.casts_images == "again":
        copies |= {_WIDE: ((pixels,), "fp32"), _ROOT: ((pixels,), run.compute)}
    order: dict[str, _Spec] = {_ORDER: ((patches // merged,), "int64")} if merged else {}
    return {"patches.cos": table, "patches.sin": table, "patches.positions": ((patches, 2), "int64"), **order, **copies}


def until_backward(run: LayerWorkload, *, trains: bool) -> tuple[str, ...]:
    """Names in `kept_by_tower` of what a differentiated tower keeps for its backward, images only if it `trains`.

    Layers whose inputs hooks cast have copies of the tables.
    """
    return (*(() if run.options.puts_out_fp32 else TABLES), _ORDER, *[_PIXELS] * trains)


def until_return(run: LayerWorkload) -> str:
    """Name in `kept_by_tower` of images that live until the model has returned, "" if none do."""
    return {"once": _PIXELS, "again": _ROOT}.get(run.options.casts_images, "")


def grid_patches(tape: Tape, block: GridPatches, run: LayerWorkload) -> RecordedLayer:
    """`Qwen2_5_VisionPatchEmbed`, a convolution without overlap, which is one product, and what is made for layers."""
    rows = run.images * block.count
    specs = kept_by_tower(run, rows, block.rotary_dim, block.merged * block.windows, run.images * block.pixels)
    made = {name: aten.new(tape, *specs[name], name) for name in reversed(specs) if name not in TABLES}
    weight = run.params["proj.weight"]
    found = aten.new(tape, (rows, block.width), run.compute, "patch_embed",
                     2 * run.images * block.pixels + weight.nbytes, Kernel.GEMM, 2 * rows * weight.numel)
    trained = _convolved(tape, run, made.get(_PIXELS), 2 * rows * weight.numel)
    node = found.node = leaf(tape, found) if trained is None and asks(run) else trained
    order = partial(_in_windows, tape) if block.windows else _same
    out = order(found)
    del found
    positions = made["patches.positions"]
    tables = tables_of_patches(tape, rows, block.rotary_dim, positions)
    made |= {name: order(table) for name, table in zip(TABLES, tables, strict=True)}
    del tables
    del positions
    return front(tape, out, made, node, [name for name in until_backward(run, trains=trained is not None)
                                         if name in made])


def _convolved(tape: Tape, run: LayerWorkload, pixels: Tensor | None, flops: int) -> Node | None:
    """Node of the product of patches, if it is trained; `pixels`: images in 16 bits, None if they came so."""
    weight = run.params["proj.weight"]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, weight.shape, weight.dtype, "grad_patch_embed", weight.nbytes, Kernel.GEMM, flops)]

    return tape.node((weight,), (pixels,), backward)


def _same(x: Tensor) -> Tensor:
    return x


def _in_windows(tape: Tape, x: Tensor) -> Tensor:
    return in_order(tape, x, "by_windows", x.nbytes)


def in_order(tape: Tape, x: Tensor, name: str, moved: int, by: Tensor | None = None) -> Tensor:
    """Rows of `x` by their numbers, in a new tensor `name`; their gradient is put into zeros.

    `moved`: bytes that are read; `by`: the numbers, unless another node keeps them. torch 2.13 `derivatives.yaml`,
    index.
    """
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        zeros = aten.new(tape, shape, dtype, "zeros")
        put = aten.new(tape, shape, dtype, f"grad_{name}", 2 * zeros.nbytes, Kernel.PERMUTE)
        del zeros
        return [put]

    node = tape.node((x,), (by,), backward)
    out = aten.new(tape, shape, dtype, name, moved, Kernel.PERMUTE, 0)
    out.node = node
    return out


def tables_of_patches(tape: Tape, rows: int, dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and sin [patches, dim], fp32 (`Qwen2_5_VLVisionRotaryEmbedding`): a half by row, a half by column, twice."""
    freqs = aten.select(tape, aten.select(tape, positions, (rows, 2), "fp32", "positions"), (rows, 2, dim // 4), "fp32",
                        "freqs")
    cos, sin = (aten.select(tape, aten.select(tape, freqs, freqs.shape, "fp32", name), freqs.shape, "fp32", name)
                for name in ("cos", "sin"))
    cos = joined(tape, cos, rows, dim)
    sin = joined(tape, sin, rows, dim)
    return cos, sin


def joined(tape: Tape, x: Tensor, rows: int, dim: int) -> Tensor:
    """Table [rows, dim] of both halves of angles `x` by rows and columns."""
    half = aten.select(tape, x, (rows, dim // 2), "fp32", "rotary")
    return aten.select(tape, half, (rows, dim), "fp32", "rotary")


def grid_layer(tape: Tape, block: GridLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`Qwen2_5_VLVisionBlock` or `Qwen2VLVisionBlock`; its caller holds the input until it has returned."""
    table = (1, run.images * block.patches, 1, block.head_dim)

    def norm(at: str, x: Tensor) -> Tensor:
        return layer_norm(tape, run, modules, f"{at}.", x) if block.plain else normed(tape, run, at, x)

    def body(x: Tensor) -> Tensor:
        _tables = [aten.new(tape, table, run.compute, f"{name}.to") for name in TABLES if modules.is_wide]
        made = attention_of_parts(tape, block.parts, block.num_heads, run, modules, norm("norm1", x))
        residual = aten.add(tape, x, made, "residual")
        del made
        made = (two_linears if block.plain else _mlp)(tape, run, modules, norm("norm2", residual))
        return aten.add(tape, residual, made, "residual")

    return tower_layer(tape, run, modules, (1, run.images * block.patches, block.width), body, first=block.first)


def two_linears(tape: Tape, run: LayerWorkload, modules: Modules, x: Tensor, at: str = "") -> Tensor:
    """`VisionMlp` of Qwen 2 VL or `CLIPMLP`; `activations.py`, QuickGELUActivation: operator for operator.

    `at`: beginning of the module's name, "" or with a dot at the end.
    """
    tape.scope = f"{at}mlp."
    wide = modules.linear(tape, run, f"{at}mlp.fc1", x)
    active = aten.mul(tape, wide, aten.sigmoid(tape, aten.mul_scalar(tape, wide)))
    del wide
    return modules.linear(tape, run, f"{at}mlp.fc2", active)


def _mlp(tape: Tape, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`Qwen2_5_VLMLP`."""
    tape.scope = "mlp."
    gate = aten.silu(tape, modules.linear(tape, run, "mlp.gate_proj", x))
    product = aten.mul(tape, gate, modules.linear(tape, run, "mlp.up_proj", x))
    del gate
    return modules.linear(tape, run, "mlp.down_proj", product)


def attention_of_parts(tape: Tape, parts: tuple[int, ...], num_heads: int, run: LayerWorkload, modules: Modules,
                       x: Tensor) -> Tensor:
    """Output of the tower's attention for `x` [1, patches, width], in its shape: see [Note: attention of windows].

    `parts`: patches of each part of an image that attends to itself.
    """
    tape.scope = "attn."
    qkv = modules.linear(tape, run, "attn.qkv", x)
    heads = (*x.shape[:2], num_heads, x.shape[2] // num_heads)
    q, k, v = _views(tape, qkv, [heads] * 3, "grad_qkv", copies=True)
    q, k = _rotated(tape, q, k, is_cast=modules.is_cast or modules.is_wide, keeps=modules.is_wide)
    outs = _attended(tape, parts * run.images, modules.attention, (q, k, v))
    out = outs[0] if modules.attention == _FLASH else _joined_parts(tape, outs, x.shape)
    return modules.linear(tape, run, "attn.proj", out.view(*x.shape))


def _views(tape: Tape, x: Tensor, shapes: Sequence[tuple[int, ...]], name: str, *, copies: bool) -> list[Tensor]:
    """Parts of `x`, views of the given shapes; their gradients are put side by side in a new tensor.

    `copies`: in another order, so that it is copied.
    """
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        stacked = aten.new(tape, shape, dtype, f"{name}.stacked", sum(grad.nbytes for grad in grads if grad))
        grads.clear()
        return [stacked if not copies else aten.new(tape, shape, dtype, name, stacked.nbytes, Kernel.COPY)]

    node = tape.node((x,), (), backward)
    return [Tensor(x.storage, one, dtype, node, number) for number, one in enumerate(shapes)]


def _joined_parts(tape: Tape, parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """`torch.cat` of the parts of a sequence, of whose gradient they get views."""
    shapes, dtype = [part.shape for part in parts], parts[0].dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        whole = grads[0]
        assert whole is not None
        return [Tensor(whole.storage, one, dtype) for one in shapes]

    node = tape.node(tuple(parts), (), backward)
    out = aten.new(tape, shape, dtype, "attention.cat", sum(part.nbytes for part in parts))
    out.node = node
    return out


def _rotated(tape: Tape, q: Tensor, k: Tensor, *, is_cast: bool, keeps: bool) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb_vision`: in fp32, then back; `is_cast`: so are the tables, which are in 16 bits.

    `keeps`: the layer's backward keeps those.
    """
    table, dtype = Tensor(None, (1, q.shape[1], 1, q.shape[3]), "fp32"), q.dtype
    q, k = aten.cast(tape, q, "fp32"), aten.cast(tape, k, "fp32")
    wide = [aten.new(tape, table.shape, "fp32", name) for name in TABLES] if is_cast else []
    both = [aten.rotate_halves(tape, x, *(wide if keeps else (table, table))) for x in (q, k)]
    q, k = (aten.cast(tape, both.pop(0), dtype) for _ in range(2))
    return q, k


def _attended(tape: Tape, parts: tuple[int, ...], attention: str,
              given: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Outputs of attention of each part of each image, or of all together by flash-attn."""
    if attention == _FLASH:
        return [aten.flash_attention(tape, *given, 2 * sum(part * part for part in parts), len(parts))]
    outs = []
    split = [_views(tape, x, [(1, part, *x.shape[2:]) for part in parts], "grad_split", copies=False)
             for x in given]
    for q, k, v in zip(*split, strict=True):
        part = q.shape[1]
        outs.append(eager_core(tape, None, [], by_heads=False)(q, k, v) if attention == "eager" else
                    aten.scaled_dot_product_attention(tape, q, k, v, 2 * part * part))
    return outs
