"""KempnerForge's experts (5666d0d16153 `model/router.py`, `model/moe.py`), grouped products of evenly filled experts.

[Note: a router holds a graph]
`SoftmaxTopKRouter.forward` leaves its two losses on the module, with the graph they hang on; they go when the next
forward writes new ones. One of them is never differentiated (`moe_router_z_loss_weight` is 0), so what its nodes saved
stays. A checkpoint's replay writes them too: then the replay's own graph stays, and with it all that the replay saved
between the layer's input and the router, norms and attention included, until the layer's next forward.

Numbers, and vectors with one number an expert, are left out. Every group of rows is copied into and out of a block of
all experts by its own assignment; gradients pass them one by one (torch 2.13 `autograd/functions/tensor.cpp`,
CopySlices), each time in a new tensor of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simcore.models.blocks import Moe
from simcore.operators.kempnerforge.options import KempnerforgeOptions
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["Router", "moe"]

Grads = list[Tensor | None]
Saved = list[Tensor]
Operand = Tensor | Param


@dataclass(slots=True)
class Router:
    """Losses that one router module holds of its last forward pass, the balancing loss and the z loss.

    Each with the graph that it hangs on, or as the tensors that the last step left over.
    """

    balance: Sequence[Tensor] = ()
    z: Sequence[Tensor] = ()


def moe(tape: Tape, run: LayerWorkload, block: Moe, router: Router, x: Tensor) -> Tensor:
    """Output of the experts for `x` [batch, sequence, hidden], in x's shape.

    `MoEMLP.forward` on one rank. `router` gets the losses of this forward pass, and drops those of the last one.
    """
    rows = x.view(run.tokens, block.hidden)
    weights, indices = _route(tape, run, block, router, rows)
    return _experts(tape, run, block, rows, weights, indices).view(*x.shape)


# ---- router ---------------------------------------------------------------------------------------------------------
def _route(tape: Tape, run: LayerWorkload, block: Moe, router: Router, x: Tensor) -> tuple[Tensor, Tensor]:
    """`SoftmaxTopKRouter.forward`: weights and numbers of the chosen experts."""
    logits = aten.linear(tape, x, run.params["mlp.router.gate.weight"], "gate")
    probabilities = aten.softmax(tape, logits)
    weights, indices = aten.topk(tape, probabilities, block.top_k)
    weights = aten.div(tape, weights, aten.sum_last(tape, weights, keepdim=True))
    _chosen = _one_hot(tape, indices, block.num_experts)
    router.balance = [_mean_of_columns(tape, probabilities)]
    router.z = [_mean_square(tape, _logsumexp(tape, logits))]
    return weights, indices


def _one_hot(tape: Tape, indices: Tensor, count: int) -> Tensor:
    """`F.one_hot(indices, count).float()`."""
    shape = (*indices.shape, count)
    _whole = aten.new(tape, shape, "int64", "one_hot", indices.nbytes)
    return aten.new(tape, shape, "fp32", "one_hot", _whole.nbytes)


def _mean_of_columns(tape: Tape, x: Tensor) -> Tensor:
    """The balancing loss: of x it takes the mean over rows; a number, which the loss adds up over layers."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [aten.new(tape, shape, dtype, "grad_mean")])
    return Tensor(None, (), "fp32", node)


def _logsumexp(tape: Tape, x: Tensor) -> Tensor:
    """`torch.logsumexp(x, dim=-1)`: it saves what it reads and what it makes."""
    node = tape.node((x,), (x,), _not_run)
    out = aten.new(tape, x.shape[:-1], x.dtype, "logsumexp", x.nbytes)
    tape.save(node, out)
    out.node = node
    return out


def _mean_square(tape: Tape, x: Tensor) -> Tensor:
    node = tape.node((x,), (x,), _not_run)
    aten.new(tape, x.shape, x.dtype, "pow", x.nbytes)
    return Tensor(None, (), x.dtype, node)


def _not_run(tape: Tape, grads: Grads, saved: Saved) -> Grads:
    raise AssertionError("the z loss has a weight of 0")


