"""Towers whose patches of an image stand behind a learned token, under eager PyTorch: CLIP's and InternVL's.

[Note: CLIP before LLaVA's projector]
transformers 5.23 `models/clip`, `models/llava`: under autocast the LayerNorm behind the patches puts out fp32, and so
do sums of it: layers hand on fp32. The last layer and the LayerNorm of the token run, but nothing reads what they make:
no gradient reaches them, and no replay. The tower's forward holds what goes into its first layer; its output holds that
of the last layer, and what the projector reads (`vision_feature_layer`: -2), until the model's forward is over.

[Note: InternVL's tower]
`models/internvl`: beside a packed base the learned token, positions and scales are in fp32, and so is what layers hand
on. The tower's forward holds what goes into its first layer; its output lives until the model's forward is over. The
model casts images to its own type before the tower does: the copy lives until the projector has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from simcore.models.class_blocks import ClassEnd, ClassLayer, ClassPatches, ScaledLayer, ScaledPatches, ShuffledEnd
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.vision.grid import two_linears
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
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, stream_dtype
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["class_end", "class_layer", "class_patches", "clip_tensors", "intern_tensors", "scaled_layer",
           "scaled_patches", "shuffled_end"]

_TOWER, _PROJECTOR = "vision_tower", "projector"
_COPY = "pixel_values.to"


def class_patches(tape: Tape, block: ClassPatches, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`CLIPVisionEmbeddings` and the LayerNorm behind it (`pre_layrnorm`)."""
    pixels, given = (run.images, block.pixels), run.options.pixels
    copy = None if given == run.compute else aten.new(tape, pixels, run.compute, "pixel_values.to",
                                                      run.images * block.pixels * dtype_bytes(given))
    weight = run.params["embeddings.patch_embedding.weight"]
    read = run.images * block.pixels * (weight.nbytes // weight.numel)
    found = aten.new(tape, (run.images, block.count - 1, block.width), run.compute, "patch_embedding",
                     read + weight.nbytes, Kernel.GEMM, 2 * run.images * (block.count - 1) * weight.numel)
    node = found.node = leaf(tape, found, copies=True) if asks(run) else None
    del copy
    held = [_behind_token(tape, found, (run.images, block.count, block.width))]
    positions = aten.new(tape, (1, block.count, block.width), run.compute, "position_embedding")
    out = aten.add(tape, held[0], positions, "embeddings")
    held.clear()
    del positions, found
    out = layer_norm(tape, run, modules, "pre_layrnorm.", out)
    return front(tape, out, {}, node, ())


def _behind_token(tape: Tape, patches: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Patches of each image, of `shape` with the token that is put before them."""
    given, dtype = patches.shape, patches.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        whole = grads[0]
        assert whole is not None
        return [Tensor(whole.storage, given, dtype)]

    node = tape.node((patches,), (), backward)
    out = aten.new(tape, shape, dtype, "class.cat", patches.nbytes)
    out.node = node
    return out


def _without_token(tape: Tape, x: Tensor) -> Tensor:
    """Patches of each image, a view of `x` without the token before them; their gradient is put into zeros."""
    shape, dtype, size = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [aten.new(tape, shape, dtype, "grad_slice", size)])
    return Tensor(x.storage, (shape[0], shape[1] - 1, shape[2]), dtype, node)


def class_layer(tape: Tape, block: ClassLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`CLIPEncoderLayer`."""
    shape = (run.images, block.patches, block.width)
    return tower_layer(tape, run, replace(modules, stream=modules.norm_dtype), shape,
                       lambda x: _layer(tape, block, run, modules, "", x),
                       stays=block.first and not run.input_requires_grad)


def _layer(tape: Tape, block: ClassLayer, run: LayerWorkload, modules: Modules, at: str, x: Tensor) -> Tensor:
    """Output of a layer whose parameters' names begin with `at` ("" or with a dot at the end)."""
    held: list[Tensor] = []
    made = _attention(tape, block, run, modules, at, layer_norm(tape, run, modules, f"{at}layer_norm1.", x), held)
    residual = aten.add(tape, x, made, "residual")
    del made
    made = two_linears(tape, run, modules, layer_norm(tape, run, modules, f"{at}layer_norm2.", residual), at)
    return aten.add(tape, residual, made, "residual")


def _attention(tape: Tape, block: ClassLayer, run: LayerWorkload, modules: Modules, at: str, x: Tensor,
               held: list[Tensor]) -> Tensor:
    """`CLIPAttention`; `held`: gets the probabilities, which the layer binds to a name."""
    tape.scope = f"{at}self_attn."
    copied = "" if modules.attention != "eager" else "qv" if run.images == 1 else "qkv"  # gradients that lie by heads
    q, k = (modules.linear(tape, run, f"{at}self_attn.{part}_proj", x) for part in "qk")
    k = aten.to_heads(tape, k, block.head_dim, copy_grad="k" in copied)  # the product's own copy of its gradient
    v = modules.linear(tape, run, f"{at}self_attn.v_proj", x)
    q, v = (aten.to_heads(tape, one, block.head_dim, copy_grad="q" in copied) for one in (q, v))
    out = attended(tape, run, modules, (q, k, v), held)
    return modules.linear(tape, run, f"{at}self_attn.out_proj", out.view(*x.shape))


def class_end(tape: Tape, block: ClassEnd, run: LayerWorkload, modules: Modules,
              make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of the last layer, the LayerNorm and the projector: its output is the embedded sequence.

    [batch, seq, hidden] with image tokens. `make_tables`: records what the model then makes for its layers.
    """
    layer, stream = block.layer, modules.norm_dtype or run.compute
    shape = (run.images, layer.patches, layer.width)
    patches, below = entered(tape, run, shape, stream)
    first = [] if run.input_requires_grad else [tape.external(shape, stream, HIDDEN, BEFORE - block.layers + 1)]
    behind = [patches, _layer(tape, layer, run, modules, _last(block), patches.detach())]
    pooled = [layer_norm(tape, run, modules, f"{_NORM}.", Tensor(behind[1].storage, (run.images, layer.width), stream))]
    first.clear()
    behind.append(_projected(tape, block, run, modules, patches))
    del patches
    pooled.clear()
    features = [regrouped(tape, behind[2], "cat")]
    features.append(aten.cast(tape, features.pop(), stream_dtype(run)))
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    out, node = merged(tape, block, run, held[0], features[0])
    make_tables()
    return ended(tape, run, modules, out, (below, node), behind=behind, held=held, features=features)


def _last(block: ClassEnd) -> str:
    return f"vision_tower.encoder.layers.{block.layers - 1}."


_NORM, _ENDS = "vision_tower.post_layernorm", "multi_modal_projector"


def _projected(tape: Tape, block: ClassEnd, run: LayerWorkload, modules: Modules, patches: Tensor) -> Tensor:
    """`LlavaMultiModalProjector` of patches without the token: [images, tokens, hidden]."""
    tape.scope = f"{_ENDS}."
    x = _without_token(tape, patches)
    if run.images > 1 and x.dtype == run.compute:  # a view that is no matrix; a cast makes one
        x = aten.contiguous(tape, x, "rows")
    x = modules.linear(tape, run, f"{_ENDS}.linear_1", x)
    x = aten.gelu(tape, x)
    x = modules.linear(tape, run, f"{_ENDS}.linear_2", x)
    tape.scope = ""
    return x


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
    yield TensorSpec("embeddings.class_embedding", (block.width,), ("vision",), _TOWER)
    yield TensorSpec("embeddings.patch_embedding.weight", shape, ("vision", "channels", "patch", "patch"), _TOWER,
                     "conv")
    yield TensorSpec("embeddings.position_embedding.weight", (block.count, block.width), ("patches", "vision"), _TOWER,
                     "embedding")
    yield from _norm("pre_layrnorm", block.width)


def _layer_tensors(at: str, block: ClassLayer) -> Iterator[TensorSpec]:
    """`CLIPEncoderLayer`; `at`: beginning of names."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
        yield from _linear(f"{at}self_attn.{part}", width, width)
    yield from _norm(f"{at}layer_norm1", block.width)
    yield from _linear(f"{at}mlp.fc1", ffn, width)
    yield from _linear(f"{at}mlp.fc2", width, ffn)
    yield from _norm(f"{at}layer_norm2", block.width)


def _end_tensors(block: ClassEnd) -> Iterator[TensorSpec]:
    """The last layer, the norm behind it and `LlavaMultiModalProjector`."""
    width, hidden = (block.layer.width, "vision"), (block.hidden, "hidden")
    yield from _layer_tensors(_last(block), block.layer)
    yield from _norm(_NORM, block.layer.width)
    for name, into in (("linear_1", width), ("linear_2", hidden)):
        yield from _linear(f"{_ENDS}.{name}", hidden, into, _PROJECTOR, bias=block.bias)


def _linear(name: str, out: tuple[int, str], into: tuple[int, str], component: str = _TOWER, *,
            bias: bool = True) -> Iterator[TensorSpec]:
    """Weight and bias of a linear `name`; `out`, `into`: (size, name) of the dimensions."""
    yield TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear")
    if bias:
        yield TensorSpec(f"{name}.bias", (out[0],), (out[1],), component, "bias")


def _norm(name: str, width: int, component: str = _TOWER) -> Iterator[TensorSpec]:
    """Weight and bias of a LayerNorm `name`."""
    for part in ("weight", "bias"):
        yield TensorSpec(f"{name}.{part}", (width,), ("vision",), component, "norm")


# ---- InternVL ---------------------------------------------------------------------------------------------------
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
    joined = _behind_token(tape, wide, (run.images, block.count, block.width))
    del wide, found
    out = aten.add(tape, joined, run.params["embeddings.position_embeddings"], "embeddings")
    del joined
    return front(tape, out, made, node, ())


def scaled_layer(tape: Tape, block: ScaledLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`InternVLVisionLayer`; it holds what it has scaled of attention until it returns."""
    def body(x: Tensor) -> Tensor:
        made = _scaled_attention(tape, block, run, modules, layer_norm(tape, run, modules, "layernorm_before.", x))
        scaled = aten.mul(tape, run.params["lambda_1"], made, "scaled")
        del made
        residual = aten.add(tape, scaled, x, "residual")
        made = _mlp(tape, run, modules, layer_norm(tape, run, modules, "layernorm_after.", residual))
        made = aten.mul(tape, run.params["lambda_2"], made, "scaled")
        return aten.add(tape, made, residual, "residual")

    shape = (run.images, block.patches, block.width)
    return tower_layer(tape, run, modules, shape, body, stays=block.first and not run.input_requires_grad)


def _scaled_attention(tape: Tape, block: ScaledLayer, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
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
    behind = [patches, _squares_projected(tape, block, run, modules, patches)]
    images.clear()
    del patches
    features = [aten.cast(tape, behind[1], stream_dtype(run))]
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    out, node = merged(tape, block, run, held[0], features[0])
    make_tables()
    return ended(tape, run, modules, out, (below, node), behind=behind, held=held, features=features)


def _squares_projected(tape: Tape, block: ShuffledEnd, run: LayerWorkload, modules: Modules, patches: Tensor) -> Tensor:
    """Tokens [images, tokens, hidden] of patches; `pixel_shuffle` copies them twice."""
    tape.scope = "multi_modal_projector."
    x = regrouped(tape, _without_token(tape, patches), "columns")
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
            yield from _scaled_patches_tensors(block)
        case ScaledLayer():
            yield from _scaled_layer_tensors(block)
        case ShuffledEnd():
            square, hidden = (block.merged * block.width, "square"), (block.hidden, "hidden")
            yield from _norm("layer_norm", square[0], _PROJECTOR)
            yield from _linear("linear_1", hidden, square, _PROJECTOR)
            yield from _linear("linear_2", hidden, hidden, _PROJECTOR)


def _scaled_patches_tensors(block: ScaledPatches) -> Iterator[TensorSpec]:
    """`InternVLVisionEmbeddings`: a module's own parameters come before its children's."""
    shape, at = (block.width, block.channels, block.patch, block.patch), "embeddings.patch_embeddings.projection"
    yield TensorSpec("embeddings.cls_token", (1, 1, block.width), ("one", "one", "vision"), _TOWER)
    yield TensorSpec("embeddings.position_embeddings", (1, block.count, block.width), ("one", "patches", "vision"),
                     _TOWER)
    yield TensorSpec(f"{at}.weight", shape, ("vision", "channels", "patch", "patch"), _TOWER, "conv")
    yield TensorSpec(f"{at}.bias", (block.width,), ("vision",), _TOWER, "bias")


def _scaled_layer_tensors(block: ScaledLayer) -> Iterator[TensorSpec]:
    """`InternVLVisionLayer`."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    for number in (1, 2):
        yield TensorSpec(f"lambda_{number}", (block.width,), ("vision",), _TOWER)
    for part in "qkv":
        yield from _linear(f"attention.{part}_proj", width, width, bias=block.bias)
    yield from _linear("attention.projection_layer", width, width)
    yield from _linear("mlp.fc1", ffn, width)
    yield from _linear("mlp.fc2", width, ffn)
    yield from _norm("layernorm_before", block.width)
    yield from _norm("layernorm_after", block.width)
