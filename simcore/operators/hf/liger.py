"""Liger's kernels in transformers' layers (Liger-Kernel 0.7.0: `ops/{rms_norm,rope,swiglu}.py`).

Put into a model that is there already, as transformers' `use_liger_kernel` and NeMo Automodel do
(`transformers/monkey_patch.py`, _apply_liger_kernel_to_instance): norms of layers and the last one, rotation, SwiGLU.
Norms of query and key stay transformers' own: there the instance's are not replaced. Each is one kernel a pass.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.hf.options import HfOptions
from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["has_liger", "rms_norm", "rotate_both", "silu_mul"]

_NUM_SMS: Final = 132  # an H100's: each sums a part of the weight's gradient


def has_liger(run: LayerWorkload) -> bool:
    """True if Liger's kernels replace those of the layers."""
    return HfOptions.of(run.options).liger


def rms_norm(tape: Tape, weight: Param, x: Tensor) -> Tensor:
    """RMSNorm of `x` by Liger's kernel, in its shape and type; it saves x and an fp32 number a row.

    The gradient of x is written over the one that came in. The weight's gradient is made for frozen weights too:
    LigerRMSNormFunction does not ask.
    """
    moved, wide, dtype = x.nbytes, weight.shape[-1], weight.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        tape.compute(Kernel.NORM, 4 * moved, 3 * moved)
        parts = tape.empty((_NUM_SMS, wide), "fp32", "grad_weight.parts")
        whole = new(tape, (wide,), "fp32", "grad_weight.fp32", parts.nbytes)
        made = new(tape, (wide,), dtype, "grad_weight", whole.nbytes)
        return [grad, made if needs_grad(weight) else None]

    node = tape.node((x, weight), (), backward)
    out = new(tape, x.shape, x.dtype, "norm", moved, Kernel.NORM)
    tape.save(node, x, weight, tape.empty((x.numel // wide,), "fp32", "rstd"))
    out.node = node
    return out


def rotate_both(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, copy_grads: bool = False) -> tuple[
        Tensor, Tensor]:
    """(query, key), both rotated in place: views of `q` and `k`, each [b, s, heads, d].

    Their gradients are rotated in place too. `cos` and `sin` are saved. `copy_grads`: the gradients arrive in another
    memory order and are copied before (liger-kernel 0.7.0 `ops/rope.py`, rope_backward).
    """
    shapes, dtype = (q.shape, k.shape), q.dtype
    moved = 2 * (q.nbytes + k.nbytes)
    flops = 3 * (q.numel + k.numel)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [new(tape, shape, dtype, "grad_heads", grad.nbytes, Kernel.COPY) if copy_grads and grad else grad
                       for shape, grad in zip(shapes, grads, strict=True)]
        tape.compute(Kernel.ELEMENTWISE, flops, moved)
        return made

    node = tape.node((q, k), (), backward)
    tape.compute(Kernel.ELEMENTWISE, flops, moved)
    tape.save(node, cos, sin)
    return Tensor(q.storage, q.shape, q.dtype, node), Tensor(k.storage, k.shape, k.dtype, node, 1)


def silu_mul(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up` in a new tensor; gate and up are saved, and their gradients written over them."""
    moved, flops = gate.nbytes, gate.numel

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        tape.compute(Kernel.ELEMENTWISE, 8 * flops, 5 * moved)
        return [saved[0], saved[1]]

    node = tape.node((gate, up), (), backward)
    out = new(tape, gate.shape, gate.dtype, "swiglu", 2 * moved)
    tape.save(node, gate, up)
    out.node = node
    return out