# ---- experts --------------------------------------------------------------------------------------------------------
def _experts(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    """`MoEMLP._local_forward`."""
    rows = run.tokens * block.top_k
    _token_ids = _repeated(tape, run.tokens, rows)
    order = aten.sort(tape, indices.view(rows))
    _expert_ids = aten.select(tape, order, (rows,), "int64", "expert_ids")
    tokens = aten.select(tape, order, (rows,), "int64", "tokens")
    row_weights = aten.index(tape, weights.view(rows), order, "row_weights")
    selected = aten.index(tape, x, tokens, "dispatched")
    y = _grouped(tape, run, block, selected)
    weighted = aten.mul_rows(tape, y, row_weights, "weighted")
    del y
    return _scatter_add(tape, x.shape, tokens, weighted)


def _repeated(tape: Tape, tokens: int, rows: int) -> Tensor:
    _count = aten.new(tape, (tokens,), "int64", "arange")
    return aten.new(tape, (rows,), "int64", "token_ids")


def _grouped(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> Tensor:
    """`grouped_expert_forward`, or `_packed` with weights that are one tensor already; every expert is as full."""
    up, down, gate = (_matrices(tape, run, name) for name in ("up", "down", "gate"))
    experts = block.num_experts
    padded = _copied(tape, x, (experts, _longest(run, block), block.hidden), experts, "padded")
    gated = _product(tape, padded, gate, block.expert_ffn, "gate")
    upped = _product(tape, padded, up, block.expert_ffn, "up")
    hidden = aten.mul(tape, aten.silu(tape, gated), upped)
    out = _product(tape, hidden, down, block.hidden, "down")
    return _copied(tape, out, x.shape, experts, "expert_rows")


def _longest(run: LayerWorkload, block: Moe) -> int:
    """Rows of the fullest expert: a token goes to it once at most."""
    mean = run.tokens * block.top_k / block.num_experts
    return min(run.tokens, math.ceil(mean * KempnerforgeOptions.of(run.options).imbalance))


def _matrices(tape: Tape, run: LayerWorkload, name: str) -> Operand:
    """All experts' matrices of one name: packed, or stacked; a stack's gradient is copied out, transposed."""
    param = run.params[f"mlp.experts.{name}_proj.weight"]
    if KempnerforgeOptions.of(run.options).packed_experts:
        return param
    shape, dtype = param.shape, param.dtype
    node = tape.node((param,), (), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_weight", kernel=Kernel.COPY)])
    out = aten.new(tape, shape, dtype, f"stacked_{name}", param.nbytes, Kernel.COPY)
    out.node = node
    return out


def _product(tape: Tape, x: Tensor, weight: Operand, size: int, name: str) -> Tensor:
    """`torch._grouped_mm(x, weight)` of x [e, m, k] and weight [e, k, size]: the weight's gradient comes first."""
    x_shape, w_shape, dtype = x.shape, weight.shape, x.dtype
    kernel, flops = Kernel.GROUPED_GEMM, 2 * x.numel * size
    x_bytes, w_bytes = x.nbytes, weight.nbytes
    experts, rows, inner = x_shape
    wide, narrow, by_rows = aten.shapes_of_group(experts * rows, inner, size, experts)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_w = aten.new(tape, w_shape, dtype, "grad_weight", x_bytes, kernel, flops, by_rows)
        return [aten.new(tape, x_shape, dtype, f"grad_{name}", w_bytes, kernel, flops, narrow), to_w]

    node = tape.node((x, weight), (weight, x), backward)
    out = aten.new(tape, (*x_shape[:-1], size), dtype, name, x_bytes + w_bytes, kernel, flops, wide)
    out.node = node
    return out


def _copied(tape: Tape, x: Tensor, shape: tuple[int, ...], parts: int, name: str) -> Tensor:
    """`x`, copied part by part into zeros of `shape`."""
    x_shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        total: Tensor | None = None
        for part in reversed(range(parts)):
            mine = _take_part(tape, grads, num_bytes // dtype_bytes(dtype) // parts, last=part == 0)
            whole = aten.new(tape, x_shape, dtype, f"grad_{name}", num_bytes // parts, Kernel.COPY)
            del mine
            total = whole if total is None else tape.add_grads(total, whole)
            del whole
        return [total]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, shape, dtype, name, num_bytes, Kernel.COPY)
    out.node = node
    return out


def _take_part(tape: Tape, grads: Grads, numel: int, *, last: bool) -> Tensor:
    """The gradient of one assignment; that of the rest of the block takes the place of the block's."""
    (grad,) = grads
    assert grad is not None
    rest = aten.new(tape, grad.shape, grad.dtype, "grad_rest", grad.nbytes, Kernel.COPY)
    mine = aten.new(tape, (numel,), grad.dtype, "grad_part", kernel=Kernel.COPY)
    if not last:
        aten.new(tape, (numel,), grad.dtype, "zeros")
    del grad
    grads[0] = None if last else rest
    return mine


def _scatter_add(tape: Tape, shape: tuple[int, ...], tokens: Tensor, x: Tensor) -> Tensor:
    """`zeros.scatter_add_(0, tokens, x)`: the row numbers are saved."""
    x_shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    out = aten.new(tape, shape, dtype, "combined")
    out.node = tape.node((x,), (tokens,), lambda tape, grads, saved: [
        aten.new(tape, x_shape, dtype, "grad_combined", num_bytes, Kernel.PERMUTE)])
    tape.compute(Kernel.PERMUTE, x.numel, 2 * num_bytes)
    return out
