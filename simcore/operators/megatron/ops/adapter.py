"""LoRA adapters of Megatron-Bridge 0.3.1 (`peft/lora_layers.py`, `peft/utils.py`): two linears of low rank.

[Note: Bridge's DoRA] `peft/dora_layers.py`, DoRALinear: every pass gathers, over tp, the adapter's matrix that is cut
along the rank or the output, and makes their product as large as the linear's weight, for norms of its rows, which take
no gradient. The sum of linear and adapter is multiplied with magnitudes over norms; a correction for dropout, 0 without
it, is added in a new tensor.
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import add, scaled
from simcore.operators.megatron.ops.parts import all_gather
from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["adapted", "adapter_input", "with_adapter"]


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
    """All-gather along the last dimension (`gather_output`); its gradient is this rank's part.

    Parts come one below the other and are put side by side in a copy (core 0.16.1 tensor_parallel/mappings.py,
    _gather_along_last_dim).
    """
    rows, columns = x.shape
    parts = c.new(rows * size, columns, f"{name}_parts")
    c.send("all_gather", axis, parts)
    out = c.new(rows, columns * size, name)
    c.elementwise(out, 2)
    del parts

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [c.new(rows, columns, f"grad_{name}")]

    c.node(out, (x,), (), back)
    return out


def adapted(c: Context, path: str, x: Tensor, pair: tuple[Param, Param], *, row_parallel: bool = False,
            gathers: bool = False, axis: str = "tp", size: int = 0) -> Tensor:
    """Output of the LoRA adapter of a linear for `x`, in the shape of the linear's output.

    `ParallelLinearAdapter`: linear_in, linear_out, times a number. `path`: name of the adapted linear; `pair`: its
    matrices (in, out). `row_parallel`: that linear is row parallel; `gathers`: it is cut nowhere, and all of its output
    is needed; `axis`, `size`: mesh axis that splits the adapter and its ranks (0: those of tp). For backward it saves x
    and the low-rank rows.
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
    if split and (row_parallel or gathers):
        out = _widen(c, out, f"{path}.gathered", axis, size)
    if row_parallel and axis == "tp" and c.local != c.tokens:
        out = _scatter(c, out, f"{path}.scattered")
    if c.options.lora_dropout == "post":
        out = aten.dropout(c.tape, out)
    return scaled(c, out, f"{path}.scaled")


def with_adapter(c: Context, path: str, out: Tensor, part: Tensor, name: str = "", *,
                 row_parallel: bool = False) -> Tensor:
    """Sum of a linear's output and its adapter's, `part`, both [rows, n], times DoRA's scale if there is one.

    `path`: of the linear; `name`: of the sum's storage.
    """
    magnitude = c.run.params.get(f"{path}.adapter.weight_magnitude")
    if magnitude is None:
        return add(c, out, part, name or f"{path}.sum")
    scale = _magnitude_over_norm(c, path, magnitude, _norms(c, path, row_parallel=row_parallel))
    total = aten.mul(c.tape, scale, add(c, out, part, f"{path}.sum"), f"{path}.dora")
    return aten.add_scalar(c.tape, total)


def _norms(c: Context, path: str, *, row_parallel: bool) -> Tensor:
    """Norm [n] of every row of the linear's weight [n, k] plus the scaled product of the adapter's matrices."""
    weight, pair = c.param(f"{path}.weight"), c.pair(path)
    assert pair is not None
    (rows, columns), rank = weight.shape, pair[0].shape[0] if row_parallel else pair[1].shape[1]
    _whole = _gathered(c, pair[1] if row_parallel else pair[0], f"{path}.gathered_matrix") if c.run.tp > 1 else None
    scaled = c.new(rows, rank, f"{path}.scaled_out")
    c.elementwise(scaled, 2)
    both = c.tape.empty(weight.shape, c.dtype, f"{path}.delta")
    c.gemm(rows, columns, rank)
    total = c.tape.empty(weight.shape, c.dtype, f"{path}.adapted")
    c.elementwise(total, 3)
    del both
    norms = c.tape.empty((rows,), c.dtype, f"{path}.norm")
    c.elementwise(total, 1)
    return norms


def _gathered(c: Context, matrix: Param, name: str) -> Tensor:
    """A matrix that is cut over tp, whole: a copy of its transpose is sent, parts are put side by side."""
    parts = c.new(matrix.numel, c.run.tp, f"{name}_parts")
    own = c.new(matrix.numel, 1, f"{name}_own")
    c.elementwise(own, 2)
    c.send("all_gather", "tp", parts)
    del own
    out = c.new(matrix.numel, c.run.tp, name)
    c.elementwise(out, 2)
    return out


def _magnitude_over_norm(c: Context, path: str, magnitude: Param, norms: Tensor) -> Tensor:
    """`magnitude / norms`, as one number a column: [1, n]. For backward it saves the norms."""
    out = c.tape.empty(norms.shape, c.dtype, f"{path}.ratio")
    c.elementwise(out, 3)
    c.node(out, (magnitude,), (norms,), lambda tape, grads, saved: [c.small_grad(magnitude)])
    return out.view(1, out.numel)


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
