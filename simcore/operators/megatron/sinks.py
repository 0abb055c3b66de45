"""Attention sinks in TransformerEngine's fused attention: a learned number a head, `softmax_offset`, beside its scores.

TransformerEngine 2.18 `pytorch/attention/dot_product_attention/dot_product_attention.py:1696`: the parameter is cast to
fp32 in every forward, and the kernel's autograd node keeps the cast (`csrc/extensions/attention.cpp:299`). Its gradient
comes in fp32 (`:563`) and is cast back. Ranks that swap positions for heads select the numbers of their own heads, and
gather the gradients (`context_parallel.py`, flash_attn_a2a_communicate_softmax_offset).
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context
from simcore.recording.tape import Kernel, Param, Tensor

__all__ = ["grad_of_sinks", "own_sinks"]


def own_sinks(c: Context, sinks: Param) -> Tensor:
    """Numbers of the heads that this rank attends with, [heads / cp, 1] in fp32, for the kernel's node to keep."""
    whole = c.new(sinks.numel, 1, "softmax_offset", "fp32")
    c.tape.compute(Kernel.ELEMENTWISE, whole.numel, whole.nbytes + c.size * whole.numel, 1)
    if not c.swaps_heads:
        return whole
    own = c.new(sinks.numel // c.run.cp, 1, "softmax_offset_part", "fp32")
    c.elementwise(own, 2, Kernel.COPY)
    return own


def grad_of_sinks(c: Context, sinks: Param) -> Tensor | None:
    """Gradient of the parameter, as `Context.small_grad`; the kernel writes that of own heads in fp32."""
    made = c.new(sinks.numel // (c.run.cp if c.swaps_heads else 1), 1, "grad_softmax_offset", "fp32")
    if c.swaps_heads:
        whole = c.new(sinks.numel, 1, "grad_softmax_offset_whole", "fp32")
        c.tape.collective("all_gather", "cp", whole.nbytes, "fp32")
        made = whole
    grad = c.small_grad(sinks)
    c.tape.compute(Kernel.ELEMENTWISE, made.numel, made.nbytes + c.size * made.numel, 1)
    return grad
