"""Pieces of Megatron-Core's linears that do not depend on the format in which they compute.

Sources: TransformerEngine 2.18 (`pytorch/module/layernorm_linear.py`, `linear.py`), megatron-core 0.16.1
(`tensor_parallel/layers.py`, `fusions/fused_bias_dropout.py`).

[Note: user buffers]
With tp_comm_overlap and sequence parallelism TE's linears overlap their collectives with their products
(`extensions/transformer_engine.py:540`, `:783`: ub_overlap_ag, ub_overlap_rs, ub_bulk_dgrad, ub_bulk_wgrad). What is
gathered, and the input gradient before it is summed, lie in buffers of TE's own (`csrc/extensions/
comm_gemm_overlap.cpp`); the output before its sum is allocated all the same (`csrc/extensions/gemm.cpp:202`).
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context
from simcore.recording.tape import Tensor

__all__ = ["all_gather", "biased", "gathered_input", "input_grad", "reduced", "statistics"]


def all_gather(c: Context, x: Tensor, name: str) -> Tensor:
    """All-gathers `x` [rows, columns] along the sequence over tp, without a gradient.

    Returns [sp * rows, columns] under `name`; sp: ranks that split the sequence.
    """
    out = c.new(x.shape[0] * c.sp, x.shape[1], name)
    c.send("all_gather", "tp", out)
    return out


def gathered_input(c: Context, x: Tensor, name: str) -> Tensor:
    """Input of one linear, gathered over tp: [sp * rows, columns].

    Under tp_comm_overlap it is in a user buffer. No gradient flows through it.
    """
    if not c.overlaps_tp:
        return all_gather(c, x, name)
    out = Tensor(None, (x.shape[0] * c.sp, x.shape[1]), x.dtype)
    c.send("all_gather", "tp", out)
    return out


def input_grad(c: Context, columns: int, name: str) -> Tensor:
    """New tensor [tokens, columns] for the input gradient of a column-parallel linear.

    It is not yet summed over tp. Under tp_comm_overlap it lies in a user buffer and is not allocated.
    """
    return Tensor(None, (c.tokens, columns), c.dtype) if c.overlaps_tp else c.new(c.tokens, columns, name)


def reduced(c: Context, grad: Tensor, *, late: bool = False) -> Tensor:
    """Input gradient of a column-parallel linear, summed over tp: [local tokens, columns].

    It is called twice in backward, before and after the weight gradient (`late`), and sums at one of both times: late
    if the gradient lies in a user buffer, whose sum goes along with the weight gradient. The other time, and if tp is
    1, it returns `grad` itself.
    """
    if c.run.tp == 1 or late != c.overlaps_tp:
        return grad
    if c.sp == 1:
        c.send("all_reduce", "tp", grad)
        return grad
    out = c.new(grad.shape[0] // c.sp, grad.shape[1], "grad_scattered")
    c.send("reduce_scatter", "tp", grad)
    return out


def statistics(c: Context, path: str, x: Tensor, *, centred: bool) -> list[Tensor]:
    """fp32 tensors that a norm saves, one number a row each: [rsigma], or [mu, rsigma].

    `centred`: True for LayerNorm, which saves mu (the mean) too. `path`: the norm's name.
    """
    names = ("mu", "rsigma") if centred else ("rsigma",)
    return [c.new(x.shape[0], 1, f"{path}.{name}", "fp32") for name in names]


def biased(c: Context, path: str, x: Tensor) -> Tensor:
    """View of `x` whose node makes the gradient of the bias at `path`, a sum; `x` itself without a bias.

    The bias is added by the residual's kernel (skip_bias_add, `fused_bias_dropout.py`).
    """
    bias = c.run.params.get(f"{path}.bias")
    if bias is None:
        return x
    param, out = bias, Tensor(x.storage, x.shape, x.dtype)
    c.node(out, (x, param), (), lambda tape, grads, saved: [grads[0], c.small_grad(param)])
    return out
