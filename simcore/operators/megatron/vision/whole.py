"""Towers of Qwen 2.5 VL, Ministral 3 and Gemma 3 as Megatron-Bridge has them: transformers' modules on every tp rank.

Megatron-Bridge 067f987d `models/qwen_vl/modeling_qwen25_vl.py` (Qwen25VLModel.forward),
`models/ministral3/modeling_ministral3.py` and `models/gemma_vl/modeling_gemma3_vl.py`: the tower runs behind the
embedding, its tokens are put in their place by `masked_scatter`. Layers, and ends but Gemma 3's (`pooled`), are those
of `operators/hf/vision`, with attention by torch's `scaled_dot_product_attention`, which both ways to build a tower
from a configuration choose. A trained tower keeps its tables and its images in 16 bits until its backward is over, a
frozen one drops them at its end.
"""

from __future__ import annotations

from typing import Final

from simcore.models.vision_blocks import GridLayer, GridPatches, Merger, Projector, RowProjector
from simcore.operators.hf.vision.grid import grid_layer, grid_patches, in_order, kept_by_tower, tables_of_patches
from simcore.operators.hf.vision.merger import tokens_of
from simcore.operators.hf.vision.part import PLAIN
from simcore.operators.hf.vision.row_projector import drop_tower, projected
from simcore.operators.hf.vision.scatter import masked_scatter
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import reordered
from simcore.operators.megatron.vision.pooled import pooled_tokens
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import nothing, run_backward
from simcore.recording.layer import RecordedLayer
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["patches_of_grid", "record_grid_layer", "tokens_of_grid", "tokens_of_rows",
           "tokens_of_squares"]

_UNTIL_BACKWARD: Final = ("patches.cos", "patches.sin", "pixel_values.to")
"""Tensors that a trained tower keeps for its backward."""


def record_grid_layer(c: Context, block: GridLayer) -> RecordedLayer:
    """Recording of `Qwen2_5_VLVisionBlock`, forward and backward."""
    return grid_layer(c.tape, block, c.run, PLAIN)


def patches_of_grid(c: Context, block: GridPatches) -> RecordedLayer:
    """Recording of the cut of images into patches, with what is made for the layers."""
    tape, run = c.tape, c.run
    weight = run.params["proj.weight"]
    if not weight.trainable or run.no_grad:
        return grid_patches(tape, block, run)
    rows, columns = run.images * block.count, block.pixels // block.count
    specs = kept_by_tower(run, rows, block.rotary_dim, block.merged, run.images * block.pixels)
    kept = {name: aten.new(tape, *specs[name], name) for name in reversed(specs) if name not in _UNTIL_BACKWARD}
    pixels = aten.new(tape, (rows, columns), run.compute, "pixel_values.to")

    def backward(_tape: Tape, _grads: Grads, _saved: Saved) -> Grads:
        c.gemm(block.width, columns, rows)
        return [aten.new(tape, weight.shape, weight.dtype, "grad_patch_embed")]

    found = aten.new(tape, (rows, block.width), run.compute, "patch_embed", pixels.nbytes + weight.nbytes, Kernel.GEMM,
                     2 * rows * weight.numel)
    found.node = tape.node((weight,), (pixels,), backward)
    del pixels
    out = in_order(tape, found, "by_windows", found.nbytes)
    del found
    tables = [in_order(tape, table, "by_windows", table.nbytes)
              for table in tables_of_patches(tape, rows, block.rotary_dim, kept["patches.positions"])]
    tape.save(out.node, *tables)
    tables.clear()
    tape.rename(out.storage, 0)
    out.disown()
    for name, tensor in kept.items():
        tape.rename(tensor.storage, tape.slot(name, "activation"))
        tensor.disown()
    kept.clear()
    forward = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, None, nothing), grads=tape.release_grads())


def tokens_of_grid(c: Context, block: Merger, x: Tensor, embedded: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(the sequence [tokens, hidden] with image tokens, what lives until the model's forward is over).

    Of `x` [1, patches, width] and `embedded` [tokens, hidden].
    """
    tape, run = c.tape, c.run
    specs = kept_by_tower(run, run.images * block.patches, block.patch_rotary_dim, block.merged,
                          run.images * block.pixels)
    of_tower = [tape.external(*spec, tape.slot(name, "activation"), 1 - block.below) for name, spec in specs.items()
                if not (run.input_requires_grad and name in _UNTIL_BACKWARD)]
    made = tokens_of(tape, block, run, PLAIN, x)
    of_tower.clear()
    tokens = _joined(tape, run.compute, made)
    out, mask = _with_tokens(c, block, tokens, embedded)
    return out, [made, tokens, mask]


def tokens_of_rows(c: Context, block: RowProjector, x: Tensor, embedded: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The same of a tower of rows of patches; the tokens by images are dropped when they are joined."""
    tape, run = c.tape, c.run
    drop_tower(tape, block, run, PLAIN, run.images * block.patches)
    made = projected(tape, block, run, PLAIN, x.view(1, *x.shape))
    del x
    tokens = _joined(tape, run.compute, made)
    del made
    out, mask = _with_tokens(c, block, tokens, embedded)
    return out, [tokens, mask]


def tokens_of_squares(c: Context, block: Projector, x: Tensor, embedded: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The same of Gemma 3's tower, whose tokens are no copies of others."""
    tokens = pooled_tokens(c, block, x)
    del x
    out, mask = _with_tokens(c, block, tokens, embedded)
    return out, [tokens, mask]


def _joined(tape: Tape, dtype: str, made: Tensor) -> Tensor:
    """`torch.cat` of the tokens of all images, which are views of one."""
    tokens = aten.new(tape, made.shape, dtype, "image_embeds", made.nbytes, Kernel.COPY)
    tokens.node = tape.node((made,), (), lambda tape, grads, saved: [grads[0]])
    return tokens


def _with_tokens(c: Context, block: Merger | RowProjector | Projector, tokens: Tensor,
                 embedded: Tensor) -> tuple[Tensor, Tensor]:
    """(the sequence [tokens, hidden] with those of images in their place, the mask of their places)."""
    tape, run = c.tape, c.run
    mask = aten.new(tape, (run.batch, run.seq), "uint8", "image_mask", 8 * run.tokens)
    rows = reordered(c, embedded, "inputs_embeds", "grad_inputs_embeds") if run.batch > 1 else embedded
    shape = (run.batch, run.seq, block.hidden)
    out = masked_scatter(tape, rows.view(*shape), mask, tokens.view(*tokens.shape))
    out = out.view(run.tokens, block.hidden)
    if run.batch > 1:
        out = reordered(c, out, "inputs_embeds", "grad_inputs_embeds")
    return out, mask
