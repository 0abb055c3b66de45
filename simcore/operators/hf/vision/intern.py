"""InternVL's tower and projector under eager PyTorch (transformers 5.23 `models/internvl`).

Beside a packed base the learned token, positions and scales are in fp32, and so is what layers hand on. The tower's
forward holds what goes into its first layer; its output lives until the model's forward is over. The model casts
images to its own type before the tower does: the copy lives until the projector has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simcore.models.class_blocks import ScaledLayer, ScaledPatches, ShuffledEnd
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.vision.clip import behind_token, linear_tensors, norm_tensors, without_token
from simcore.operators.hf.vision.part import (
    Modules,
    asks,
    attended,
    ended,
    entered,
    front,
    layer_norm,
    leaf,
    merged,
    regrouped,
    tower_layer,
)
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, stream_dtype
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["intern_tensors", "scaled_layer", "scaled_patches", "shuffled_end"]

_TOWER, _PROJECTOR = "vision_tower", "projector"
_COPY = "pixel_values.to"


def scaled_patches(tape: Tape, block: ScaledPatches, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`InternVLVisionEmbeddings`."""
    given, pixels = run.options.pixels, run.images * block.pixels
    weight, bias = (run.params[f"embeddings.patch_embeddings.projection.{part}"] for part in ("weight", "bias"))
    _narrow = [aten.cast(tape, one, run.compute) for one in (bias, weight)]  # by autocast, before the images
    copies = [aten.new(tape, (pixels,), run.compute, _COPY, pixels * dtype_bytes(given))
              for _ in range(given != run.compute)]
    read = pixels * dtype_bytes(run.compute)
    found = aten.new(tape, (run.images, block.count - 1, block.width), run.compute, "patch_embeddings",
                     read + weight.nbytes, Kernel.GEMM, 2 * run.images * (block.count - 1) * weight.numel)
    _narrow.clear()
    made: dict[str, Tensor] = {} if modules.stream or not copies else {_COPY: copies[0]}
    copies.clear()
    node = found.node = leaf(tape, found, copies=True) if asks(run) else None
    token = run.params["embeddings.cls_token"]
    wide = aten.cast(tape, found, token.dtype)
    joined = behind_token(tape, wide, (run.images, block.count, block.width))
    del wide, found
    out = aten.add(tape, joined, run.params["embeddings.position_embeddings"], "embeddings")
    del joined
    return front(tape, out, made, node, ())


