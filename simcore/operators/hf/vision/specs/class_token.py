"""Parameters of towers whose patches stand behind a learned token: CLIP's and InternVL's, with their projectors.

transformers 5.23 `models/clip` and `llava`; `models/internvl`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.models.class_blocks import ClassEnd, ClassLayer, ClassPatches, ScaledLayer, ScaledPatches, ShuffledEnd
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.vision.specs.linears import PROJECTOR, TOWER, linear, norm

__all__ = ["ENDS", "NORM", "clip_tensors", "intern_tensors", "last_layer"]

NORM: Final = "vision_tower.post_layernorm"
ENDS: Final = "multi_modal_projector"
"""Names inside the end of CLIP's tower: of the token's norm, and of the projector."""


def last_layer(block: ClassEnd) -> str:
    """Beginning of the names of the last layer, which is the end's."""
    return f"vision_tower.encoder.layers.{block.layers - 1}."


def clip_tensors(block: ClassPatches | ClassLayer | ClassEnd) -> Iterator[TensorSpec]:
    """Parameters of a part, in registration order, with names relative to it."""
    match block:
        case ClassPatches():
            yield from _patches_tensors(block)
        case ClassLayer():
            yield from _layer_tensors("", block)
        case ClassEnd():
            yield from _end_tensors(block)


def _patches_tensors(block: ClassPatches) -> Iterator[TensorSpec]:
    """`CLIPVisionEmbeddings`: a module's own parameters come before its children's; and `pre_layrnorm`."""
    shape = (block.width, block.channels, block.patch, block.patch)
    yield TensorSpec("embeddings.class_embedding", (block.width,), ("vision",), TOWER)
    yield TensorSpec("embeddings.patch_embedding.weight", shape, ("vision", "channels", "patch", "patch"), TOWER,
                     "conv")
    yield TensorSpec("embeddings.position_embedding.weight", (block.count, block.width), ("patches", "vision"), TOWER,
                     "embedding")
    yield from norm("pre_layrnorm", (block.width, "vision"))


def _layer_tensors(at: str, block: ClassLayer) -> Iterator[TensorSpec]:
    """`CLIPEncoderLayer`; `at`: beginning of names."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
        yield from linear(f"{at}self_attn.{part}", width, width)
    yield from norm(f"{at}layer_norm1", (block.width, "vision"))
    yield from linear(f"{at}mlp.fc1", ffn, width)
    yield from linear(f"{at}mlp.fc2", width, ffn)
    yield from norm(f"{at}layer_norm2", (block.width, "vision"))


def _end_tensors(block: ClassEnd) -> Iterator[TensorSpec]:
    """The last layer, the norm behind it and `LlavaMultiModalProjector`."""
    width, hidden = (block.layer.width, "vision"), (block.hidden, "hidden")
    yield from _layer_tensors(last_layer(block), block.layer)
    yield from norm(NORM, width)
    for name, into in (("linear_1", width), ("linear_2", hidden)):
        yield from linear(f"{ENDS}.{name}", hidden, into, PROJECTOR, bias=block.bias)


def intern_tensors(block: ScaledPatches | ScaledLayer | ShuffledEnd) -> Iterator[TensorSpec]:
    """Parameters of a part, in registration order, with names relative to it."""
    match block:
        case ScaledPatches():
            yield from _scaled_patches_tensors(block)
        case ScaledLayer():
            yield from _scaled_layer_tensors(block)
        case ShuffledEnd():
            square, hidden = (block.merged * block.width, "square"), (block.hidden, "hidden")
            yield from norm("layer_norm", (square[0], "vision"), PROJECTOR)
            yield from linear("linear_1", hidden, square, PROJECTOR)
            yield from linear("linear_2", hidden, hidden, PROJECTOR)


def _scaled_patches_tensors(block: ScaledPatches) -> Iterator[TensorSpec]:
    """`InternVLVisionEmbeddings`: a module's own parameters come before its children's."""
    shape, at = (block.width, block.channels, block.patch, block.patch), "embeddings.patch_embeddings.projection"
    yield TensorSpec("embeddings.cls_token", (1, 1, block.width), ("one", "one", "vision"), TOWER)
    yield TensorSpec("embeddings.position_embeddings", (1, block.count, block.width), ("one", "patches", "vision"),
                     TOWER)
    yield TensorSpec(f"{at}.weight", shape, ("vision", "channels", "patch", "patch"), TOWER, "conv")
    yield TensorSpec(f"{at}.bias", (block.width,), ("vision",), TOWER, "bias")


def _scaled_layer_tensors(block: ScaledLayer) -> Iterator[TensorSpec]:
    """`InternVLVisionLayer`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    for number in (1, 2):
        yield TensorSpec(f"lambda_{number}", (block.width,), ("vision",), TOWER)
    for part in "qkv":
        yield from linear(f"attention.{part}_proj", width, width, bias=block.bias)
    yield from linear("attention.projection_layer", width, width)
    yield from linear("mlp.fc1", ffn, width)
    yield from linear("mlp.fc2", width, ffn)
    yield from norm("layernorm_before", (block.width, "vision"))
    yield from norm("layernorm_after", (block.width, "vision"))
