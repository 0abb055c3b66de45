"""NeMo Automodel's adapters of linear layers that tensor parallelism splits (nemo-automodel 0.7.0).

`components/distributed/parallel_styles.py`, `components/_peft/lora.py` (LinearLoRA.forward); never Triton's
(`_transformers/infrastructure.py`), nor one function: weights are DTensors. Of a layer whose outputs are split both
matrices are cut on dimension 0, and the low-rank rows are gathered between them. Of a layer whose inputs are split both
are cut on dimension 1: what A makes is a partial sum, as the base's output is, and both outputs are summed as one.

[Note: how DTensor multiplies partial rows] The second product of a layer whose inputs are split takes partial sums
[tokens, rank] and B, cut along the rank: DTensor scatters the rows, or gathers B, whichever moves fewer bytes (torch
2.13 `distributed/tensor/_collective_utils.py`, redistribute_cost). B's gradient is whole and a partial sum, which
FSDP2's post-backward scatters (`own_columns`). In backward the gradient of low-rank rows comes cut along the rank: it
is gathered, or, where that is slower by DTensor's estimate, A is exchanged for a part that is cut so too (`is_turned`).
Then the gradient of x is a partial sum of all columns, which is scattered when it meets the base's (`apart`).
`tests/operators/automodel/test_tensor_parallel.py` compares.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, needs_grad, new
from simcore.operators.shared.dtensor import gather_columns, gathered_columns, scatter_columns
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["adapted_column", "adapted_row", "adapted_whole_row", "apart", "is_turned", "own_columns"]

_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_Pair = tuple[Param, Param]


def adapted_column(tape: Tape, run: LayerWorkload, x: Tensor, pair: _Pair, base: Tensor, name: str) -> Tensor:
    """`base + B(A(x) * scale)` [..., n / tp] of `x` [..., k], equal on all ranks; `name`: the output's."""
    low = gather_columns(tape, run, aten.linear(tape, x, pair[0], f"{name}.lora_a"), f"{name}.lora_low")
    low = aten.mul_scalar(tape, low)
    part = aten.linear(tape, low, pair[1], f"{name}.lora_b")
    del low
    return aten.add(tape, base, part, name)


def adapted_row(tape: Tape, run: LayerWorkload, x: Tensor, pair: _Pair, base: Tensor, name: str) -> Tensor:
    """`base + B(A(x) * scale)` [..., n], partial sums, of this rank's columns `x` [..., k / tp].

    `x`: the second of `apart` where `is_turned`.
    """
    part = _second(tape, run, _first(tape, run, x, pair[0], name), pair[1], name)
    return aten.add(tape, base, part, name)


def adapted_whole_row(tape: Tape, run: LayerWorkload, x: Tensor, pair: _Pair, base: Tensor, name: str) -> Tensor:
    """`adapted_row` of whole rows `x` [..., k], equal on all ranks, which each cuts first; backward keeps all of them.

    A's gradient is cut along the rank.
    """
    part = _second(tape, run, _first_of_whole(tape, run, x, pair[0], name), pair[1], name)
    return aten.add(tape, base, part, name)


def is_turned(run: LayerWorkload, x: Tensor, a: Param, limit: int) -> bool:
    """True if backward cuts A [rank, k / tp] along the rank, see [Note: how DTensor multiplies partial rows].

    `limit`: bytes by which gathered low-rank gradients are more than A's part when both are as fast; 0: no limit.
    """
    whole = x.numel // x.shape[-1] * a.shape[0] * dtype_bytes(x.dtype)
    return bool(limit) and whole - a.nbytes > limit


