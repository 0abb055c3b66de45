"""SigLIP's tower under eager PyTorch: patches, layers, and the norm behind them (transformers 5.23 `models/siglip`).

Images of a microbatch are one batch. In a frozen tower no operator makes a node, and what a layer has made is freed
when it returns, but for its output.

[Note: attention of a tower]
`models/siglip`, eager_attention_forward: scores of all pairs of patches of an image, scaled, softmax in fp32, cast
back; there is no mask. A layer binds the probabilities to a name and holds them until it returns.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.pooled_blocks import PooledLayer, PooledPatches, PooledProjector
from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector, SoundEncoder, SoundProjector
from simcore.models.vision_blocks import (
    GridLayer,
    GridPatches,
    Merger,
    Patches,
    Projector,
    RowLayer,
    RowPatches,
    RowProjector,
    TowerEnd,
    TowerLayer,
    TowerNorm,
    VisionPart,
)
from simcore.operators.hf.vision.grid import grid_layer, grid_patches
from simcore.operators.hf.vision.merger import merger
from simcore.operators.hf.vision.placed import deep_merger, placed_layer, placed_merger, placed_patches
from simcore.operators.hf.vision.pooled import pooled_layer, pooled_patches
from simcore.operators.hf.vision.pooled_end import pooled_projector
from simcore.operators.hf.vision.projector import projector
from simcore.operators.hf.vision.radio import radio_layer, radio_patches, radio_projector
from simcore.operators.hf.vision.row_projector import row_projector
from simcore.operators.hf.vision.rows import row_layer, row_patches
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.layer_borders import BEFORE, hand_on, nothing, run_backward
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Section, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["record_part", "siglip_part"]

MakeTables = Callable[[TowerEnd], None]
_AnySizePart = (GridPatches | GridLayer | Merger | PlacedPatches | PlacedLayer | DeepMerger | PlacedMerger | RowPatches
                | RowLayer | RowProjector)


def record_part(tape: Tape, block: VisionPart, run: LayerWorkload, attention: str,
                make_tables: MakeTables) -> RecordedLayer:
    """Recording of a part of a vision tower, forward and backward; a frozen tower has no backward.

    `attention`: eager, flash_attention_2, sdpa, or sdpa_fp32 where it is given fp32 (`pooled`). `make_tables`: records,
    behind the end of the tower, what the model makes for its layers.
    """
    match block:
        case Patches() | TowerLayer() | TowerNorm():
            return siglip_part(tape, block, run, "eager")
        case Projector():
            return projector(tape, block, run, lambda: make_tables(block))
        case PooledPatches() | PooledLayer() | PooledProjector():
            return _of_filled_size(tape, block, run, attention, make_tables)
        case RadioPatches() | RadioLayer() | RadioProjector():
            return _of_radio(tape, block, run)
        case SoundEncoder() | SoundProjector():  # no sound is given
            return RecordedLayer(tape.cut(), Section(()))
        case _:
            return _of_any_size(tape, block, run, attention, make_tables)


def siglip_part(tape: Tape, block: Patches | TowerLayer | TowerNorm, run: LayerWorkload,
                attention: str) -> RecordedLayer:
    """Recording of a part of SigLIP's tower; `attention`: eager, or torch's (sdpa)."""
    match block:
        case Patches():
            return _patches(tape, block, run)
        case TowerLayer():
            return _behind(tape, block, run, lambda x: _layer(tape, block, run, x, attention))
        case TowerNorm():
            return _behind(tape, block, run, lambda x: _norm(tape, run, "", x))


def _of_radio(tape: Tape, block: RadioPatches | RadioLayer | RadioProjector, run: LayerWorkload) -> RecordedLayer:
    """The same of RADIO, before a decoder that knows no positions."""
    if isinstance(block, RadioPatches):
        return radio_patches(tape, block, run)
    if isinstance(block, RadioLayer):
        return radio_layer(tape, block, run)
    return radio_projector(tape, block, run)


def _of_any_size(tape: Tape, block: _AnySizePart, run: LayerWorkload, attention: str,
                 make_tables: MakeTables) -> RecordedLayer:
    """The same of a tower of images of any size."""
    match block:
        case GridPatches():
            return grid_patches(tape, block, run)
        case GridLayer():
            return grid_layer(tape, block, run, attention)
        case Merger():
            return merger(tape, block, run, lambda: make_tables(block))
        case PlacedPatches():
            return placed_patches(tape, block, run)
        case PlacedLayer():
            return placed_layer(tape, block, run, attention)
        case DeepMerger():
            return deep_merger(tape, block, run)
        case PlacedMerger():
            return placed_merger(tape, block, run, lambda: make_tables(block))
        case RowPatches():
            return row_patches(tape, block, run)
        case RowLayer():
            return row_layer(tape, block, run, attention)
        case RowProjector():
            return row_projector(tape, block, run, lambda: make_tables(block))


def _of_filled_size(tape: Tape, block: PooledPatches | PooledLayer | PooledProjector, run: LayerWorkload,
                    attention: str, make_tables: MakeTables) -> RecordedLayer:
    """The same of a tower of images that are filled up to one number of patches."""
    match block:
        case PooledPatches():
            return pooled_patches(tape, block, run, attention)
        case PooledLayer():
            return pooled_layer(tape, block, run, attention)
        case PooledProjector():
            return pooled_projector(tape, block, run, attention, lambda: make_tables(block))


def _patches(tape: Tape, block: Patches, run: LayerWorkload) -> RecordedLayer:
    """`SiglipVisionEmbeddings`: a convolution without overlap, which is one product, and learned positions."""
    pixels, given = (run.images, block.pixels), run.options.pixels
    copy = None if given == run.compute else aten.new(tape, pixels, run.compute, "pixel_values.to",
                                                      run.images * block.pixels * dtype_bytes(given))
    weight, bias, table = (run.params[name] for name in ("patch_embedding.weight", "patch_embedding.bias",
                                                         "position_embedding.weight"))
    shape = (run.images, block.count, block.width)
    read = run.images * block.pixels * (weight.nbytes // weight.numel)
    flops = 2 * run.images * block.count * weight.numel

    def of_convolution(tape: Tape, _grads: Grads, _saved: Saved) -> Grads:
        return [aten.new(tape, weight.shape, weight.dtype, "grad_patch_embedding", read, Kernel.GEMM, flops),
                aten.new(tape, bias.shape, bias.dtype, "grad_bias")]

    def of_table(tape: Tape, _grads: Grads, _saved: Saved) -> Grads:
        return [aten.new(tape, table.shape, table.dtype, "grad_position_embedding")]

    node = tape.node((weight, bias), (copy,) if copy else (), of_convolution)
    found = aten.new(tape, shape, run.compute, "patch_embedding", read + weight.nbytes, Kernel.GEMM, flops)
    found.node = node
    del copy
    positions = aten.new(tape, (1, *shape[1:]), run.compute, "position_embedding")
    positions.node = tape.node((table,), (), of_table)
    out = aten.add(tape, found, positions, "embeddings")
    hand_on(tape, out)
    del found, positions
    forward = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, None, nothing), grads=tape.release_grads())


def _behind(tape: Tape, block: TowerLayer | TowerNorm, run: LayerWorkload,
            body: Callable[[Tensor], Tensor]) -> RecordedLayer:
    """A part whose caller holds its input until it has returned; a frozen tower holds the first layer's to its end.

    In a trained one the first norm keeps that longer.
    """
    shape = (run.images, block.patches, block.width)
    hidden: Tensor | None = tape.external(shape, run.compute, HIDDEN, BEFORE)
    trains = run.input_requires_grad
    held = ([tape.external(shape, run.compute, HIDDEN, BEFORE - block.layers)]
            if isinstance(block, TowerNorm) and not trains else [])
    assert hidden is not None
    leaf = Node() if trains else None
    hidden.node = leaf
    if isinstance(block, TowerLayer) and block.first and not trains:
        hidden.disown()
    out = body(hidden)
    hand_on(tape, out)
    forward = tape.cut()
    hidden = None
    held.clear()
    after = tape.cut()
    return RecordedLayer(forward, run_backward(tape, out, leaf, nothing), after, grads=tape.release_grads())


def _layer(tape: Tape, block: TowerLayer, run: LayerWorkload, x: Tensor, attention: str) -> Tensor:
    """`SiglipEncoderLayer`."""
    held: list[Tensor] = []
    made = _attention(tape, block, run, attention, _norm(tape, run, "layer_norm1.", x), held)
    residual = aten.add(tape, x, made, "residual")
    del made
    made = _mlp(tape, run, _norm(tape, run, "layer_norm2.", residual))
    return aten.add(tape, residual, made, "residual")


def _attention(tape: Tape, block: TowerLayer, run: LayerWorkload, attention: str, x: Tensor,
               held: list[Tensor]) -> Tensor:
    tape.scope = "self_attn."
    q, k, v = (aten.to_heads(tape, _linear(tape, run, f"self_attn.{part}_proj", x), block.head_dim) for part in "qkv")
    out = (eager_core(tape, None, held, by_heads=False)(q, k, v) if attention == "eager" else
           aten.scaled_dot_product_attention(tape, q, k, v, 2 * run.images * block.patches**2))
    return _linear(tape, run, "self_attn.out_proj", out.view(*x.shape))


def _mlp(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    tape.scope = "mlp."
    return _linear(tape, run, "mlp.fc2", aten.gelu(tape, _linear(tape, run, "mlp.fc1", x)))


def _linear(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    return aten.linear(tape, x, run.params[f"{name}.weight"], name.removeprefix(tape.scope),
                       bias=run.params[f"{name}.bias"])


def _norm(tape: Tape, run: LayerWorkload, at: str, x: Tensor) -> Tensor:
    tape.scope = at
    return aten.layer_norm(tape, x, run.params[f"{at}weight"], run.params[f"{at}bias"])
