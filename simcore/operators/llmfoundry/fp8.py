"""A linear of TransformerEngine 0.10 inside fp8_autocast, as llm-foundry 0.3.0 builds it (`fc_type: te`).

TransformerEngine 0.10 `pytorch/module/linear.py`, `base.py` (grad_output_preprocess): one scale a tensor, delayed
(Composer 0.16.4 `core/precision.py`: HYBRID, a history of 16). It is not marked which microbatch is the first, so each
forward casts the weight, along rows and along columns. Kept for backward: columns of the input and of the weight.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["te_linear"]


def te_linear(tape: Tape, x: Tensor, weight: Param, bias: Param | None, name: str) -> Tensor:
    """`x @ weight.T + bias` in fp8: [..., n] in x's type, for `x` [..., k] and `weight` [n, k].

    Its gradients are in their tensors' own types. For backward it saves fp8 copies of the input and the weight along
    columns.
    """
    shape, dtype, (out_features, _) = x.shape, x.dtype, weight.shape
    flops = 2 * x.numel * out_features
    x_needs, narrow = aten.needs_grad(x), (x.numel, weight.numel)

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        (grad,) = grads
        assert grad is not None
        rows, columns = _cast(tape, grad, "grad_fp8")
        moved = rows.nbytes
        of_bias = tape.empty(bias.shape, bias.dtype, "grad_bias") if bias else None
        to_x = (aten.new(tape, shape, dtype, f"grad_{name}", moved + narrow[1], Kernel.FP8_GEMM, flops)
                if x_needs else None)
        to_weight = aten.new(tape, weight.shape, weight.dtype, "grad_weight", moved + narrow[0], Kernel.FP8_GEMM, flops)
        del rows, columns
        return [to_x, to_weight, of_bias]

    rows, columns = _cast(tape, x, f"{name}.input_fp8")
    weight_rows, weight_columns = _cast(tape, weight, f"{name}.weight_fp8")
    node = tape.node((x, weight, bias), (), backward)
    out = aten.new(tape, (*shape[:-1], out_features), dtype, name, sum(narrow), Kernel.FP8_GEMM, flops)
    tape.save(node, columns, weight, weight_columns)
    del rows, columns, weight_rows, weight_columns
    out.node = node
    return out


def _cast(tape: Tape, x: Tensor | Param, name: str) -> tuple[Tensor, Tensor]:
    """Along rows and along columns, by one kernel."""
    tape.compute(Kernel.ELEMENTWISE, x.numel, x.nbytes + 2 * x.numel)
    return tape.empty(x.shape, "fp8", name), tape.empty(x.shape, "fp8", f"{name}_columns")
