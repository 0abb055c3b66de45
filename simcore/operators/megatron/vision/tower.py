"""Patches, layers and mergers of `Qwen3VLVisionModel`, forward and backward.

All patches of a microbatch are one row of tokens, each image a sequence in it (`vision_model.py`,
build_packed_seq_params). Nothing of a layer is fused but norm and linear: bias_activation_fusion and
bias_dropout_fusion are off (`transformer_config.py`, get_vision_model_config), and dropout of 0 is no operator.
Megatron-Bridge 067f987d `models/qwen_vl/modelling_qwen3_vl`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simcore.models.blocks import Attention
from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.radio_blocks import RadioLayer
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import act, add, summed
from simcore.operators.megatron.ops.linear import column, norm_linear, row
from simcore.operators.megatron.ops.norm import norm
from simcore.operators.megatron.ops.parts import biased
from simcore.operators.megatron.vision.tensors import attention_of
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["Attend", "layer", "patches", "squares", "tower_context"]

Attend = Callable[[Context, Attention, Tensor], Tensor]
_TAPS: Final = 4
"""Learned positions that are weighed for each patch (`vision_model.py`, fast_pos_embed_interpolate)."""


def tower_context(c: Context, patches: int) -> Context:
    """Context of the tower's parts, whose tokens are all patches of a microbatch; `patches`: of an image.

    Every patch of an image sees all of it, twice as many pairs as causal attention computes. Selective recomputation
    is of attention's core alone, whatever modules the decoder recomputes: the tower's configuration is made without
    any (core/transformer/transformer_config.py:1940).
    """
    run = c.run
    modules = run.checkpoint if run.checkpoint in ("none", "full") else "core_attn"
    return replace(c, run=replace(run, batch=1, seq=run.images * patches, sequence_parallel=False, cp=1,
                                  sequences=run.images, attended=2 * patches, checkpoint=modules))


def patches(c: Context, block: PlacedPatches) -> Tensor:
    """Embedded patches [patches of the microbatch, width]: a convolution, which is one product, and weighed positions.

    Its input in the layers' type, and numbers and weights of positions, are kept for backward.
    """
    rows, width, given = c.tokens, block.width, block.pixels // block.count
    weight, bias, table = (c.param(name) for name in ("patch_embed.proj.weight", "patch_embed.proj.bias",
                                                      "pos_embed.weight"))
    pixels = c.new(rows, given, "pixel_values")
    c.elementwise(pixels, 1 + dtype_bytes(c.options.pixels) // c.size, Kernel.COPY)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        if weight.trainable:
            c.gemm(width, given, rows)
        return [c.small_grad(weight), c.small_grad(bias)]

    found = c.new(rows, width, "patch_embed")
    c.gemm(rows, width, given)
    c.node(found, (weight, bias), (pixels,), back)
    del pixels

    def back_of_positions(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        weighed = c.new(_TAPS * rows, width, "grad_pos_embed")
        c.elementwise(weighed, 2, operators=2)
        return [c.small_grad(table)]

    numbers = c.tape.empty((_TAPS, rows), "int64", "pos_embed.numbers")
    weights = c.new(_TAPS, rows, "pos_embed.weights")
    taps = c.new(_TAPS * rows, width, "pos_embed")
    weighed = c.new(_TAPS * rows, width, "pos_embed.weighed")
    placed = c.new(rows, width, "pos_embeds")
    c.elementwise(weighed, 6, operators=7)  # looked up, weighed, three sums, put in order, joined
    c.node(placed, (table,), (numbers, weights), back_of_positions)
    del taps, weighed, numbers, weights
    return add(c, found, placed, "embeddings")


def layer(c: Context, block: PlacedLayer | RadioLayer, x: Tensor, attend: Attend) -> Tensor:
    """Output of core's layer for `x` [patches, width], in x's shape; `attend`: core's attention and its projections.

    RADIO's configuration is a copy of the decoder's, which fuses the sum of residual and bias
    (Bridge 067f987d `models/hybrid/hybrid_provider.py:148`).
    """
    joined = add if isinstance(block, RadioLayer) else _joined

    def run() -> Tensor:
        residual = joined(c, x, attend(c, attention_of(block), x), "residual")
        return joined(c, residual, _mlp(c, residual), "hidden_states")

    return c.region(run) if c.run.checkpoint == "full" else run()


def _joined(c: Context, residual: Tensor, x: Tensor, name: str) -> Tensor:
    """`residual + (x + bias)`, two kernels (core `fusions/fused_bias_dropout.py`); the linear's node has the bias."""
    whole = c.tape.empty(x.shape, c.dtype, "with_bias")
    c.elementwise(whole, 2, operators=1)
    c.node(whole, (x,), (), lambda tape, grads, saved: [grads[0]])
    return add(c, residual, whole, name)


def _mlp(c: Context, x: Tensor) -> Tensor:
    inner = norm_linear(c, "mlp.linear_fc1", x)
    inner = summed(c, inner, c.param("mlp.linear_fc1.bias"), "mlp.activation")
    return row(c, "mlp.linear_fc2", act(c, inner, "mlp.activation", gated=False))


def squares(c: Context, block: DeepMerger | PlacedMerger, x: Tensor) -> Tensor:
    """Tokens [tokens of the microbatch, hidden] of `x` [patches, width] (`Qwen3VLVisionPatchMerger`).

    Features for the decoder are of squares that are normed whole, tokens of patches that are normed one by one.
    """
    wide = (c.tokens // block.merged, block.merged * block.width)
    inner = replace(c, run=replace(c.run, seq=wide[0]))

    def run() -> Tensor:
        normed = norm(inner, "patch_norm", x.view(*wide) if isinstance(block, DeepMerger) else x)
        made = biased(inner, "linear_fc1", column(inner, "linear_fc1", normed.view(*wide)))
        return row(inner, "linear_fc2", act(inner, made, "activation", gated=False))

    return inner.region(run) if c.run.checkpoint == "full" and isinstance(block, DeepMerger) else run()
