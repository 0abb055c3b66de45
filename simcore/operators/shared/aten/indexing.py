"""Views, copies, selection and exchange of rows."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.operators.shared.aten.kernels import Grads, Operand, Saved, new, pass_on
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["all_to_all", "cat", "chunk", "contiguous", "embedding", "gather", "index", "index_add", "slice_half",
           "slice_last", "sort", "split", "swap_dims", "topk"]


def contiguous(tape: Tape, x: Tensor, name: str) -> Tensor:
    """A copy in another order; the gradient is a view."""
    node = tape.node((x,), (), pass_on)
    out = new(tape, x.shape, x.dtype, name, x.nbytes, Kernel.COPY)
    out.node = node
    return out


def slice_half(tape: Tape, x: Tensor) -> Tensor:
    """Half of the last dimension."""
    return slice_last(tape, x, x.shape[-1] // 2)


def slice_last(tape: Tape, x: Tensor, size: int) -> Tensor:
    """`size` of the last dimension, a view; its gradient is written into zeros of the whole shape."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_slice")])
    return Tensor(x.storage, (*shape[:-1], size), dtype, node)


def cat(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Concatenation of the last dimension; the gradients are views of one."""
    shapes = (a.shape, b.shape)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [grad.view(*shape) for shape in shapes]

    node = tape.node((a, b), (), backward)
    out = new(tape, (*a.shape[:-1], a.shape[-1] + b.shape[-1]), a.dtype, "cat", a.nbytes + b.nbytes)
    out.node = node
    return out


def swap_dims(tape: Tape, x: Tensor, name: str) -> Tensor:
    """`x.transpose(...).reshape(...)`: a copy each way."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (),
                     lambda tape, grads, saved: [new(tape, shape, dtype, name, num_bytes, Kernel.PERMUTE)])
    out = new(tape, shape, dtype, name, num_bytes, Kernel.PERMUTE)
    out.node = node
    return out


def topk(tape: Tape, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest and their indices (saved)."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    values = new(tape, (*shape[:-1], k), dtype, "topk", x.nbytes, flops=x.numel)
    indices = tape.empty(values.shape, "int64", "topk_indices")
    tape.save(node, indices)
    values.node = node
    return values, indices


def _scatter(tape: Tape, shape: tuple[int, ...], dtype: str) -> Grads:
    """A gradient scattered into zeros, out of place."""
    zeros = new(tape, shape, dtype, "zeros")
    return [new(tape, shape, dtype, "grad_scatter", zeros.nbytes, Kernel.PERMUTE)]


def gather(tape: Tape, x: Tensor, indices: Tensor, name: str = "gather") -> Tensor:
    """`x.gather(-1, indices)`; the indices are saved."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (indices,), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    out = new(tape, indices.shape, dtype, name, 2 * indices.nbytes, Kernel.PERMUTE)
    out.node = node
    return out


def index(tape: Tape, x: Operand, rows: Tensor, name: str = "index") -> Tensor:
    """`x[rows]`; the row numbers are saved."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (rows,), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    out = tape.empty((*rows.shape, *shape[1:]), dtype, name)
    tape.compute(Kernel.PERMUTE, 0, 2 * out.nbytes)
    out.node = node
    return out


def index_add(tape: Tape, into: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """`into.index_add(0, rows, x)` of constants `into`; `x` is saved too, for its shape."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (rows, x),
                     lambda tape, grads, saved: [new(tape, shape, dtype, "grad_index_add", num_bytes, Kernel.PERMUTE)])
    out = new(tape, into.shape, dtype, "index_add", into.nbytes + num_bytes, Kernel.PERMUTE)
    out.node = node
    return out


def chunk(tape: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Two halves of the last dimension, views of one node; their gradients are concatenated (`split_backward`)."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_chunk", num_bytes)])
    half = (*shape[:-1], shape[-1] // 2)
    return Tensor(x.storage, half, dtype, node), Tensor(x.storage, half, dtype, node, 1)


def split(tape: Tape, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Two parts of the last dimension, views of one node; their gradients are concatenated."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_split", num_bytes)])
    first, second = ((*shape[:-1], size) for size in sizes)
    return Tensor(x.storage, first, dtype, node), Tensor(x.storage, second, dtype, node, 1)


def sort(tape: Tape, x: Tensor) -> Tensor:
    """`x.argsort()` of indices: the sorted values are dropped."""
    values = new(tape, x.shape, "int64", "sort", x.nbytes, Kernel.PERMUTE)
    return tape.empty(values.shape, "int64", "order")


def all_to_all(tape: Tape, x: Tensor, rows: int, axis: str) -> Tensor:
    """Rows to the ranks that want them; `rows` arrive. Backward sends them home."""
    shape, dtype = x.shape, x.dtype

    def send(tape: Tape, shape: tuple[int, ...], name: str) -> Tensor:
        out = tape.empty(shape, dtype, name)
        tape.collective("all_to_all", axis, out.nbytes, dtype)
        return out

    node = tape.node((x,), (), lambda tape, grads, saved: [send(tape, shape, "grad_all_to_all")])
    out = send(tape, (rows, *shape[1:]), "all_to_all")
    out.node = node
    return out


def embedding(tape: Tape, weight: Param, batch: int, seq: int, *, grad_rows: int = 0) -> Tensor:
    """Embedding lookup: one row of the table for each of batch x seq indices, which the data loader allocated.

    `grad_rows`: rows of the weight's gradient where they differ from the table's, else 0 (torchtitan: those of the
    whole table, which tp cuts).
    """
    shape, dtype = (grad_rows or weight.shape[0], weight.shape[1]), weight.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, dtype, "grad_weight", batch * seq * shape[1] * dtype_bytes(dtype), Kernel.EMBEDDING)]

    node = tape.node((weight,), (), backward)
    out = tape.empty((batch, seq, shape[1]), dtype, "embedding")
    tape.compute(Kernel.EMBEDDING, 0, 2 * out.nbytes)
    out.node = node
    return out
