"""TransformerEngine's GroupedLinear over the experts of a rank (`pytorch/module/grouped_linear.py`)."""

from __future__ import annotations

from simcore.operators.megatron.ops.adapter import adapted, adapter_input
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import add
from simcore.operators.megatron.ops.fp8 import grouped_fp8
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["grouped"]


def grouped(c: Context, path: str, x: Tensor, experts: int, *, casts_input: bool = True,
            casts_grad: bool = True, keeps_input: bool = True, filled: int = 0) -> Tensor:
    """Outputs [rows, n] of TE's GroupedLinear at `path`, with its adapter, for rows `x` sorted by expert.

    For backward it saves its input where the weights train. `experts`: number on this rank; `casts_input`,
    `casts_grad`: False if, in fp8, the GEMM that made the input or the output's gradient has quantised it;
    `keeps_input`: False if, in fp8, the input is made again in backward. `filled`: in 8 bits, rows that hold a token, 0
    for all.
    """
    pair = c.pair(path)
    c = c.of(path)
    out = _grouped(c, path, x, experts) if c.scaling is None else grouped_fp8(
        c, path, x, experts, casts_input=casts_input, casts_grad=casts_grad, keeps_input=keeps_input, filled=filled)
    if pair is None:
        return out
    extra = adapted(c, path, adapter_input(c, x), pair, row_parallel=path.endswith("fc2"), axis="etp",
                    size=c.run.etp)
    return add(c, out, extra, f"{path}.sum")


def _grouped(c: Context, path: str, x: Tensor, experts: int) -> Tensor:
    weight, rows = c.param(f"{path}.weight"), x.shape[0]
    out_features, in_features = weight.shape[-2:]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, in_features, f"grad_{path}")
        c.gemm(rows, in_features, out_features, Kernel.GROUPED_GEMM, experts)
        return [grad, c.wgrad(weight, rows, Kernel.GROUPED_GEMM, experts)]

    out = c.new(rows, out_features, path)
    c.gemm(rows, out_features, in_features, Kernel.GROUPED_GEMM, experts)
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return out
