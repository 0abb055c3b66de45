"""NeMo Automodel's adapter of a linear layer (nemo-automodel 0.7.0, `components/_peft/lora.py`, LoRATritonFunction).

It is put on its own models' layers and on those of transformers alike (`apply_lora_to_linear_modules`).
"""

from __future__ import annotations

from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["memory_efficient_lora"]


def memory_efficient_lora(tape: Tape, x: Tensor, pair: tuple[Param, Param], base: Tensor, name: str) -> Tensor:
    """`base + (x A) B * scale` of `x` [..., k], in the shape of `base`, as a new tensor named `name`.

    `pair`: the LoRA matrices (A, B). For backward it saves x, recomputes x A in backward, and adds the base in place.
    """
    a, b = pair
    rank, rows = a.shape[0], x.numel // x.shape[-1]
    x_shape, dtype, a_shape, b_shape = x.shape, x.dtype, a.shape, b.shape
    x_needs, x_bytes, low_flops, high_flops = needs_grad(x), x.nbytes, 2 * rows * a.numel, 2 * rows * b.numel

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        through_b = new(tape, (rows, rank), dtype, "grad_lora_low", grad.nbytes, Kernel.GEMM, high_flops)
        to_x = new(tape, x_shape, dtype, f"grad_{name}_lora", through_b.nbytes, Kernel.GEMM,
                   low_flops) if x_needs else None
        to_a = new(tape, a_shape, dtype, "grad_lora_a", x_bytes, Kernel.GEMM, low_flops)
        low = new(tape, (rows, rank), dtype, "lora_low", x_bytes, Kernel.GEMM, low_flops)
        to_b = new(tape, b_shape, dtype, "grad_lora_b", grad.nbytes + low.nbytes, Kernel.GEMM, high_flops)
        return [to_x, to_a, to_b, grad]

    node = tape.node((x, a, b, base), (x, a, b), backward)
    low = _low_rank(tape, x, rows, rank, low_flops)
    out = new(tape, base.shape, dtype, name, low.nbytes, Kernel.GEMM, high_flops)
    tape.compute(Kernel.ELEMENTWISE, out.numel, 3 * out.nbytes)
    out.node = node
    return out


def _low_rank(tape: Tape, x: Tensor, rows: int, rank: int, flops: int) -> Tensor:
    low = new(tape, (rows, rank), x.dtype, "lora_low", x.nbytes, Kernel.GEMM, flops)
    return new(tape, (rows, rank), x.dtype, "lora_low", low.nbytes)