def apart(tape: Tape, run: LayerWorkload, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Views of `x` for base and adapter; the adapter's gradient is of all columns, a partial sum that is scattered."""
    shape, dtype, whole = x.shape, x.dtype, (*x.shape[:-1], x.shape[-1] * run.tp)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        own, _partial = grads
        grads.clear()
        assert own is not None
        mine = scatter_columns(tape, run.tp, Tensor(None, whole, dtype), f"grad_{name}")
        return [new(tape, shape, dtype, f"grad_{name}_sum", own.nbytes + mine.nbytes)]

    node = tape.node((x,), (), backward)
    return Tensor(x.storage, shape, dtype, node), Tensor(x.storage, shape, dtype, node, 1)


def _first(tape: Tape, run: LayerWorkload, x: Tensor, a: Param, name: str) -> Tensor:
    """Partial low-rank rows [rows, rank]; their gradient comes as this rank's columns, and is gathered for both."""
    (rank, inner), rows, dtype, x_shape = a.shape, x.numel // x.shape[-1], x.dtype, x.shape
    x_needs, x_bytes, flops, tp = needs_grad(x), x.nbytes, 2 * rows * a.numel, run.tp
    turned = x.output == 1

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        own = new(tape, (rank // tp, rows), dtype, "grad_lora_turned", kernel=Kernel.COPY)
        whole = tape.empty((rank, rows), dtype, "grad_lora_gathered")
        tape.collective("all_gather", "tp", whole.nbytes, dtype)
        del own
        to_a = new(tape, (rank, inner), dtype, "grad_weight", x_bytes, Kernel.GEMM, flops)
        del whole
        if not x_needs:
            return [None, to_a]
        if turned:
            cut = _all_to_all(tape, a, name)
            return [new(tape, (*x_shape[:-1], inner * tp), dtype, f"grad_{name}_lora", cut.nbytes, Kernel.GEMM, flops),
                    to_a]
        both = gathered_columns(tape, tp, (rows, rank), dtype, f"grad_{name}.lora_low")
        return [new(tape, x_shape, dtype, f"grad_{name}_lora", both.nbytes, Kernel.GEMM, flops), to_a]

    node = tape.node((x, a), (x, *[a] * x_needs), backward)
    out = new(tape, (*x_shape[:-1], rank), dtype, f"{name}.lora_a", x_bytes, Kernel.GEMM, flops)
    out.node = node
    return out


def _first_of_whole(tape: Tape, run: LayerWorkload, x: Tensor, a: Param, name: str) -> Tensor:
    """Partial low-rank rows [rows, rank] of this rank's columns of `x`; their gradient comes as this rank's columns."""
    (rank, inner), rows, dtype, lead, moved = a.shape, x.numel // x.shape[-1], x.dtype, x.shape[:-1], x.nbytes
    x_needs, flops, tp = needs_grad(x), 2 * rows * a.numel, run.tp

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_a = new(tape, (rank // tp, inner * tp), dtype, "grad_weight", moved, Kernel.GEMM, flops)
        if not x_needs:
            return [None, to_a]
        both = gathered_columns(tape, tp, (rows, rank), dtype, f"grad_{name}.lora_low")
        return [new(tape, (*lead, inner), dtype, f"grad_{name}_lora", both.nbytes, Kernel.GEMM, flops), to_a]

    node = tape.node((x, a), (x, *[a] * x_needs), backward)
    cut = new(tape, (*lead, inner), dtype, f"{name}.lora_input", kernel=Kernel.COPY)
    out = new(tape, (*lead, rank), dtype, f"{name}.lora_a", cut.nbytes, Kernel.GEMM, flops)
    del cut
    out.node = node
    return out


def _all_to_all(tape: Tape, a: Param, name: str) -> Tensor:
    """A, cut along the rank: all columns of this rank's part, copied before and behind the exchange."""
    parts = new(tape, a.shape, a.dtype, f"{name}.lora_a_parts", a.nbytes, Kernel.COPY)
    tape.collective("all_to_all", "tp", parts.nbytes, a.dtype)
    got = tape.empty(a.shape, a.dtype, f"{name}.lora_a_received")
    del parts
    return new(tape, a.shape, a.dtype, f"{name}.lora_a_turned", got.nbytes, Kernel.COPY)


def _second(tape: Tape, run: LayerWorkload, low: Tensor, b: Param, name: str) -> Tensor:
    """Partial outputs [..., n] of partial rows `low`, which are scaled first. See [Note: how DTensor multiplies]."""
    (out_features, own), (*lead, rank), dtype, tp = b.shape, low.shape, low.dtype, run.tp
    rows = low.numel // rank
    scale = tape.node((low,), (), lambda tape, grads, saved: [new(tape, (*lead, own), dtype, "grad_scale")])
    scaled = new(tape, low.shape, dtype, "scale", low.nbytes)
    scaled.node = scale
    del low
    flops = 2 * rows * b.numel

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        to_b = new(tape, (out_features, rank), dtype, "grad_weight", grad.nbytes, Kernel.GEMM, flops * tp)
        return [new(tape, (*lead, own), dtype, "grad_lora_low", grad.nbytes, Kernel.GEMM, flops), to_b]

    node = tape.node((scaled, b), (scaled, b), backward)
    if rows <= out_features:
        held = scatter_columns(tape, tp, scaled, f"{name}.lora_low")
    else:
        own_b = new(tape, (own, out_features), dtype, f"{name}.lora_b_turned", kernel=Kernel.COPY)
        held = tape.empty((rank, out_features), dtype, f"{name}.lora_b_gathered")
        tape.collective("all_gather", "tp", held.nbytes, dtype)
        del own_b
        flops *= tp
    out = new(tape, (*lead, out_features), dtype, f"{name}.lora_b", held.nbytes, Kernel.GEMM, flops)
    del held
    out.node = node
    return out


def own_columns(tape: Tape, run: LayerWorkload) -> None:
    """Puts this rank's columns in the place of gradients that are laid out otherwise, as FSDP2's post-backward does.

    Whole, partial gradients of B are scattered, those of A that are cut along the rank exchanged, others copied.
    Nothing is recorded if tp is 1.
    """
    for place, (param, grad) in enumerate(tape.grads):
        if run.tp > 1 and grad.shape != param.shape:
            made = _laid_out(tape, run, param, grad)
            tape.rename(made.storage, tape.slot(f"{param.name}.grad", param.grad_category))
            tape.grads[place] = (param, made)


def _laid_out(tape: Tape, run: LayerWorkload, param: Param, grad: Tensor) -> Tensor:
    if param.name.endswith(_SECOND):
        return scatter_columns(tape, run.tp, grad, "grad_columns")
    if param.name.endswith(_FIRST):
        return _all_to_all(tape, param, "grad")
    return new(tape, param.shape, grad.dtype, "grad_columns", kernel=Kernel.COPY)
