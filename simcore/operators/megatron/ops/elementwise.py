"""Activations, sums and dropout of Megatron-Core layers.

Sources: megatron-core 0.16.1 `fusions/fused_bias_swiglu.py`, `fusions/fused_bias_gelu.py`,
`fusions/fused_bias_dropout.py`.
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Backward, Kernel, Param, Tape, Tensor

__all__ = ["act", "add", "add_dropped", "copied_gradient", "dropped", "glu", "halves", "identity", "reordered",
           "scaled", "summed", "swiglu"]


def identity(_tape: Tape, grads: Grads, _saved: Saved) -> Grads:
    """Backward function that returns the gradients unchanged, for views."""
    return grads


def copied_gradient(c: Context, x: Tensor, name: str) -> Backward:
    """Backward function of views and copies of `x` [rows, columns] whose gradient is copied into the order of `x`."""
    rows, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, columns, name)
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    return back


def reordered(c: Context, x: Tensor, name: str, grad_name: str) -> Tensor:
    """Copy of `x` [rows, columns] in another order of dimensions, `transpose(...).contiguous()`; so its gradient."""
    rows, columns = x.shape
    out = c.new(rows, columns, name)
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, (x,), (), copied_gradient(c, x, grad_name))
    return out


def add(c: Context, a: Tensor, b: Tensor, name: str) -> Tensor:
    """`a + b` in a new tensor of their shape; both get the output's gradient itself.

    Dropout 0 and no bias add nothing. `name`: name of the output's storage.
    """
    out = c.tape.empty(a.shape, a.dtype, name)
    c.elementwise(out, 3)
    c.node(out, (a, b), (), lambda tape, grads, saved: [grads[0], grads[0]])
    return out


def add_dropped(c: Context, a: Tensor, b: Tensor, name: str) -> Tensor:
    """`a + dropout(b)` in one kernel, in a new tensor; it saves the mask, a byte an element.

    `fusions/fused_bias_dropout.py`, compiled or not: random numbers are not made again in backward, so the comparison's
    outcome is kept.
    """
    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        grad = tape.empty(grads[0].shape, c.dtype, "grad_dropped")
        c.elementwise(grad, 3)
        return [grads[0], grad]

    mask = c.tape.empty(b.shape, "uint8", f"{name}.dropout_mask")
    out = c.tape.empty(a.shape, a.dtype, name)
    c.elementwise(out, 4)
    c.node(out, (a, b), (mask,), back)
    return out


def dropped(c: Context, x: Tensor, name: str) -> Tensor:
    """`dropout(x)` in a new tensor; it saves the mask, a byte an element (torch `native_dropout`)."""
    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.tape.empty(mask_shape, c.dtype, f"grad_{name}")
        c.elementwise(grad, 3, operators=1)
        return [grad]

    mask_shape = x.shape
    mask = c.tape.empty(x.shape, "uint8", f"{name}.dropout_mask")
    out = c.tape.empty(x.shape, x.dtype, name)
    c.elementwise(out, 3, operators=1)
    c.node(out, (x,), (mask,), back)
    return out


def scaled(c: Context, x: Tensor, name: str) -> Tensor:
    """`x` times a number, in a new tensor like it; it saves nothing."""
    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        grad = tape.empty(grads[0].shape, c.dtype, f"grad_{name}")
        c.elementwise(grad, 2)
        return [grad]

    out = c.tape.empty(x.shape, c.dtype, name)
    c.elementwise(out, 2)
    c.node(out, (x,), (), back)
    return out


def act(c: Context, x: Tensor, name: str, *, gated: bool, bias: Param | None = None) -> Tensor:
    """Activation of a dense MLP: SwiGLU of `x` [rows, 2 n] if `gated`, else relu^2 or GELU (equal in cost).

    SwiGLU returns [rows, n], the others x's shape, in a new tensor. The fused kernel saves its input
    (`fusions/fused_bias_swiglu.py`, `activations.py`); with activation_func_fp8_input_store SwiGLU saves a copy in 8
    bits, without scales, in its place. Gated GELU by tanh is unfused, compiled (`activations.py`, fast_gelu), and keeps
    what SwiGLU does. `bias`: added in the same kernel; its gradient is the input's,
    summed (`fusions/fused_bias_gelu.py`, `fused_bias_swiglu.py`). Unfused SwiGLU has its sum in a new tensor.
    """
    if gated and not c.fuses_activation:
        return swiglu(c, summed(c, x, bias, name) if bias else x, name)
    rows, columns = x.shape
    narrow = gated and c.options.activation_func_fp8_input_store

    def back(_tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        wide = _cast(c, saved[0], f"{name}.input") if narrow else None  # `to` of the first format, until the end
        grad = c.new(rows, columns, f"grad_{name}")
        c.elementwise(grad, 3)
        del wide
        return [grad, c.small_grad(bias) if bias else None]

    if narrow and c.options.fuses_dense_mlp:  # TransformerEngine scales by the maximum, which it reads first
        c.elementwise(x, 1, operators=1)
    kept = _cast(c, x, f"{name}.input_fp8", "uint8") if narrow else x
    out = c.new(rows, columns // (2 if gated else 1), name)
    c.elementwise(out, 3 if gated else 2)
    c.node(out, (x, bias), (kept,), back)
    return out


def summed(c: Context, x: Tensor, bias: Param, name: str) -> Tensor:
    """`x + bias` in a new tensor; it saves nothing, the bias's gradient is a sum over rows (`mlp.py`)."""
    rows, columns = x.shape
    out = c.new(rows, columns, f"{name}.with_bias")
    c.elementwise(out, 2)
    c.node(out, (x, bias), (), lambda tape, grads, saved: [grads[0], c.small_grad(bias)])
    return out


