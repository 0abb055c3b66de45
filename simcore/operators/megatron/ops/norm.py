"""TransformerEngine's RMSNorm and LayerNorm, also under recompute `layernorm`."""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.parts import statistics
from simcore.operators.megatron.ops.recompute import Discarded
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["norm", "norm_discarded"]


def norm(c: Context, path: str, x: Tensor, name: str = "ln_out") -> Tensor:
    """TE RMSNorm, or LayerNorm if the layer has its bias, at `path`: a new tensor like `x`.

    For backward it saves its input and rsigma (fp32, one a row), trainable or not. LayerNorm saves the mean too.
    """
    weight, bias = c.param(f"{path}.weight"), c.run.params.get(f"{path}.bias")

    def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
        grad = tape.empty(saved[0].shape, c.dtype, "grad_norm")
        c.elementwise(grad, 4, Kernel.NORM)
        return [grad, c.small_grad(weight), c.small_grad(bias) if bias else None]

    measures = statistics(c, path, x, centred=bias is not None)
    out = c.tape.empty(x.shape, c.dtype, name)
    c.elementwise(out, 2, Kernel.NORM)
    c.node(out, (x, weight, bias), (x, *measures), back)
    return out


def norm_discarded(c: Context, path: str, x: Tensor) -> tuple[Tensor, Discarded]:
    """(output of `norm`, handle that discards it after its last use) under recompute `layernorm`.

    The norm runs without a graph, so only its input is saved, not even rsigma; backward makes the output again.
    """
    weight, bias = c.param(f"{path}.weight"), c.run.params.get(f"{path}.bias")

    def again() -> list[Tensor]:
        made = [c.tape.empty((rows, 1), "fp32", f"{path}.{name}", "recompute")
                for name in (("mu", "rsigma") if bias else ("rsigma",))]
        made.append(c.tape.empty(shape, c.dtype, "ln_out", "recompute"))
        c.elementwise(made[-1], 2, Kernel.NORM)
        return made

    def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
        grad = tape.empty(saved[0].shape, c.dtype, "grad_norm")
        c.elementwise(grad, 4, Kernel.NORM)
        holder[0].made.clear()
        return [grad, c.small_grad(weight), c.small_grad(bias) if bias else None]

    shape, rows = x.shape, x.shape[0]
    out = c.tape.empty(shape, c.dtype, "ln_out")
    c.elementwise(out, 2, Kernel.NORM)
    c.node(out, (x, weight, bias), (x,), back)
    holder = [Discarded(c, out, again)]
    return out, holder[0]
