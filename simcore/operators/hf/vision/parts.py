"""SigLIP's tower under eager PyTorch: patches, layers, and the norm behind them (transformers 5.23 `models/siglip`).

Images of a microbatch are one batch. In a frozen tower no operator makes a node, and what a layer has made is freed
when it returns, but for its output, unless [Note: a tower whose front takes a gradient] in `part`.

[Note: attention of a tower]
`models/siglip`, eager_attention_forward: scores of all pairs of patches of an image, scaled, softmax in fp32, cast
back; there is no mask. A layer binds the probabilities to a name and holds them until it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from simcore.models.class_blocks import ClassEnd, ClassLayer, ClassPatches, ScaledLayer, ScaledPatches, ShuffledEnd
from simcore.models.placed_blocks import (
    DeepMerger,
    MoonEnd,
    MoonLayer,
    MoonNorm,
    MoonPatches,
    PlacedLayer,
    PlacedMerger,
    PlacedPatches,
)
from simcore.models.pooled_blocks import (
    PooledLayer,
    PooledPatches,
    PooledProjector,
    PooledSound,
    PooledSoundEnd,
    PooledStem,
)
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
from simcore.operators.hf.vision.class_token import (
    class_end,
    class_layer,
    class_patches,
    scaled_layer,
    scaled_patches,
    shuffled_end,
)
from simcore.operators.hf.vision.grid import grid_layer, grid_patches
from simcore.operators.hf.vision.merger import merger
from simcore.operators.hf.vision.moon import moon_end, moon_layer, moon_norm, moon_patches
from simcore.operators.hf.vision.part import Modules, asks, attended, front, gelu_mlp, layer_norm, leaf, tower_layer
from simcore.operators.hf.vision.placed import deep_merger, placed_layer, placed_merger, placed_patches
from simcore.operators.hf.vision.pooled import pooled_layer, pooled_patches
from simcore.operators.hf.vision.pooled_end import pooled_projector
from simcore.operators.hf.vision.pooled_stem import pooled_stem
from simcore.operators.hf.vision.projector import projector
from simcore.operators.hf.vision.radio import radio_layer, radio_patches, radio_projector
from simcore.operators.hf.vision.row_projector import row_projector
from simcore.operators.hf.vision.rows import row_layer, row_patches
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Section, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["record_part", "siglip_part"]

MakeTables = Callable[[TowerEnd | PooledStem, Callable[[], None] | None], None]
_AnySizePart = (GridPatches | GridLayer | Merger | PlacedPatches | PlacedLayer | DeepMerger | PlacedMerger | RowPatches
                | RowLayer | RowProjector)


def record_part(tape: Tape, block: VisionPart, run: LayerWorkload, modules: Modules,
                make_tables: MakeTables) -> RecordedLayer:
    """Recording of a part of a vision tower, forward and backward; a frozen tower has no backward.

    `modules`: how those of the tower run. `make_tables`: records, behind the end of the tower, what the model
    makes for its layers.
    """
    match block:
        case Patches() | TowerLayer() | TowerNorm():
            return siglip_part(tape, block, run, modules)
        case Projector():
            return projector(tape, block, run, modules, lambda: make_tables(block, None))
        case PooledPatches() | PooledLayer() | PooledProjector() | PooledStem():
            return _of_filled_size(tape, block, run, modules, make_tables)
        case RadioPatches() | RadioLayer() | RadioProjector():
            return _of_radio(tape, block, run, modules)
        case ScaledPatches() | ScaledLayer() | ShuffledEnd():
            return _of_intern(tape, block, run, modules, make_tables)
        case ClassPatches() | ClassLayer() | ClassEnd():
            return _of_clip(tape, block, run, modules, make_tables)
        case MoonPatches() | MoonLayer() | MoonNorm() | MoonEnd():
            return _of_moon(tape, block, run, modules)
        case SoundEncoder() | SoundProjector() | PooledSound() | PooledSoundEnd():  # no sound is given
            return RecordedLayer(tape.cut(), Section(()))
        case _:
            return _of_any_size(tape, block, run, modules, make_tables)


def siglip_part(tape: Tape, block: Patches | TowerLayer | TowerNorm, run: LayerWorkload,
                modules: Modules) -> RecordedLayer:
    """Recording of a part of SigLIP's tower."""
    match block:
        case Patches():
            return _patches(tape, block, run)
        case TowerLayer():
            return _layer(tape, block, run, modules)
        case TowerNorm():
            return _norm(tape, block, run, modules)


def _of_radio(tape: Tape, block: RadioPatches | RadioLayer | RadioProjector, run: LayerWorkload,
              modules: Modules) -> RecordedLayer:
    """The same of RADIO, before a decoder that knows no positions."""
    if isinstance(block, RadioPatches):
        return radio_patches(tape, block, run)
    if isinstance(block, RadioLayer):
        return radio_layer(tape, block, run, modules)
    return radio_projector(tape, block, run, modules)


def _of_moon(tape: Tape, block: MoonPatches | MoonLayer | MoonNorm | MoonEnd, run: LayerWorkload,
             modules: Modules) -> RecordedLayer:
    """The same of MoonViT, before a decoder of Automodel's own, whose tables its end makes."""
    match block:
        case MoonPatches():
            return moon_patches(tape, block, run)
        case MoonLayer():
            return moon_layer(tape, block, run, modules)
        case MoonNorm():
            return moon_norm(tape, block, run, modules)
        case MoonEnd():
            return moon_end(tape, block, run, modules)


