"""LoRA adapters of Megatron-Bridge 0.3.1 (`peft/lora_layers.py`, `peft/utils.py`): two linears of low rank."""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.parts import all_gather
from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["adapted", "adapter_input"]


def mm(c: Context, x: Tensor, weight: Param, name: str, axis: str = "") -> Tensor:
    """`x @ weight.T` of megatron-core's own linear: [rows, n] for `x` [rows, k] and `weight` [n, k].

    For backward it saves x if the weight trains; a 3-D weight is that of experts. `axis`: mesh axis over which the
    input's gradient is all-reduced, "" for none.
    """
    rows, out_features, in_features = x.shape[0], *weight.shape[-2:]
    kernel, copies = (Kernel.GROUPED_GEMM, weight.shape[0]) if len(weight.shape) > 2 else (Kernel.GEMM, 1)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, in_features, f"grad_{name}")
        c.gemm(rows, in_features, out_features, kernel, copies)
        if axis:
            c.send("all_reduce", axis, grad)
        return [grad, c.wgrad(weight, rows, kernel, copies)]

    out = c.new(rows, out_features, name)
    c.gemm(rows, out_features, in_features, kernel, copies)
    c.node(out, (x, weight), (x,) if weight.trainable else (), back)
    return out


def _widen(c: Context, x: Tensor, name: str, axis: str, size: int) -> Tensor:
    """All-gather along the last dimension (`gather_output`); its gradient is this rank's part."""
    rows, columns = x.shape
    out = c.new(rows, columns * size, name)
    c.send("all_gather", axis, out)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [c.new(rows, columns, f"grad_{name}")]

    c.node(out, (x,), (), back)
    return out


def adapted(c: Context, path: str, x: Tensor, pair: tuple[Param, Param], *, row_parallel: bool = False,
            axis: str = "tp", size: int = 0) -> Tensor:
    """Output of the LoRA adapter of a linear for `x`, in the shape of the linear's output.

    `ParallelLinearAdapter`: linear_in, linear_out, times a number. `path`: name of the adapted linear; `pair`: its
    matrices (in, out). `row_parallel`: that linear is row parallel; `axis`, `size`: mesh axis that splits it and its
    ranks (0: those of tp). For backward it saves x and the low-rank rows.
    """
    size = size or c.run.tp
    split = axis if size > 1 else ""
    low = mm(c, x, pair[0], f"{path}.linear_in", "" if row_parallel or c.sp > 1 else split)
    if split and row_parallel:
        c.send("all_reduce", axis, low)
    elif split:
        low = _widen(c, low, f"{path}.low_rank", axis, size)
    out = mm(c, low, pair[1], f"{path}.linear_out", split)
    del low
    if split and row_parallel:
        out = _widen(c, out, f"{path}.gathered", axis, size)
    if row_parallel and axis == "tp" and c.local != c.tokens:
        out = _scatter(c, out, f"{path}.scattered")
    if c.options.lora_dropout == "post":
        out = aten.dropout(c.tape, out)
    return _scaled(c, out, f"{path}.scaled")


def adapter_input(c: Context, x: Tensor) -> Tensor:
    """Input of an adapter before it is gathered: `x`, or with dropout before the adapter a dropped copy."""
    return aten.dropout(c.tape, x) if c.options.lora_dropout == "pre" else x


def _scatter(c: Context, x: Tensor, name: str) -> Tensor:
    """This rank's part of the sequence; its gradient is all-gathered (`scatter_to_sequence_parallel_region`)."""
    rows, columns = c.local, x.shape[1]

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        return [all_gather(c, grads[0], f"grad_{name}")]

    out = c.new(rows, columns, name)
    c.node(out, (x,), (), back)
    return out


def _scaled(c: Context, x: Tensor, name: str) -> Tensor:
    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        grad = tape.empty(grads[0].shape, c.dtype, f"grad_{name}")
        c.elementwise(grad, 2)
        return [grad]

    out = c.tape.empty(x.shape, c.dtype, name)
    c.elementwise(out, 2)
    c.node(out, (x,), (), back)
    return out
