"""Views, copies, selection and exchange of rows."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.operators.shared.aten.kernels import Grads, Operand, Saved, new, pass_on
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["all_to_all", "cat", "chunk", "contiguous", "embedding", "gather", "index", "index_add", "slice_half",
           "slice_last", "sort", "split", "swap_dims", "topk"]


def contiguous(tape: Tape, x: Tensor, name: str) -> Tensor:
    """Copy of `x` in another memory order; the output's gradient, unchanged, is the input's.

    `name`: of the copy's storage.
    """
    node = tape.node((x,), (), pass_on)
    out = new(tape, x.shape, x.dtype, name, x.nbytes, Kernel.COPY)
    out.node = node
    return out


def slice_half(tape: Tape, x: Tensor) -> Tensor:
    """View of the first half of the last dimension.

    Backward writes the gradient into zeros of the full shape.
    """
    return slice_last(tape, x, x.shape[-1] // 2)


def slice_last(tape: Tape, x: Tensor, size: int) -> Tensor:
    """View of the first `size` entries of the last dimension.

    Backward writes the gradient into zeros of the full shape.
    """
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_slice")])
    return Tensor(x.storage, (*shape[:-1], size), dtype, node)


def cat(tape: Tape, *parts: Tensor) -> Tensor:
    """Concatenation of `parts`, at least one, along the last dimension, in a new tensor.

    All gradients are views of the output's.
    """
    shapes = [part.shape for part in parts]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        return [grad.view(*shape) for shape in shapes]

    node = tape.node(parts, (), backward)
    shape = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
    out = new(tape, shape, parts[0].dtype, "cat", sum(part.nbytes for part in parts))
    out.node = node
    return out


def swap_dims(tape: Tape, x: Tensor, name: str) -> Tensor:
    """`x.transpose(...).reshape(...)`: a copy of `x` in another order, recorded with the shape of `x`.

    Backward copies the gradient back. `name`: name of both copies.
    """
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (),
                     lambda tape, grads, saved: [new(tape, shape, dtype, name, num_bytes, Kernel.PERMUTE)])
    out = new(tape, shape, dtype, name, num_bytes, Kernel.PERMUTE)
    out.node = node
    return out


def topk(tape: Tape, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(the `k` largest entries of the last dimension, their int64 indices); the node saves the indices.

    Both have the shape of `x` with `k` as the last dimension. Backward scatters the gradient into zeros.
    """
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
    """`x.gather(-1, indices)`: a tensor with the shape of `indices` and the type of `x`.

    The node saves the indices.
    """
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (indices,), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    out = new(tape, indices.shape, dtype, name, 2 * indices.nbytes, Kernel.PERMUTE)
    out.node = node
    return out


def index(tape: Tape, x: Operand, rows: Tensor, name: str = "index") -> Tensor:
    """`x[rows]`: the selected rows of `x` as a new tensor; the node saves the row numbers `rows`."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (rows,), lambda tape, grads, saved: _scatter(tape, shape, dtype))
    out = tape.empty((*rows.shape, *shape[1:]), dtype, name)
    tape.compute(Kernel.PERMUTE, 0, 2 * out.nbytes)
    out.node = node
    return out


def index_add(tape: Tape, into: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """`into.index_add(0, rows, x)`: a new tensor like `into`, which gets no gradient.

    Autograd saves the row numbers `rows`, and `x` for its shape.
    """
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (rows, x),
                     lambda tape, grads, saved: [new(tape, shape, dtype, "grad_index_add", num_bytes, Kernel.PERMUTE)])
    out = new(tape, into.shape, dtype, "index_add", into.nbytes + num_bytes, Kernel.PERMUTE)
    out.node = node
    return out


def chunk(tape: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Two equal halves of the last dimension, as views of one node.

    Backward concatenates their gradients (`split_backward`).
    """
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_chunk", num_bytes)])
    half = (*shape[:-1], shape[-1] // 2)
    return Tensor(x.storage, half, dtype, node), Tensor(x.storage, half, dtype, node, 1)


def split(tape: Tape, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Parts of the last dimension with the given `sizes`, as views of one node.

    Backward concatenates their gradients.
    """
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_split", num_bytes)])
    return tuple(Tensor(x.storage, (*shape[:-1], size), dtype, node, at) for at, size in enumerate(sizes))


def sort(tape: Tape, x: Tensor) -> Tensor:
    """`x.argsort()` of integers: an int64 tensor with the shape of `x`.

    The sorted values are freed, no gradient flows.
    """
    values = new(tape, x.shape, "int64", "sort", x.nbytes, Kernel.PERMUTE)
    return tape.empty(values.shape, "int64", "order")


def all_to_all(tape: Tape, x: Tensor, rows: int, axis: str) -> Tensor:
    """Exchange of rows over mesh axis `axis`: returns the `rows` rows that this rank receives.

    Backward sends them back.
    """
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
    """Embedding lookup: returns [batch, seq, width], one row of `weight` for each index.

    The data loader has allocated the indices. `grad_rows`: number of rows of the weight's gradient where it differs
    from the weight's, else 0 (torchtitan: those of the whole table, which tensor parallelism cuts).
    """
    shape, dtype = (grad_rows or weight.shape[0], weight.shape[1]), weight.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, dtype, "grad_weight", batch * seq * shape[1] * dtype_bytes(dtype), Kernel.EMBEDDING)]

    node = tape.node((weight,), (), backward)
    out = tape.empty((batch, seq, shape[1]), dtype, "embedding")
    tape.compute(Kernel.EMBEDDING, 0, 2 * out.nbytes)
    out.node = node
    return out