def scaled_layer(tape: Tape, block: ScaledLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`InternVLVisionLayer`; it holds what it has scaled of attention until it returns."""
    def body(x: Tensor) -> Tensor:
        made = _attention(tape, block, run, modules, layer_norm(tape, run, modules, "layernorm_before.", x))
        scaled = aten.mul(tape, run.params["lambda_1"], made, "scaled")
        del made
        residual = aten.add(tape, scaled, x, "residual")
        made = _mlp(tape, run, modules, layer_norm(tape, run, modules, "layernorm_after.", residual))
        made = aten.mul(tape, run.params["lambda_2"], made, "scaled")
        return aten.add(tape, made, residual, "residual")

    shape = (run.images, block.patches, block.width)
    return tower_layer(tape, run, modules, shape, body, stays=block.first and not run.input_requires_grad)


def _attention(tape: Tape, block: ScaledLayer, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`InternVLVisionAttention`."""
    tape.scope = "attention."
    flat = [modules.linear(tape, run, f"attention.{part}_proj", x) for part in "qkv"]
    q, k, v = (aten.to_heads(tape, flat.pop(0), block.head_dim, copy_grad=False) for _ in range(3))
    out = attended(tape, run, modules, (q, k, v), [])
    return modules.linear(tape, run, "attention.projection_layer", out.view(*x.shape))


def _mlp(tape: Tape, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    tape.scope = "mlp."
    return modules.linear(tape, run, "mlp.fc2", aten.gelu(tape, modules.linear(tape, run, "mlp.fc1", x)))


def shuffled_end(tape: Tape, block: ShuffledEnd, run: LayerWorkload, modules: Modules,
                 make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of `InternVLMultiModalProjector` and what is before and behind it: the embedded sequence.

    [batch, seq, hidden] with image tokens. `make_tables`: records what the model then makes for its layers.
    """
    stream = modules.stream or run.compute
    shape = (run.images, block.patches, block.width)
    patches, below = entered(tape, run, shape, stream)
    first = [] if run.input_requires_grad else [tape.external(shape, stream, HIDDEN, BEFORE - block.layers)]
    first.clear()
    keeps = not modules.stream and run.options.pixels != run.compute
    images = [tape.external((run.images * block.pixels,), run.compute, tape.slot(_COPY, "activation"), 1 - block.below)
              for _ in range(keeps)]
    behind = [patches, _projected(tape, block, run, modules, patches)]
    images.clear()
    del patches
    features = [aten.cast(tape, behind[1], stream_dtype(run))]
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    out, node = merged(tape, block, run, held[0], features[0])
    make_tables()
    return ended(tape, run, modules, out, (below, node), behind=behind, held=held, features=features)


def _projected(tape: Tape, block: ShuffledEnd, run: LayerWorkload, modules: Modules, patches: Tensor) -> Tensor:
    """Tokens [images, tokens, hidden] of patches; `pixel_shuffle` copies them twice."""
    tape.scope = "multi_modal_projector."
    x = regrouped(tape, without_token(tape, patches), "columns")
    x = regrouped(tape, x, "squares")
    x = x.view(run.images, block.tokens, block.merged * block.width)
    x = layer_norm(tape, run, modules, "layer_norm.", x)
    x = modules.linear(tape, run, "linear_2", aten.gelu(tape, modules.linear(tape, run, "linear_1", x)))
    tape.scope = ""
    return x


def intern_tensors(block: ScaledPatches | ScaledLayer | ShuffledEnd) -> Iterator[TensorSpec]:
    """Parameters of a part, in registration order, with names relative to it."""
    match block:
        case ScaledPatches():
            yield from _patches_tensors(block)
        case ScaledLayer():
            yield from _layer_tensors(block)
        case ShuffledEnd():
            square, hidden = (block.merged * block.width, "square"), (block.hidden, "hidden")
            yield from norm_tensors("layer_norm", square[0], _PROJECTOR)
            yield from linear_tensors("linear_1", hidden, square, _PROJECTOR)
            yield from linear_tensors("linear_2", hidden, hidden, _PROJECTOR)


def _patches_tensors(block: ScaledPatches) -> Iterator[TensorSpec]:
    """`InternVLVisionEmbeddings`: a module's own parameters come before its children's."""
    shape, at = (block.width, block.channels, block.patch, block.patch), "embeddings.patch_embeddings.projection"
    yield TensorSpec("embeddings.cls_token", (1, 1, block.width), ("one", "one", "vision"), _TOWER)
    yield TensorSpec("embeddings.position_embeddings", (1, block.count, block.width), ("one", "patches", "vision"),
                     _TOWER)
    yield TensorSpec(f"{at}.weight", shape, ("vision", "channels", "patch", "patch"), _TOWER, "conv")
    yield TensorSpec(f"{at}.bias", (block.width,), ("vision",), _TOWER, "bias")


def _layer_tensors(block: ScaledLayer) -> Iterator[TensorSpec]:
    """`InternVLVisionLayer`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    for number in (1, 2):
        yield TensorSpec(f"lambda_{number}", (block.width,), ("vision",), _TOWER)
    for part in "qkv":
        yield from linear_tensors(f"attention.{part}_proj", width, width, bias=block.bias)
    yield from linear_tensors("attention.projection_layer", width, width)
    yield from linear_tensors("mlp.fc1", ffn, width)
    yield from linear_tensors("mlp.fc2", width, ffn)
    yield from norm_tensors("layernorm_before", block.width)
    yield from norm_tensors("layernorm_after", block.width)
