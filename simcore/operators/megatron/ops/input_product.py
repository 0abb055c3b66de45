"""Product of a linear in 8 or 4 bits that makes the gradient of its input, and the weight's columns that it reads."""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context
from simcore.recording.tape import Kernel, Param

__all__ = ["input_product"]


def input_product(c: Context, path: str, weight: Param, rows: int) -> None:
    """Records the product of `rows` rows of the output's gradient with the weight [n, k] of the linear at `path`.

    Older releases of TransformerEngine make the weight's columns first, of its rows, and drop them afterwards: 1.11
    `pytorch/module/linear.py`, weight_fp8.transpose_2d().
    """
    columns = None
    if c.options.transposes_weights_again and c.scaling is not None and c.scaling.has_columns:
        columns = c.tape.empty(weight.shape, "uint8", f"{path}.weight_transposed")
        c.tape.compute(Kernel.ELEMENTWISE, columns.numel, 2 * columns.nbytes, 1)
    c.gemm(rows, weight.shape[1], weight.shape[0], c.product())
    del columns
