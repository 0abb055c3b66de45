"""Gemma 4's tower under eager PyTorch: patches of images that are filled up, and layers (transformers 5.23 `gemma4`).

The images of a microbatch are one batch, under a mask of all pairs of patches. The tower is frozen: see `parts`.
"""

from __future__ import annotations

from simcore.models.pooled_blocks import PooledLayer, PooledPatches
from simcore.operators.hf.vision.part import Modules, front, tower_layer
from simcore.operators.shared import aten
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.rms_norm import rms_norm_by_power
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["kept_by_padding", "pooled_layer", "pooled_patches"]

_Spec = tuple[tuple[int, ...], str]
_MASK, _TABLES = "patches.mask", ("patches.cos", "patches.sin")


def kept_by_padding(run: LayerWorkload, patches: int, dim: int, attention: str) -> dict[str, _Spec]:
    """(shape, dtype) by name of what lives from the patches to the last layer, beside hidden states.

    `patches`: of an image; `dim`: elements of a head; `attention`: eager, or torch's (sdpa), whose mask is a byte for
    each pair.
    """
    kept = run.compute if attention == "eager" else "uint8"
    return {**dict.fromkeys(_TABLES, ((run.images, patches, 1, dim), run.compute)),
            _MASK: ((run.images, patches, patches), kept)}


