"""Parameters of a vision tower and its projector, as transformers 5.23 registers them (`models/siglip`, `gemma3`)."""

from __future__ import annotations

from collections.abc import Iterator

from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import Patches, Projector, TowerLayer, TowerNorm, VisionPart

__all__ = ["tower_tensors"]

_TOWER, _PROJECTOR = "vision_tower", "projector"


def tower_tensors(block: VisionPart) -> tuple[TensorSpec, ...]:
    """Parameters of a part of a vision tower, in registration order, with names relative to it."""
    match block:
        case Patches():
            return tuple(_patches(block))
        case TowerLayer():
            return tuple(_layer(block))
        case TowerNorm():
            return tuple(_norm("", block.width))
        case Projector():
            return tuple(_projector(block))


def _patches(block: Patches) -> Iterator[TensorSpec]:
    """`SiglipVisionEmbeddings`."""
    shape = (block.width, block.channels, block.patch, block.patch)
    yield TensorSpec("patch_embedding.weight", shape, ("vision", "channels", "patch", "patch"), _TOWER, "conv")
    yield TensorSpec("patch_embedding.bias", (block.width,), ("vision",), _TOWER, "bias")
    yield TensorSpec("position_embedding.weight", (block.count, block.width), ("patches", "vision"), _TOWER,
                     "embedding")


def _layer(block: TowerLayer) -> Iterator[TensorSpec]:
    """`SiglipEncoderLayer`."""
    yield from _norm("layer_norm1.", block.width)
    for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
        yield from _linear(f"self_attn.{part}", (block.width, "vision"), (block.width, "vision"))
    yield from _norm("layer_norm2.", block.width)
    yield from _linear("mlp.fc1", (block.ffn, "vision_ffn"), (block.width, "vision"))
    yield from _linear("mlp.fc2", (block.width, "vision"), (block.ffn, "vision_ffn"))


def _projector(block: Projector) -> Iterator[TensorSpec]:
    """`Gemma3MultiModalProjector`: a module's own parameters come before its children's."""
    yield TensorSpec("mm_input_projection_weight", (block.width, block.hidden), ("vision", "hidden"), _PROJECTOR)
    yield TensorSpec("mm_soft_emb_norm.weight", (block.width,), ("vision",), _PROJECTOR, "norm")


def _linear(name: str, out: tuple[int, str], into: tuple[int, str]) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), _TOWER, "linear")
    yield TensorSpec(f"{name}.bias", (out[0],), (out[1],), _TOWER, "bias")


def _norm(at: str, width: int) -> Iterator[TensorSpec]:
    for part in ("weight", "bias"):
        yield TensorSpec(f"{at}{part}", (width,), ("vision",), _TOWER, "norm")