def _of_clip(tape: Tape, block: ClassPatches | ClassLayer | ClassEnd, run: LayerWorkload, modules: Modules,
             make_tables: MakeTables) -> RecordedLayer:
    """The same of CLIP, before LLaVA's projector."""
    if isinstance(block, ClassPatches):
        return class_patches(tape, block, run, modules)
    if isinstance(block, ClassLayer):
        return class_layer(tape, block, run, modules)
    return class_end(tape, block, run, modules, lambda: make_tables(block, None))


def _of_intern(tape: Tape, block: ScaledPatches | ScaledLayer | ShuffledEnd, run: LayerWorkload, modules: Modules,
               make_tables: MakeTables) -> RecordedLayer:
    """The same of InternVL."""
    if isinstance(block, ScaledPatches):
        return scaled_patches(tape, block, run, modules)
    if isinstance(block, ScaledLayer):
        return scaled_layer(tape, block, run, modules)
    return shuffled_end(tape, block, run, modules, lambda: make_tables(block, None))


def _of_filled_size(tape: Tape, block: PooledPatches | PooledLayer | PooledProjector | PooledStem,
                    run: LayerWorkload, modules: Modules, make_tables: MakeTables) -> RecordedLayer:
    """The same of a tower of images that are filled up to one number of patches."""
    match block:
        case PooledPatches():
            return pooled_patches(tape, block, run, modules)
        case PooledLayer():
            return pooled_layer(tape, block, run, modules)
        case PooledProjector():
            return pooled_projector(tape, block, run, modules, partial(make_tables, block, None))
        case PooledStem():
            return pooled_stem(tape, block, run, modules, partial(make_tables, block))


def _of_any_size(tape: Tape, block: _AnySizePart, run: LayerWorkload, modules: Modules,
                 make_tables: MakeTables) -> RecordedLayer:
    """The same of a tower of images of any size."""
    match block:
        case GridPatches():
            return grid_patches(tape, block, run)
        case GridLayer():
            return grid_layer(tape, block, run, modules)
        case Merger():
            return merger(tape, block, run, modules, lambda: make_tables(block, None))
        case PlacedPatches():
            return placed_patches(tape, block, run)
        case PlacedLayer():
            return placed_layer(tape, block, run, modules)
        case DeepMerger():
            return deep_merger(tape, block, run, modules)
        case PlacedMerger():
            return placed_merger(tape, block, run, modules, lambda: make_tables(block, None))
        case RowPatches():
            return row_patches(tape, block, run, modules)
        case RowLayer():
            return row_layer(tape, block, run, modules)
        case RowProjector():
            return row_projector(tape, block, run, modules, lambda: make_tables(block, None))


def _patches(tape: Tape, block: Patches, run: LayerWorkload) -> RecordedLayer:
    """`SiglipVisionEmbeddings`: a convolution without overlap, which is one product, and learned positions."""
    pixels, given = (run.images, block.pixels), run.options.pixels
    _narrow = [aten.cast(tape, run.params[f"patch_embedding.{part}"], run.compute) for part in ("bias", "weight")]
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
    node = found.node = leaf(tape, found, copies=True) if node is None and asks(run) else node
    del copy
    _narrow.clear()
    positions = aten.new(tape, (1, *shape[1:]), table.dtype, "position_embedding")
    positions.node = tape.node((table,), (), of_table)
    out = aten.add(tape, found, positions, "embeddings")
    del found, positions
    return front(tape, out, {}, node, ())


def _norm(tape: Tape, block: TowerNorm, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """The norm behind the tower, which holds the first layer's input till then unless the graph does."""
    shape = (run.images, block.patches, block.width)
    stream = modules.stream or run.compute
    held = [] if run.input_requires_grad else [tape.external(shape, stream, HIDDEN, BEFORE - block.layers)]
    made = tower_layer(tape, run, replace(modules, is_replayed=False), shape,
                       lambda x: layer_norm(tape, run, modules, "", x))
    held.clear()
    return replace(made, after=Section((*made.after.rows, *tape.cut().rows)))


def _layer(tape: Tape, block: TowerLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`SiglipEncoderLayer`."""
    def body(x: Tensor) -> Tensor:
        held: list[Tensor] = []
        made = _attention(tape, block, run, modules, layer_norm(tape, run, modules, "layer_norm1.", x), held)
        residual = aten.add(tape, x, made, "residual")
        del made
        made = gelu_mlp(tape, run, modules, layer_norm(tape, run, modules, "layer_norm2.", residual))
        return aten.add(tape, residual, made, "residual")

    shape = (run.images, block.patches, block.width)
    return tower_layer(tape, run, modules, shape, body, stays=block.first and not run.input_requires_grad)


def _attention(tape: Tape, block: TowerLayer, run: LayerWorkload, modules: Modules, x: Tensor,
               held: list[Tensor]) -> Tensor:
    """Attention of `x` in its shape; `held`: gets the probabilities, which the layer binds to a name."""
    tape.scope = "self_attn."
    is_single = run.images == 1 or bool(modules.stream)  # a cast before the copies by heads has a gradient of its own
    copied = "" if modules.attention != "eager" else "qv" if is_single else "qkv"  # gradients that lie by heads
    q, k, v = (aten.to_heads(tape, modules.linear(tape, run, f"self_attn.{part}_proj", x), block.head_dim,
                             copy_grad=part in copied) for part in "qkv")
    out = attended(tape, run, modules, (q, k, v), held)
    return modules.linear(tape, run, "self_attn.out_proj", out.view(*x.shape))
