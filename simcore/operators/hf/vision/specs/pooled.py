"""Parameters of Gemma 4's towers and of what follows them, as transformers 5.23 `models/gemma4` registers them."""

from __future__ import annotations

from collections.abc import Iterator

from simcore.models.pooled_blocks import (
    PooledLayer,
    PooledPatches,
    PooledProjector,
    PooledSound,
    PooledSoundEnd,
    PooledStem,
)
from simcore.models.tensor import TensorSpec
from simcore.operators.hf.vision.specs.linears import PROJECTOR, SOUND, TOWER, linear, norm_weight, weight

__all__ = ["pooled_tensors"]

_Pooled = PooledPatches | PooledLayer | PooledProjector | PooledStem | PooledSound | PooledSoundEnd
_INPUTS = "layer_inputs"
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def pooled_tensors(block: _Pooled) -> Iterator[TensorSpec]:
    """Parameters and buffers of a part, in registration order, with names relative to it."""
    match block:
        case PooledPatches():
            return _patches(block)
        case PooledLayer():
            return _layer(block)
        case PooledProjector() | PooledSoundEnd():
            return iter((weight("embedding_projection", (block.hidden, "hidden"), (block.width, "vision"),
                                 PROJECTOR),))
        case PooledStem():
            return _stem(block)
        case PooledSound():
            return _sound(block)


def _patches(block: PooledPatches) -> Iterator[TensorSpec]:
    """`Gemma4VisionPatchEmbedder`."""
    yield TensorSpec("position_embedding_table", (2, block.positions, block.width), ("sides", "patches", "vision"),
                     TOWER, "embedding")
    yield weight("input_proj", (block.width, "vision"), (block.channels * block.patch**2, "channels"))


def _layer(block: PooledLayer) -> Iterator[TensorSpec]:
    """`Gemma4VisionEncoderLayer`: linears are modules inside of modules, the norm of values has no weight."""
    width, ffn = (block.width, "vision"), (block.ffn, "vision_ffn")
    heads, few = (block.num_heads * block.head_dim, "vision"), (block.num_kv_heads * block.head_dim, "vision")
    for part, out, into in (("q_proj", heads, width), ("k_proj", few, width), ("v_proj", few, width),
                            ("o_proj", width, heads)):
        yield from _clippable(f"self_attn.{part}", out, into, clipped=block.clipped)
    for part in "qk":
        yield TensorSpec(f"self_attn.{part}_norm.weight", (block.head_dim,), ("head_dim",), TOWER, "norm")
    for part, out, into in (("gate_proj", ffn, width), ("up_proj", ffn, width), ("down_proj", width, ffn)):
        yield from _clippable(f"mlp.{part}", out, into, clipped=block.clipped)
    for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                 "post_feedforward_layernorm"):
        yield norm_weight(norm, width)


def _stem(block: PooledStem) -> Iterator[TensorSpec]:
    """Table, projection and norm of `Gemma4TextModel` for inputs of its layers."""
    columns, size = (block.columns, "layer_inputs"), (block.size, "layer_input")
    yield TensorSpec("embed_tokens_per_layer.weight", (block.vocab, block.columns), ("vocab", "layer_inputs"), _INPUTS,
                     "embedding")
    yield _buffer("embed_tokens_per_layer.embed_scale", _INPUTS)
    yield weight("per_layer_model_projection", columns, (block.hidden, "hidden"), _INPUTS)
    yield norm_weight("per_layer_projection_norm", size, _INPUTS)


def _sound(block: PooledSound) -> Iterator[TensorSpec]:
    """`Gemma4AudioModel`: a quarter of the first convolution's channels times those of the second meets the linear."""
    first, second = block.channels
    for number, read, made in ((0, 1, first), (1, first, second)):
        at = f"subsample_conv_projection.layer{number}"
        yield TensorSpec(f"{at}.conv.weight", (made, read, 3, 3), ("channels", "one", "one", "one"), SOUND, "conv")
        yield TensorSpec(f"{at}.norm.weight", (made,), ("channels",), SOUND, "norm")
    width = (block.width, "sound")
    yield weight("subsample_conv_projection.input_proj_linear", width, (first // 4 * second, "square"), SOUND)
    for number in range(block.layers):
        yield from _conformer(f"layers.{number}.", block)
    yield from linear("output_proj", (block.out, "sound_out"), width, SOUND)


def _conformer(at: str, block: PooledSound) -> Iterator[TensorSpec]:
    """`Gemma4AudioLayer`."""
    width, ffn, twice = (block.width, "sound"), (4 * block.width, "sound_ffn"), (2 * block.width, "sound_gate")
    for number in (1, 2):
        yield from _clippable(f"{at}feed_forward{number}.ffw_layer_1", ffn, width, SOUND, clipped=block.clipped)
        yield from _clippable(f"{at}feed_forward{number}.ffw_layer_2", width, ffn, SOUND, clipped=block.clipped)
        for norm in ("pre", "post"):
            yield norm_weight(f"{at}feed_forward{number}.{norm}_layer_norm", width, SOUND)
    dim = block.width // block.num_heads
    yield TensorSpec(f"{at}self_attn.per_dim_scale", (dim,), ("sound_heads",), SOUND)
    yield _buffer(f"{at}self_attn.softcap", SOUND)
    for part in ("q_proj", "k_proj", "v_proj", "post"):
        yield from _clippable(f"{at}self_attn.{part}", width, width, SOUND, clipped=block.clipped)
    yield weight(f"{at}self_attn.relative_k_proj", width, width, SOUND)
    yield from _clippable(f"{at}lconv1d.linear_start", twice, width, SOUND, clipped=block.clipped)
    yield from _clippable(f"{at}lconv1d.linear_end", width, width, SOUND, clipped=block.clipped)
    yield TensorSpec(f"{at}lconv1d.depthwise_conv1d.weight", (block.width, 1, block.kernel), ("sound", "one", "one"),
                     SOUND, "conv")
    for norm in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        yield norm_weight(f"{at}{norm}", width, SOUND)


def _clippable(at: str, out: tuple[int, str], into: tuple[int, str], component: str = TOWER, *,
               clipped: bool) -> Iterator[TensorSpec]:
    """`Gemma4ClippableLinear`."""
    yield weight(f"{at}.linear", out, into, component)
    yield from (_buffer(f"{at}.{bound}", component) for bound in _BOUNDS * clipped)


def _buffer(name: str, component: str) -> TensorSpec:
    return TensorSpec(name, (), (), component, "buffer", is_buffer=True, trainable=False)
