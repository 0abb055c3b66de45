"""NeMo Automodel's adapter of a linear layer (nemo-automodel 0.7.0, `components/_peft/lora.py`, LoRATritonFunction).

It is put on its own models' layers and on those of transformers alike (`apply_lora_to_linear_modules`).

[Note: Automodel's adapters] LinearLoRA.forward: without dropout and with dropout of the input (pre) one function adds
the base's output in place to its own; with dropout of the output (post, the default) that function runs without the
base, and the sum is in place in the dropped copy. With `use_memory_efficient_lora: false` the products are linears
of their own, which keep x A, and the sum is a new tensor. DoRA runs module by module: it keeps x A, the adapter's
output and the base's, and makes `B A` as large as the weight for norms of rows. With `pre` the base's product runs
again on the dropped input.
"""

from __future__ import annotations

from simcore.operators.shared import aten, dora
from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["linear_lora"]


def linear_lora(tape: Tape, run: LayerWorkload, prefix: str, x: Tensor, base: Tensor, name: str) -> Tensor:
    """Output of an adapted linear for `x` [..., k]: `base`, which is the linear's own, and the adapter's part.

    `prefix`: beginning of the names of its parameters; `name`: name of the output's storage.
    """
    pair = run.params[f"{prefix}lora_A.weight"], run.params[f"{prefix}lora_B.weight"]
    place = run.options.lora_dropout
    if f"{prefix}lora_magnitude" in run.params:
        return _dora(tape, run, prefix, x, base, name)
    if run.options.lora_by_operators:
        return _by_operators(tape, run, pair, x, base, name)
    if place == "post":
        part = aten.dropout(tape, _memory_efficient(tape, x, pair, None, name))
        aten.add_(tape, part, base)
        return part
    return _memory_efficient(tape, aten.dropout(tape, x) if place else x, pair, base, name)


def _by_operators(tape: Tape, run: LayerWorkload, pair: tuple[Param, Param], x: Tensor, base: Tensor,
                  name: str) -> Tensor:
    """`base + B(A(x) * scale)`, each product a linear of its own."""
    place = run.options.lora_dropout
    x = aten.dropout(tape, x) if place == "pre" else x
    low = aten.mul_scalar(tape, aten.linear(tape, x, pair[0], f"{name}.lora_a"))
    part = aten.linear(tape, low, pair[1], f"{name}.lora_b")
    del low
    part = aten.dropout(tape, part) if place == "post" else part
    return aten.add(tape, base, part, name)


def _dora(tape: Tape, run: LayerWorkload, prefix: str, x: Tensor, base: Tensor, name: str) -> Tensor:
    """`base`, the linear's output, and what DoRA adds to it; all locals live until the sum is there."""
    a, b, weight = (run.params[f"{prefix}{part}weight"] for part in ("lora_A.", "lora_B.", ""))
    place, bias = run.options.lora_dropout, run.params.get(f"{prefix}bias")
    x = aten.dropout(tape, x) if place == "pre" else x
    part = aten.linear(tape, aten.linear(tape, x, a, f"{name}.lora_a"), b, f"{name}.lora_b")
    part = aten.dropout(tape, part) if place == "post" else part
    norm = _norms(tape, weight, a, b, name)
    magnitude: aten.Operand = run.params[f"{prefix}lora_magnitude"]
    magnitude = magnitude if magnitude.dtype == x.dtype else aten.cast(tape, magnitude, x.dtype)
    scale = dora.ratio(tape, magnitude, norm, name).view(1, norm.numel)
    plain = base
    if place == "pre":
        plain = aten.linear(tape, x, weight, f"{name}.dropped")
    elif bias is not None:
        plain = dora.without_bias(tape, base, bias, name)
    extra = dora.scaled_sum(tape, scale, plain, part, name)
    return aten.add(tape, base, extra, f"{name}.sum")


def _norms(tape: Tape, weight: Param, a: Param, b: Param, name: str) -> Tensor:
    both = new(tape, weight.shape, a.dtype, f"{name}.b_times_a", a.nbytes + b.nbytes, Kernel.GEMM,
               2 * weight.numel * a.shape[0])
    both = both if both.dtype == weight.dtype else aten.cast(tape, both, weight.dtype)
    return dora.norms(tape, weight, both, name)


def _memory_efficient(tape: Tape, x: Tensor, pair: tuple[Param, Param], base: Tensor | None, name: str) -> Tensor:
    """`base + (x A) B * scale` of `x` [..., k], without a base the second part alone, as a new tensor named `name`.

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
        return [to_x, to_a, to_b, *([grad] if adds else [])]

    adds = base is not None
    node = tape.node((x, a, b, *((base,) if base else ())), (), backward)
    low = _low_rank(tape, x, rows, rank, low_flops)
    out = new(tape, (*x_shape[:-1], b_shape[0]), dtype, name, low.nbytes, Kernel.GEMM, high_flops)
    if adds:
        tape.compute(Kernel.ELEMENTWISE, out.numel, 3 * out.nbytes)
    tape.save(node, x, a, b)  # by setup_context, behind the output: a replay that needs them makes it too
    out.node = node
    return out


def _low_rank(tape: Tape, x: Tensor, rows: int, rank: int, flops: int) -> Tensor:
    low = new(tape, (rows, rank), x.dtype, "lora_low", x.nbytes, Kernel.GEMM, flops)
    return new(tape, (rows, rank), x.dtype, "lora_low", low.nbytes)
