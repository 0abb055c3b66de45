"""Parameters of a vision tower and its projector, as transformers 5.23 registers them.

`models/siglip` and `gemma3`; `models/qwen2_5_vl`, `qwen3_vl`; `models/pixtral` and `mistral3`.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import (
    GridLayer,
    GridPatches,
    Merger,
    Patches,
    Projector,
    RowLayer,
    RowPatches,
    RowProjector,
    TowerLayer,
    TowerNorm,
    VisionPart,
)
from simcore.operators.hf.vision.specs.class_token import clip_tensors, intern_tensors
from simcore.operators.hf.vision.specs.linears import PROJECTOR, TOWER, linear, norm, norm_weight, weight
from simcore.operators.hf.vision.specs.moon import moon_tensors
from simcore.operators.hf.vision.specs.pooled import pooled_tensors
from simcore.operators.hf.vision.specs.radio import radio_tensors, sound_tensors

__all__ = ["tower_tensors"]

_AnySizePart = (GridPatches | GridLayer | Merger | PlacedPatches | PlacedLayer | DeepMerger | PlacedMerger | RowPatches
                | RowLayer | RowProjector)


def tower_tensors(block: VisionPart) -> tuple[TensorSpec, ...]:
    """Parameters of a part of a vision tower, in registration order, with names relative to it."""
    match block:
        case Patches():
            return tuple(_patches(block))
        case TowerLayer():
            return tuple(_layer(block))
        case TowerNorm():
            return tuple(_bare_norm(block))
        case Projector():
            return tuple(_projector(block))
        case RadioPatches() | RadioLayer() | RadioProjector():
            return tuple(radio_tensors(block))
        case SoundEncoder() | SoundProjector():
            return tuple(sound_tensors(block))
        case ScaledPatches() | ScaledLayer() | ShuffledEnd():
            return tuple(intern_tensors(block))
        case ClassPatches() | ClassLayer() | ClassEnd():
            return tuple(clip_tensors(block))
        case PooledPatches() | PooledLayer() | PooledProjector() | PooledStem() | PooledSound() | PooledSoundEnd():
            return tuple(pooled_tensors(block))
        case MoonPatches() | MoonLayer() | MoonNorm() | MoonEnd():
            return tuple(moon_tensors(block))
        case _:
            return tuple(_of_any_size(block))


def _bare_norm(block: TowerNorm) -> Iterator[TensorSpec]:
    """The LayerNorm behind SigLIP's layers, whose parameters have no name before theirs."""
    for part in ("weight", "bias"):
        yield TensorSpec(part, (block.width,), ("vision",), TOWER, "norm")


def _of_any_size(block: _AnySizePart) -> Iterator[TensorSpec]:
    """The same of a tower of images of any size."""
    match block:
        case GridPatches():
            return _grid_patches(block)
        case GridLayer():
            return _grid_layer(block)
        case Merger():
            return _merger(block)
        case PlacedPatches():
            return _placed_patches(block)
        case PlacedLayer():
            return _placed_layer(block)
        case DeepMerger():
            return _squares(block, block.merged * block.width)
        case PlacedMerger():
            return _squares(block, block.width)
        case RowPatches():
            return _row_patches(block)
        case RowLayer():
            return _row_layer(block)
        case RowProjector():
            return _row_projector(block)


def _patches(block: Patches) -> Iterator[TensorSpec]:
    """`SiglipVisionEmbeddings`."""
    shape = (block.width, block.channels, block.patch, block.patch)
    yield TensorSpec("patch_embedding.weight", shape, ("vision", "channels", "patch", "patch"), TOWER, "conv")
    yield TensorSpec("patch_embedding.bias", (block.width,), ("vision",), TOWER, "bias")
    yield TensorSpec("position_embedding.weight", (block.count, block.width), ("patches", "vision"), TOWER,
                     "embedding")


def _layer(block: TowerLayer) -> Iterator[TensorSpec]:
    """`SiglipEncoderLayer`."""
    yield from norm("layer_norm1", (block.width, "vision"))
    for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
        yield from linear(f"self_attn.{part}", (block.width, "vision"), (block.width, "vision"))
    yield from norm("layer_norm2", (block.width, "vision"))
    yield from linear("mlp.fc1", (block.ffn, "vision_ffn"), (block.width, "vision"))
    yield from linear("mlp.fc2", (block.width, "vision"), (block.ffn, "vision_ffn"))


def _projector(block: Projector) -> Iterator[TensorSpec]:
    """`Gemma3MultiModalProjector`: a module's own parameters come before its children's."""
    yield TensorSpec("mm_input_projection_weight", (block.width, block.hidden), ("vision", "hidden"), PROJECTOR)
    yield norm_weight("mm_soft_emb_norm", (block.width, "vision"), PROJECTOR)


