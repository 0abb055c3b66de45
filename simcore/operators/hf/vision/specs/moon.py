"""Parameters of MoonViT and of the projector behind it, as nemo-automodel 0.7.0 `models/kimivl` registers them.

Norms of a layer stand before its MLP, and that before its attention.
"""

from __future__ import annotations

from collections.abc import Iterator

from simcore.models.placed_blocks import MoonEnd, MoonLayer, MoonNorm, MoonPatches
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.vision.specs.linears import PROJECTOR, TOWER, linear, norm

__all__ = ["moon_tensors"]


def moon_tensors(block: MoonPatches | MoonLayer | MoonNorm | MoonEnd) -> Iterator[TensorSpec]:
    """Parameters of a part of the tower, in registration order, with names relative to it."""
    match block:
        case MoonPatches():
            return _patches(block)
        case MoonLayer():
            return _layer(block)
        case MoonNorm():
            return _norm(block)
        case MoonEnd():
            return _end(block)


def _patches(block: MoonPatches) -> Iterator[TensorSpec]:
    """`MoonVisionPatchEmbed`."""
    shape = (block.width, block.channels, block.patch, block.patch)
    yield TensorSpec("proj.weight", shape, ("vision", "channels", "patch", "patch"), TOWER, "conv")
    yield TensorSpec("proj.bias", (block.width,), ("vision",), TOWER, "bias")
    yield TensorSpec("pos_emb.weight", (*block.table, block.width), ("patches", "patches", "vision"), TOWER)


def _layer(block: MoonLayer) -> Iterator[TensorSpec]:
    """`MoonVitEncoderLayer`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    for name in ("norm0", "norm1"):
        yield from norm(name, width)
    yield from linear("mlp.fc0", ffn, width)
    yield from linear("mlp.fc1", width, ffn)
    yield from linear("wqkv", (3 * block.width, "vision_qkv"), width)
    yield from linear("wo", width, width)


def _norm(block: MoonNorm) -> Iterator[TensorSpec]:
    """`MoonVitEncoder.final_layernorm`, whose parameters have no name before theirs."""
    for part in ("weight", "bias"):
        yield TensorSpec(part, (block.width,), ("vision",), TOWER, "norm")


def _end(block: MoonEnd) -> Iterator[TensorSpec]:
    """`KimiVLMultiModalProjector`."""
    square = (block.merged * block.width, "square")
    yield from norm("pre_norm", (block.width, "vision"), PROJECTOR)
    yield from linear("linear_1", square, square, PROJECTOR)
    yield from linear("linear_2", (block.hidden, "hidden"), square, PROJECTOR)