def pooled_patches(tape: Tape, block: PooledPatches, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """Front of `Gemma4VisionModel.forward`: pixels are scaled and multiplied, positions added; tables and a mask."""
    out = _embedded(tape, block, run)
    specs = kept_by_padding(run, block.padded, block.rotary_dim, modules.attention)
    made = {_MASK: _mask(tape, specs[_MASK])}
    made |= dict(zip(_TABLES, _tables(tape, run, block), strict=True))
    return front(tape, out, made, None, ())


def _embedded(tape: Tape, block: PooledPatches, run: LayerWorkload) -> Tensor:
    """`Gemma4VisionPatchEmbedder`."""
    weight, shape = run.params["input_proj.weight"], (run.images, block.padded, block.width)
    pixels = _scaled(tape, run, (run.images, block.padded, block.pixels // block.padded))
    found = aten.new(tape, shape, run.compute, "input_proj", pixels.nbytes + weight.nbytes, Kernel.GEMM,
                     2 * run.images * block.padded * weight.numel)
    places = aten.new(tape, (run.images, block.padded, 2), "int64", "positions")
    by_column, by_row = (aten.new(tape, shape, run.compute, "position_embedding", places.nbytes + weight.nbytes)
                         for _ in range(2))
    both = aten.add(tape, by_column, by_row, "position_embeddings")
    filled = aten.select(tape, both, shape, run.compute, "position_embeddings")
    del both, places, by_row, by_column
    return aten.add(tape, found, filled, "embeddings")


def _scaled(tape: Tape, run: LayerWorkload, shape: tuple[int, ...]) -> Tensor:
    """Twice the pixels less a half, in the compute dtype."""
    given = run.options.pixels
    size = shape[0] * shape[1] * shape[2] * dtype_bytes(given)
    less = aten.new(tape, shape, given, "pixel_values.less", size)
    twice = aten.mul_scalar(tape, less)
    del less
    return aten.cast(tape, twice, run.compute)


def _mask(tape: Tape, spec: _Spec) -> Tensor:
    """Truth values, of which eager attention makes what it adds."""
    shape, dtype = spec
    seen = aten.new(tape, shape, "uint8", "is_seen")
    return seen if dtype == "uint8" else aten.new(tape, shape, dtype, _MASK, seen.nbytes)


def _tables(tape: Tape, run: LayerWorkload, block: PooledPatches) -> tuple[Tensor, Tensor]:
    """Tables of cos and sin, made in fp32 of columns and rows (`Gemma4VisionRotaryEmbedding`)."""
    shape = (run.images, block.padded, block.rotary_dim)
    places = aten.new(tape, (run.images, block.padded, 2), "fp32", "positions")
    freqs = aten.select(tape, places, (*shape[:2], block.rotary_dim // 2), "fp32", "freqs")
    del places
    cos, sin = (aten.mul_scalar(tape, aten.select(tape, freqs, freqs.shape, "fp32", name)) for name in ("cos", "sin"))
    cos = aten.select(tape, cos, shape, "fp32", "cos")
    sin = aten.select(tape, sin, shape, "fp32", "sin")
    return aten.cast(tape, cos, run.compute), aten.cast(tape, sin, run.compute)


def pooled_layer(tape: Tape, block: PooledLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`Gemma4VisionEncoderLayer`; its caller holds the input until it has returned, the tower the first layer's."""
    def body(x: Tensor) -> Tensor:
        held: list[Tensor] = []
        made = _attention(tape, block, run, modules, _norm(tape, run, "input_layernorm", x), held)
        made = _norm(tape, run, "post_attention_layernorm", made)
        residual = aten.add(tape, x, made, "residual")
        del made
        made = _mlp(tape, block, run, modules, _norm(tape, run, "pre_feedforward_layernorm", residual))
        made = _norm(tape, run, "post_feedforward_layernorm", made)
        return aten.add(tape, residual, made, "residual")

    return tower_layer(tape, run, modules, (run.images, block.patches, block.width), body, stays=block.first)


def _attention(tape: Tape, block: PooledLayer, run: LayerWorkload, modules: Modules, x: Tensor,
               held: list[Tensor]) -> Tensor:
    """`Gemma4VisionAttention`; `held`: gets the probabilities, which the layer binds to a name."""
    tape.scope, dim = "self_attn.", block.head_dim
    q, k = (_turned(tape, run, modules, part, block, x) for part in "qk")
    v = aten.to_heads(tape, _linear(tape, block, run, modules, "self_attn.v_proj", x), dim)
    v = rms_norm_by_power(tape, None, v)
    shape = (run.images, block.patches, block.patches)
    if modules.attention == "eager":
        out = eager_core(tape, Tensor(None, shape, run.compute), held, by_heads=False)(q, k, v)
    elif modules.attention == "sdpa_fp32":
        _narrow = (q, k, v)
        out = aten.cast(tape, aten.masked_attention(tape, *(aten.cast(tape, x, "fp32") for x in _narrow)), run.compute)
    else:
        out = aten.masked_attention(tape, q, k, v)
    return _linear(tape, block, run, modules, "self_attn.o_proj", out.view(*x.shape[:2], block.num_heads * dim))


def _turned(tape: Tape, run: LayerWorkload, modules: Modules, part: str, block: PooledLayer, x: Tensor) -> Tensor:
    """Query or key behind its norm, each half of a head rotated by itself: columns, then rows."""
    heads = aten.to_heads(tape, _linear(tape, block, run, modules, f"self_attn.{part}_proj", x), block.head_dim)
    normed = rms_norm_by_power(tape, run.params[f"self_attn.{part}_norm.weight"], heads)
    del heads
    table = Tensor(None, (*x.shape[:2], 1, block.head_dim // 2), run.compute)
    halves = [aten.rotate_halves(tape, aten.slice_half(tape, normed), table, table) for _ in range(2)]
    return aten.cat(tape, *halves)


def _mlp(tape: Tape, block: PooledLayer, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`Gemma4VisionMLP`."""
    tape.scope = "mlp."
    gate = aten.gelu(tape, _linear(tape, block, run, modules, "mlp.gate_proj", x))
    product = aten.mul(tape, gate, _linear(tape, block, run, modules, "mlp.up_proj", x))
    del gate
    return _linear(tape, block, run, modules, "mlp.down_proj", product)


def _linear(tape: Tape, block: PooledLayer, run: LayerWorkload, modules: Modules, name: str, x: Tensor) -> Tensor:
    """`Gemma4ClippableLinear`: what it is given and puts out is clipped in a new tensor each, if the layer says so."""
    if not block.clipped:
        return modules.linear(tape, run, f"{name}.linear", x)
    x = aten.mul_scalar(tape, x)
    x = modules.linear(tape, run, f"{name}.linear", x)
    return aten.mul_scalar(tape, x)


def _norm(tape: Tape, run: LayerWorkload, at: str, x: Tensor) -> Tensor:
    tape.scope = f"{at}."
    return rms_norm_by_power(tape, run.params[f"{at}.weight"], x)