def _grid_patches(block: GridPatches) -> Iterator[TensorSpec]:
    """`Qwen2_5_VisionPatchEmbed`."""
    shape = (block.width, block.channels, block.frames, block.patch, block.patch)
    yield TensorSpec("proj.weight", shape, ("vision", "channels", "frames", "patch", "patch"), TOWER, "conv")


def _grid_layer(block: GridLayer) -> Iterator[TensorSpec]:
    """`Qwen2_5_VLVisionBlock` or `Qwen2VLVisionBlock`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    if block.plain:
        for name in ("norm1", "norm2"):
            yield from norm(name, width)
        yield from linear("attn.qkv", (3 * block.width, "vision_qkv"), width)
        yield from linear("attn.proj", width, width)
        yield from linear("mlp.fc1", ffn, width)
        yield from linear("mlp.fc2", width, ffn)
        return
    for name in ("norm1", "norm2"):
        yield norm_weight(name, width)
    yield from linear("attn.qkv", (3 * block.width, "vision_qkv"), width)
    yield from linear("attn.proj", width, width)
    yield from linear("mlp.gate_proj", ffn, width)
    yield from linear("mlp.up_proj", ffn, width)
    yield from linear("mlp.down_proj", width, ffn)


def _merger(block: Merger) -> Iterator[TensorSpec]:
    """`Qwen2_5_VLPatchMerger` or Qwen 2 VL's `PatchMerger`."""
    square = (block.merged * block.width, "square")
    width = (block.width, "vision")
    yield from norm("ln_q", width, PROJECTOR) if block.plain else (norm_weight("ln_q", width, PROJECTOR),)
    yield from linear("mlp.0", square, square, PROJECTOR)
    yield from linear("mlp.2", (block.hidden, "hidden"), square, PROJECTOR)


def _placed_patches(block: PlacedPatches) -> Iterator[TensorSpec]:
    """`Qwen3VLVisionModel` before its layers."""
    shape = (block.width, block.channels, block.frames, block.patch, block.patch)
    dims = ("vision", "channels", "frames", "patch", "patch")
    yield TensorSpec("patch_embed.proj.weight", shape, dims, TOWER, "conv")
    yield TensorSpec("patch_embed.proj.bias", (block.width,), ("vision",), TOWER, "bias")
    yield TensorSpec("pos_embed.weight", (block.positions, block.width), ("patches", "vision"), TOWER, "embedding")


def _placed_layer(block: PlacedLayer) -> Iterator[TensorSpec]:
    """`Qwen3VLVisionBlock`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    yield from norm("norm1", (block.width, "vision"))
    yield from norm("norm2", (block.width, "vision"))
    yield from linear("attn.qkv", (3 * block.width, "vision_qkv"), width)
    yield from linear("attn.proj", width, width)
    yield from linear("mlp.linear_fc1", ffn, width)
    yield from linear("mlp.linear_fc2", width, ffn)


def _squares(block: DeepMerger | PlacedMerger, normed: int) -> Iterator[TensorSpec]:
    """`Qwen3VLVisionPatchMerger`; `normed`: elements over which its norm goes."""
    square = (block.merged * block.width, "square")
    yield from norm("norm", (normed, "vision"), PROJECTOR)
    yield from linear("linear_fc1", square, square, PROJECTOR)
    yield from linear("linear_fc2", (block.hidden, "hidden"), square, PROJECTOR)


def _row_patches(block: RowPatches) -> Iterator[TensorSpec]:
    """`PixtralVisionModel` before its layers."""
    shape = (block.width, block.channels, block.patch, block.patch)
    yield TensorSpec("patch_conv.weight", shape, ("vision", "channels", "patch", "patch"), TOWER, "conv")
    yield norm_weight("ln_pre", (block.width, "vision"))


def _row_layer(block: RowLayer) -> Iterator[TensorSpec]:
    """`PixtralAttentionLayer`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    yield norm_weight("attention_norm", width)
    for part in ("gate_proj", "up_proj"):
        yield weight(f"feed_forward.{part}", ffn, width)
    yield weight("feed_forward.down_proj", width, ffn)
    for part in ("k_proj", "v_proj", "q_proj", "o_proj"):
        yield weight(f"attention.{part}", width, width)
    yield norm_weight("ffn_norm", width)


def _row_projector(block: RowProjector) -> Iterator[TensorSpec]:
    """`Mistral3MultiModalProjector`, or `LlavaMultiModalProjector`."""
    width, hidden = (block.width, "vision"), (block.hidden, "hidden")
    if not block.plain:
        yield norm_weight("norm", width, PROJECTOR)
        yield weight("patch_merger.merging_layer", width, (block.merged * block.width, "square"), PROJECTOR)
    yield from linear("linear_1", hidden, width, PROJECTOR, bias=block.bias)
    yield from linear("linear_2", hidden, hidden, PROJECTOR, bias=block.bias)
