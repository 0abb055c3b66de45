"""CLIP's tower and LLaVA's projector under eager PyTorch (transformers 5.23 `models/clip`, `models/llava`).

Under autocast the LayerNorm behind the patches puts out fp32, and so do sums of it: layers hand on fp32. The last layer
and the LayerNorm of the token run, but nothing reads what they make: no gradient reaches them, and no replay. The
tower's forward holds what goes into its first layer; its output holds that of the last layer, and what the projector
reads (`vision_feature_layer`: -2), until the model's forward is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from simcore.models.class_blocks import ClassEnd, ClassLayer, ClassPatches
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

__all__ = ["behind_token", "class_end", "class_layer", "class_patches", "clip_tensors", "linear_tensors",
           "norm_tensors", "without_token"]

_TOWER, _PROJECTOR = "vision_tower", "projector"


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
    held = [behind_token(tape, found, (run.images, block.count, block.width))]
    positions = aten.new(tape, (1, block.count, block.width), run.compute, "position_embedding")
    out = aten.add(tape, held[0], positions, "embeddings")
    held.clear()
    del positions, found
    out = layer_norm(tape, run, modules, "pre_layrnorm.", out)
    return front(tape, out, {}, node, ())


def behind_token(tape: Tape, patches: Tensor, shape: tuple[int, int, int]) -> Tensor:
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


def without_token(tape: Tape, x: Tensor) -> Tensor:
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
    x = modules.linear(tape, run, f"{_ENDS}.linear_1", without_token(tape, patches))
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
    yield from norm_tensors("pre_layrnorm", block.width)


def _layer_tensors(at: str, block: ClassLayer) -> Iterator[TensorSpec]:
    """`CLIPEncoderLayer`; `at`: beginning of names."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
        yield from linear_tensors(f"{at}self_attn.{part}", width, width)
    yield from norm_tensors(f"{at}layer_norm1", block.width)
    yield from linear_tensors(f"{at}mlp.fc1", ffn, width)
    yield from linear_tensors(f"{at}mlp.fc2", width, ffn)
    yield from norm_tensors(f"{at}layer_norm2", block.width)


def _end_tensors(block: ClassEnd) -> Iterator[TensorSpec]:
    """The last layer, the norm behind it and `LlavaMultiModalProjector`."""
    width, hidden = (block.layer.width, "vision"), (block.hidden, "hidden")
    yield from _layer_tensors(_last(block), block.layer)
    yield from norm_tensors(_NORM, block.layer.width)
    for name, into in (("linear_1", width), ("linear_2", hidden)):
        yield from linear_tensors(f"{_ENDS}.{name}", hidden, into, _PROJECTOR, bias=block.bias)


def linear_tensors(name: str, out: tuple[int, str], into: tuple[int, str], component: str = _TOWER, *,
                   bias: bool = True) -> Iterator[TensorSpec]:
    """Weight and bias of a linear `name`; `out`, `into`: (size, name) of the dimensions."""
    yield TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear")
    if bias:
        yield TensorSpec(f"{name}.bias", (out[0],), (out[1],), component, "bias")


def norm_tensors(name: str, width: int, component: str = _TOWER) -> Iterator[TensorSpec]:
    """Weight and bias of a LayerNorm `name`."""
    for part in ("weight", "bias"):
        yield TensorSpec(f"{name}.{part}", (width,), ("vision",), component, "norm")
