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

from collections.abc import Callable
from dataclasses import replace

from simcore.models.class_blocks import ClassEnd, ClassLayer, ClassPatches, ScaledLayer, ScaledPatches, ShuffledEnd
from simcore.operators.hf.vision.grid import two_linears
from simcore.operators.hf.vision.part import (
    Modules,
    asks,
    attended,
    ended,
    entered,
    front,
    gelu_mlp,
    layer_norm,
    leaf,
    merged,
    regrouped,
    tower_layer,
)
from simcore.operators.hf.vision.specs.class_token import ENDS, NORM, last_layer
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, stream_dtype
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["class_end", "class_layer", "class_patches", "scaled_layer", "scaled_patches", "shuffled_end"]

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
    behind = [patches, _layer(tape, layer, run, modules, last_layer(block), patches.detach())]
    pooled = [layer_norm(tape, run, modules, f"{NORM}.", Tensor(behind[1].storage, (run.images, layer.width), stream))]
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


def _projected(tape: Tape, block: ClassEnd, run: LayerWorkload, modules: Modules, patches: Tensor) -> Tensor:
    """`LlavaMultiModalProjector` of patches without the token: [images, tokens, hidden]."""
    tape.scope = f"{ENDS}."
    x = _without_token(tape, patches)
    if run.images > 1 and x.dtype == run.compute:  # a view that is no matrix; a cast makes one
        x = aten.contiguous(tape, x, "rows")
    x = modules.linear(tape, run, f"{ENDS}.linear_1", x)
    x = aten.gelu(tape, x)
    x = modules.linear(tape, run, f"{ENDS}.linear_2", x)
    tape.scope = ""
    return x


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
        made = gelu_mlp(tape, run, modules, layer_norm(tape, run, modules, "layernorm_after.", residual))
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
