"""Parameters of `Qwen3VLVisionModel` (Megatron-Bridge 067f987d), as they are registered, before tp cuts them.

Patches and positions are torch's own modules and whole on every tp rank (`utils.py:32`, `vision_model.py:145`); layers
are core's (`core/models/vision/vit_layer_specs.py:38`), mergers a norm, a column- and a row-parallel linear
(`utils.py:112`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from simcore.models.blocks import Attention, Branch, Mlp
from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector, SoundProjector
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import Projector, VisionPart
from simcore.operators.hf.vision.specs.towers import tower_tensors as whole_tensors

__all__ = ["attention_of", "branches_of", "tower_tensors"]

_TOWER, _PROJECTOR = "vision_tower", "projector"


def attention_of(block: PlacedLayer | RadioLayer) -> Attention:
    """Attention of a layer of the tower: all heads have keys and values of their own; RADIO's are not rotated."""
    heads = block.num_heads
    return Attention(block.width, heads, heads, block.head_dim, rotary=isinstance(block, PlacedLayer), bias="all")


def branches_of(block: PlacedLayer | RadioLayer) -> tuple[Branch, Branch]:
    """Both branches of a layer of the tower, as those of a layer of the decoder are written."""
    return (Branch("norm1", "attn", attention_of(block), layer_norm=True),
            Branch("norm2", "mlp", Mlp(block.width, block.ffn, gated=False, gelu=True, bias=True), layer_norm=True))


def tower_tensors(block: VisionPart, layer: Callable[[tuple[Branch, ...]], tuple[TensorSpec, ...]]
                  ) -> tuple[TensorSpec, ...]:
    """Parameters of a part of a tower, in registration order, with names relative to it.

    `layer`: parameters of a layer by its branches.
    """
    match block:
        case PlacedPatches():
            return tuple(_patches(block))
        case PlacedLayer() | RadioLayer():
            return tuple(replace(spec, component=_TOWER) for spec in layer(branches_of(block)))
        case DeepMerger():
            return tuple(_merger(block, block.merged * block.width))
        case PlacedMerger():
            return tuple(_merger(block, block.width))
        case Projector():
            return tuple(_pooled(block))
        case RadioPatches():
            return tuple(_radio_patches(block))
        case RadioProjector():
            return tuple(_projector(block.merged * block.width, block.ffn, block.hidden))
        case SoundProjector():
            return tuple(_projector(block.width, block.ffn, block.hidden))
        case _:
            return whole_tensors(block)


def _patches(block: PlacedPatches) -> Iterator[TensorSpec]:
    """`Qwen3VLVisionPatchEmbed`, and the learned positions."""
    shape = (block.width, block.channels, block.frames, block.patch, block.patch)
    dims = ("vision", "channels", "frames", "patch", "patch")
    yield TensorSpec("patch_embed.proj.weight", shape, dims, _TOWER, "conv")
    yield TensorSpec("patch_embed.proj.bias", (block.width,), ("vision",), _TOWER, "bias")
    yield TensorSpec("pos_embed.weight", (block.positions, block.width), ("patches", "vision"), _TOWER, "embedding")


def _pooled(block: Projector) -> Iterator[TensorSpec]:
    """`Gemma3VLMultimodalProjector` (`models/gemma_vl/modeling_gemma3_vl.py`)."""
    yield TensorSpec("mm_soft_embed_norm.weight", (block.width,), ("vision",), _PROJECTOR, "norm")
    yield TensorSpec("proj.weight", (block.hidden, block.width), ("ffn", "vision"), _PROJECTOR, "linear")


def _merger(block: DeepMerger | PlacedMerger, normed: int) -> Iterator[TensorSpec]:
    """`Qwen3VLVisionPatchMerger`; `normed`: elements over which its norm goes."""
    square = block.merged * block.width
    for part in ("weight", "bias"):
        yield TensorSpec(f"patch_norm.{part}", (normed,), ("vision",), _PROJECTOR, "norm")
    for name, out, into, dims in (("linear_fc1", square, square, ("ffn", "square")),
                                  ("linear_fc2", block.hidden, square, ("hidden", "ffn"))):
        yield TensorSpec(f"{name}.weight", (out, into), dims, _PROJECTOR, "linear")
        yield TensorSpec(f"{name}.bias", (out,), dims[:1], _PROJECTOR, "bias")


def _radio_patches(block: RadioPatches) -> Iterator[TensorSpec]:
    """`RADIOViTModel` before its layers; its products are cut over tp, and what they put out is gathered."""
    pixels = block.channels * block.patch**2
    yield TensorSpec("class_token", (block.prefix, block.width), ("patches", "vision"), _TOWER)
    yield TensorSpec("position_embeddings", (1, block.positions**2, block.width), ("one", "patches", "vision"), _TOWER)
    for name, frames in (("embedder", 1), ("video_embedder", block.frames))[:1 + (block.frames > 1)]:
        yield TensorSpec(f"{name}.weight", (block.width, frames * pixels), ("tp_out", "patch"), _TOWER, "linear")


def _projector(given: int, ffn: int, hidden: int) -> Iterator[TensorSpec]:
    """`MultimodalProjector`: an MLP whose first linear has a norm before it (core/models/vision)."""
    at = "encoder.linear_fc"
    yield TensorSpec(f"{at}1.layer_norm_weight", (given,), ("square",), _PROJECTOR, "norm")
    yield TensorSpec(f"{at}1.weight", (ffn, given), ("ffn", "square"), _PROJECTOR, "linear")
    yield TensorSpec(f"{at}2.weight", (hidden, ffn), ("hidden", "ffn"), _PROJECTOR, "linear")