def _cast(c: Context, x: Tensor, name: str, dtype: str = "") -> Tensor:
    """A copy of `x` in another format, "" for that in which the layer computes."""
    out = c.tape.empty(x.shape, dtype or c.dtype, name)
    c.tape.compute(Kernel.ELEMENTWISE, out.numel, x.nbytes + out.nbytes, 1)
    return out


def swiglu(c: Context, x: Tensor, name: str) -> Tensor:
    """`silu(gate) * (up + glu_linear_offset)` of `x` [rows, 2 n], unfused: a new tensor [rows, n].

    Without bias_activation_fusion (`mlp.py`, glu). For backward it saves x, whose half the SiLU reads, and what
    `glu` saves besides.
    """
    return glu(c, halves(c, x, f"grad_{name}"), name)


def halves(c: Context, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Views of the two halves of `x` [rows, 2 n], gate and up; `name`: of the storage of x's gradient."""
    rows, half = x.shape[0], x.shape[1] // 2

    def concatenated(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, 2 * half, name)
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    gate, up = (Tensor(x.storage, (rows, half), x.dtype) for _ in range(2))
    c.node(gate, (x,), (), concatenated)
    up.node, up.output = gate.node, 1
    return gate, up


def glu(c: Context, parts: tuple[Tensor, Tensor], name: str) -> Tensor:
    """`activation(gate) * (up + glu_linear_offset)` of the `parts` gate and up, each [rows, n]: a new tensor [rows, n].

    For backward it saves the gate, its activation (SiLU, or the compiled quick GELU), and the sum, which is made even
    where the offset is 0.
    """
    (gate, up), (rows, half) = parts, parts[0].shape

    def of_product(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        to_up = c.new(rows, half, f"grad_{name}.up")
        to_gate = c.new(rows, half, f"grad_{name}.silu")
        c.elementwise(to_up, 6)
        return [to_gate, to_up]

    def of_activation(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, half, f"grad_{name}.gate")
        c.elementwise(grad, 3)
        return [grad]

    activated = c.new(rows, half, f"{name}.silu")
    c.elementwise(activated, 2)
    c.node(activated, (gate,), (gate,), of_activation)
    shifted = c.new(rows, half, f"{name}.shifted")
    c.elementwise(shifted, 2)
    c.node(shifted, (up,), (), identity)
    out = c.new(rows, half, name)
    c.elementwise(out, 3)
    c.node(out, (activated, shifted), (activated, shifted), of_product)
    return out
