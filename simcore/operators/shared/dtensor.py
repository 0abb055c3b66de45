"""DTensor's part in tensor parallel plans: sequences gathered, scattered and cut, sums over tp.

Measured on torch 2.13 (`distributed/tensor/_redistribute.py`, `_functional_collectives.py`): a gather along dimension 1
comes in rank order and is concatenated into another tensor, unless there is one sequence; a scatter copies first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["cut_columns", "cut_sequence", "gather_columns", "gather_last", "gather_sequence", "gathered_columns",
           "own_rows", "own_sequence", "same_everywhere", "scatter_columns", "scatter_sequence", "sum_everywhere",
           "sum_norms", "sum_partial", "summed", "whole_columns", "whole_gradient"]

Grads = list[Tensor | None]


def gather_sequence(tape: Tape, run: LayerWorkload, x: Tensor, name: str, made: Tensor | None = None) -> Tensor:
    """All-gathers a sequence over tp: `x` [b, s / tp, k] becomes [b, s, k] on every rank.

    `x` itself if tp is 1. `name`: part of the new storages' names. Backward sums the gradients over tp and scatters
    them. `made`: x as it was gathered before, which is used again instead of another all-gather (as a compiler does);
    each use still scatters a gradient.
    """
    if run.tp == 1:
        return x
    tp = run.tp
    node = tape.node((x,), (), lambda tape, grads, saved: [_scatter(tape, tp, _only(grads), f"grad_{name}")])
    out = _gather(tape, tp, x, name) if made is None else Tensor(made.storage, made.shape, made.dtype)
    out.node = node
    return out


def scatter_sequence(tape: Tape, run: LayerWorkload, x: Tensor, name: str) -> Tensor:
    """Reduce-scatters partial sums over tp: `x` [b, s, k] becomes [b, s / tp, k]; `x` itself if tp is 1.

    Backward all-gathers the gradient. `name`: part of the new storages' names.
    """
    if run.tp == 1:
        return x
    tp = run.tp
    node = tape.node((x,), (), lambda tape, grads, saved: [_gather(tape, tp, _only(grads), f"grad_{name}")])
    out = _scatter(tape, tp, x, name)
    out.node = node
    return out


def same_everywhere(tape: Tape, x: Tensor, name: str) -> Tensor:
    """View of `x`, which is equal on all tp ranks.

    Each rank computes another gradient, so backward all-reduces it over tp into a tensor `grad_{name}`.
    """
    node = tape.node((x,), (), lambda tape, grads, saved: [summed(tape, _only(grads), f"grad_{name}")])
    return Tensor(x.storage, x.shape, x.dtype, node)


def sum_everywhere(tape: Tape, x: Tensor, name: str) -> Tensor:
    """All-reduces partial sums `x` over tp into a new tensor `name`, in x's shape.

    The output's gradient, unchanged, is the input's.
    """
    node = tape.node((x,), (), lambda tape, grads, saved: [_only(grads)])
    out = summed(tape, x, name)
    out.node = node
    return out


def cut_sequence(tape: Tape, run: LayerWorkload, x: Tensor, name: str) -> Tensor:
    """Cuts `x` [b, s, k], equal on all tp ranks, to this rank's [b, s / tp, k], as the input of a module.

    Backward all-gathers the gradient. The gradient that `x` has from `own_sequence` by then is of a part only: so this
    one is cut again, and both are added. `name`: part of the new storages' names.
    """
    leaf, tp, shape = x.node, run.tp, x.shape
    if leaf is None:  # nothing below is trained, or no gradient is asked for, as of a reference model
        return _part(tape, tp, Tensor(x.storage, shape, x.dtype), name)

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        _whole = _gather(tape, tp, _only(grads), f"grad_{name}")
        grads.clear()
        return [tape.add_grads(leaf.grads.pop(0), _part(tape, tp, _whole, f"grad_{name}"))]

    node = tape.node((x,), (), backward)
    out = _part(tape, tp, Tensor(x.storage, shape, x.dtype), name)
    out.node = node
    return out


def own_sequence(tape: Tape, run: LayerWorkload, x: Tensor, name: str) -> Tensor:
    """Copies this rank's [b, s / tp, k] out of `x` [b, s, k] inside an operator of DTensors.

    The gradient stays a part. `name`: part of the copy's name.
    """
    out = _part(tape, run.tp, x, name)
    out.node = x.node
    return out


def whole_gradient(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """View of `x` [b, s, k], a plain tensor equal on all tp ranks, as this rank's [b, s / tp, k].

    Backward all-gathers the gradient over tp.
    """
    tp, (batch, seq, *rest) = run.tp, x.shape
    node = tape.node((x,), (), lambda tape, grads, saved: [_gather(tape, tp, _only(grads), "grad_embedding")])
    return Tensor(x.storage, (batch, seq // tp, *rest), x.dtype, node)


def gather_last(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """All-gathers the last dimension over tp: `x` [..., k] becomes [..., k * tp] on every rank.

    Backward copies this rank's part out of the gradient. The result is named `logits`.
    """
    shape, dtype, tp = x.shape, x.dtype, run.tp

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        return [aten.new(tape, shape, dtype, "grad_logits_part", kernel=Kernel.COPY)]

    node = tape.node((x,), (), backward)
    tape.collective("all_gather", "tp", x.nbytes * tp, dtype)
    whole = tape.empty((tp, *shape), dtype, "logits_gathered")
    out = aten.new(tape, (*shape[:-1], shape[-1] * tp), dtype, "logits", whole.nbytes, Kernel.COPY)
    out.node = node
    return out


def gather_columns(tape: Tape, run: LayerWorkload, x: Tensor, name: str) -> Tensor:
    """All-gathers the last dimension over tp: `x` [..., k] becomes [..., k * tp], named `name`, on every rank.

    Backward sums the gradients, partial sums, and scatters them.
    """
    tp = run.tp
    node = tape.node((x,), (), lambda tape, grads, saved: [scatter_columns(tape, tp, _only(grads), f"grad_{name}")])
    out = gathered_columns(tape, tp, (*x.shape[:-1], x.shape[-1] * tp), x.dtype, name)
    out.node = node
    return out


def gathered_columns(tape: Tape, tp: int, shape: tuple[int, ...], dtype: str, name: str) -> Tensor:
    """Tensor of `shape` whose last dimension is gathered over tp: parts in rank order, then side by side."""
    parts = tape.empty(shape, dtype, f"{name}_gathered")
    tape.collective("all_gather", "tp", parts.nbytes, dtype)
    return aten.new(tape, shape, dtype, name, parts.nbytes, Kernel.COPY)


def cut_columns(tape: Tape, run: LayerWorkload, x: Tensor, name: str) -> Tensor:
    """Copies this rank's [..., k / tp] out of `x` [..., k], equal on all tp ranks.

    Backward all-gathers the gradient.
    """
    tp, shape, dtype = run.tp, x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [gathered_columns(tape, tp, shape, dtype, f"grad_{name}")])
    out = aten.new(tape, (*shape[:-1], shape[-1] // tp), dtype, name, kernel=Kernel.COPY)
    out.node = node
    return out


def whole_columns(tape: Tape, run: LayerWorkload, x: Tensor, name: str) -> Tensor:
    """All-gathers the last dimension over tp: `x` [..., k] becomes [..., k * tp], named `name`, on every rank.

    Backward copies this rank's columns out of the gradient, which is equal on all ranks.
    """
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, f"grad_{name}_part", kernel=Kernel.COPY)])
    out = gathered_columns(tape, run.tp, (*shape[:-1], shape[-1] * run.tp), dtype, name)
    out.node = node
    return out


def scatter_columns(tape: Tape, tp: int, x: Tensor, name: str) -> Tensor:
    """Reduce-scatters partial sums `x` [..., k] over tp: this rank's [..., k / tp], without a gradient."""
    _pieces = aten.new(tape, x.shape, x.dtype, f"{name}_pieces", x.nbytes, Kernel.COPY)
    tape.collective("reduce_scatter", "tp", x.nbytes, x.dtype)
    return tape.empty((*x.shape[:-1], x.shape[-1] // tp), x.dtype, f"{name}_scattered")


def summed(tape: Tape, x: Tensor, name: str) -> Tensor:
    """All-reduces `x` over tp (sum or maximum) without a gradient.

    Returns a new tensor `name` with its shape and type.
    """
    tape.collective("all_reduce", "tp", x.nbytes, x.dtype)
    return tape.empty(x.shape, x.dtype, name)


def sum_partial(tape: Tape, run: LayerWorkload, names: Collection[str]) -> None:
    """Records all-reduces over tp of the gradients of parameters with these names, of which each rank made a part.

    FSDP2's post-backward sums them before it reduces gradients, in the order of the layer's parameters. Nothing is
    recorded if tp is 1.
    """
    if run.tp > 1:
        _replace(tape, lambda grad: summed(tape, grad, "grad_part"), list(run.params), names)


def sum_norms(tape: Tape, run: LayerWorkload) -> None:
    """Records all-reduces over tp of the gradients of 1-D parameters (norms).

    Their norms saw only a part of each sequence, those of heads only a part of the heads; FSDP2's post-backward sums
    them before it reduces gradients, in the order of the layer's parameters. Nothing is recorded if tp is 1.
    """
    sum_partial(tape, run, [name for name, param in run.params.items() if len(param.shape) == 1])


def own_rows(tape: Tape, run: LayerWorkload) -> None:
    """Replaces the embedding's gradient of all rows by a copy of this rank's rows.

    FSDP2's post-backward does so. Nothing is recorded if tp is 1.
    """
    if run.tp > 1:
        shape = next((param.shape for param, _ in tape.grads), ())
        _replace(tape, lambda grad: aten.new(tape, shape, grad.dtype, "grad_rows", kernel=Kernel.COPY),
                 list(run.params), run.params)


def _replace(tape: Tape, make: Callable[[Tensor], Tensor], order: Sequence[str], names: Collection[str]) -> None:
    """Puts what `make` returns in the place of each gradient of `names`, by the parameters' `order` (names)."""
    for place, (param, grad) in sorted(enumerate(tape.grads), key=lambda made: order.index(made[1][0].name)):
        if param.name not in names:
            continue
        made = make(grad)
        tape.rename(made.storage, tape.slot(f"{param.name}.grad", param.grad_category))
        tape.grads[place] = (param, made)


def _only(grads: Grads) -> Tensor:
    (grad,) = grads
    assert grad is not None
    return grad


def _part(tape: Tape, tp: int, x: Tensor, name: str) -> Tensor:
    """This rank's part of the sequence, copied."""
    batch, seq, *rest = x.shape
    return aten.new(tape, (batch, seq // tp, *rest), x.dtype, f"{name}_part", x.nbytes // tp, Kernel.COPY)


def _gather(tape: Tape, tp: int, x: Tensor, name: str) -> Tensor:
    batch, seq, *rest = x.shape
    tape.collective("all_gather", "tp", x.nbytes * tp, x.dtype)
    out = tape.empty((batch, seq * tp, *rest), x.dtype, f"{name}_gathered")
    return out if batch == 1 else aten.new(tape, out.shape, x.dtype, f"{name}_gathered", out.nbytes, Kernel.COPY)


def _scatter(tape: Tape, tp: int, x: Tensor, name: str) -> Tensor:
    """A selective checkpoint may keep the result; the copy before it is made again."""
    batch, seq, *rest = x.shape
    num_bytes, dtype = x.nbytes, x.dtype

    def send() -> tuple[Tensor]:
        tape.collective("reduce_scatter", "tp", num_bytes, dtype)
        return (tape.empty((batch, seq // tp, *rest), dtype, f"{name}_scattered"),)

    _pieces = aten.new(tape, x.shape, dtype, f"{name}_pieces", num_bytes, Kernel.COPY)
    (out,) = tape.outputs("reduce_scatter", send)
    return out
