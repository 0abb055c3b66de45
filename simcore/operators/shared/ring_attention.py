"""Attention under PyTorch's context parallelism: keys and values of all ranks come by, partial results are merged.

torch 2.13 `distributed/tensor/experimental/_context_parallel/_attention.py`: _templated_ring_attention and its
backward, by all-gather (`_cp_options.rotate_method`), balanced from head and tail (`enable_load_balance`), merged and
added up in fp32 (`convert_to_f32`), around one kernel a step.

[Note: the first rank of a ring]
In step i rank r asks with all queries for the first half of rank r - i's keys, or, if i > r, with its second half of
the queries for all keys. The second writes the merged output again in the order of heads, which is copied before it is
projected; every rank but the last does so at least once, so only the last keeps one output less. The recording is that
of the first rank, which does it in every step.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["Ring", "ring_attention"]

Grads = list[Tensor | None]
Shape = tuple[int, ...]


def ring_attention(tape: Tape, run: LayerWorkload, q: Tensor, k: Tensor, v: Tensor, *,
                   by_heads: bool = False) -> Tensor:
    """Causal attention of this rank's `q` [b, s, heads, d] over the sequences of all `run.cp` ranks.

    Returns q's shape. Autograd saves its inputs, the merged output and the fp32 log-sum-exp. The output and the
    gradients are made in the order of heads; the output is then copied to the order of tokens. `by_heads`: `k` and `v`
    lie in the order of heads and are not copied to it.
    """
    ring = Ring(run.cp, (q.shape, k.shape, v.shape), q.dtype, by_heads=by_heads)
    node = tape.node((q, k, v), (q, k, v), lambda tape, grads, saved: ring.backward(tape, grads))
    out, lse = tape.outputs("attention", lambda: ring.forward(tape))
    tape.save(node, out, lse)
    del lse
    out.node = node
    return aten.contiguous(tape, out, "attention_by_token")


class Ring:
    """One call of ring attention: shapes of its tensors and FLOPs of a step of the ring.

    It keeps no tensor, its methods record on a tape. `size`: ranks of the ring; `shapes`: of q, k and v on this rank,
    each [batch, sequence, heads, d]; `by_heads`: k and v lie in the order of heads.
    """

    def __init__(self, size: int, shapes: tuple[Shape, Shape, Shape], dtype: str, *, by_heads: bool = False) -> None:
        self.size, self.dtype, self.by_heads = size, dtype, by_heads
        self.q, self.k, self.v = shapes
        batch, seq, heads, dim = self.q
        self.out, self.lse = (batch, seq, heads, self.v[3]), (batch, seq, heads)
        self.flops = batch * seq * seq * heads * (dim + self.v[3])  # half of the square in every step
        self.joined = (_numel(self.k) + _numel(self.v),)

    # ---- forward ------------------------------------------------------------------------------------------------
    def forward(self, tape: Tape) -> tuple[Tensor, Tensor]:
        """(output in the compute dtype, fp32 log-sum-exp), after the partial results of all ranks are merged."""
        mine: tuple[Tensor, ...] = self.own(tape)
        gathered = self.gather(tape, self.join(tape))
        block = self.attend(tape, self.out, self.lse)
        merged = [self.wide(tape, block), block[1]]
        for step in range(1, self.size):
            if step < self.size - 1:
                self.join(tape)
            mine = ()
            block = self.attend(tape, _half(self.out), _half(self.lse))
            self.merge(tape, merged, self.wide(tape, block))
        out = aten.new(tape, self.out, self.dtype, "attention", merged[0].nbytes)
        del gathered, mine
        return out, merged[1]

    def own(self, tape: Tape) -> tuple[Tensor, ...]:
        """(copy of the keys, copy of the values) of this rank, in the order of heads; nothing if they lie so."""
        if self.by_heads:
            return ()
        key, value = (aten.new(tape, shape, self.dtype, name, kernel=Kernel.COPY)
                      for shape, name in ((self.k, "ring_key"), (self.v, "ring_value")))
        return key, value

    def join(self, tape: Tape) -> Tensor:
        """Copy of this rank's keys and values in one tensor, which can be sent."""
        return aten.new(tape, self.joined, self.dtype, "ring_joined", kernel=Kernel.COPY)

    def gather(self, tape: Tape, joined: Tensor) -> Tensor:
        """All-gathers the joined keys and values over cp.

        Returns those of all ranks, [ranks, elements of one].
        """
        tape.collective("all_gather", "cp", joined.nbytes * self.size, self.dtype)
        return tape.empty((self.size, *self.joined), self.dtype, "ring_gathered")

    def attend(self, tape: Tape, out: Shape, lse: Shape) -> tuple[Tensor, Tensor]:
        """(output of the given shape, fp32 log-sum-exp of shape `lse`) of the attention kernel of one step."""
        return (aten.new(tape, out, self.dtype, "ring_attention", kernel=Kernel.ATTENTION, flops=self.flops,
                         product=shape_of_heads(self.q[3], self.v[3], _numel(out) // out[3])),
                tape.empty(lse, "fp32", "log_sum_exp"))

    def wide(self, tape: Tape, block: tuple[Tensor, Tensor]) -> Tensor:
        """Copy in fp32 of the output of one step; `block` is (output, log-sum-exp)."""
        return aten.new(tape, block[0].shape, "fp32", "ring_part", block[0].nbytes)

    def merge(self, tape: Tape, merged: list[Tensor], part: Tensor) -> None:
        """Merges `part`, a step's fp32 output for half of the queries, into the list `merged`.

        `_SDPAMerger._merge_one`. `merged` is [output, log-sum-exp]; both entries are replaced by new tensors.
        """
        half, rows = part.shape, _half(self.lse)
        _better = _minus_product(tape, half, rows)
        _weights = _minus(tape, rows, _of_difference(tape, rows))
        merged[1] = aten.new(tape, self.lse, "fp32", "log_sum_exp", merged[1].nbytes)
        merged[0] = aten.new(tape, self.out, "fp32", "ring_merged", merged[0].nbytes)

    # ---- backward -----------------------------------------------------------------------------------------------
    def backward(self, tape: Tape, grads: Grads) -> Grads:
        """[gradient of q, of k, of v]; those of k and v are views of one tensor that has visited every rank.

        `grads`: the output's gradient; the list is emptied.
        """
        to_q, *zeros = (aten.new(tape, shape, "fp32", f"ring_grad_{name}")
                        for shape, name in ((self.q, "query"), (self.k, "key"), (self.v, "value")))
        mine: tuple[Tensor, ...] = self.own(tape)
        joined = self.join(tape)
        gathered = self.gather(tape, joined)
        made = self.differentiate(tape, self.q)
        sent = self.flattened(tape)
        received = self.send(tape, sent)
        added, sums = received, None
        for step in range(1, self.size):
            joined = self.join(tape) if step < self.size - 1 else joined
            sums = tape.empty(_half(self.lse), "fp32", "log_sum_exp_half")
            mine = ()
            made = self.differentiate(tape, _half(self.q))
            sent, added, zeros = received, received, []
            sent = self.joined_grads(tape)
            received = self.send(tape, sent)
            to_q = aten.new(tape, self.q, "fp32", "ring_grad_query", to_q.nbytes)
        query = aten.new(tape, self.q, self.dtype, "grad_attention", to_q.nbytes)
        del to_q
        both = aten.new(tape, self.joined, self.dtype, "grad_key_value", received.nbytes)
        del mine, gathered, made, added, sums, zeros, sent
        grads.clear()
        return [query, *(Tensor(both.storage, shape, self.dtype) for shape in (self.k, self.v))]

    def differentiate(self, tape: Tape, q: Shape) -> tuple[Tensor, ...]:
        """Gradients of (queries of shape `q`, keys, values) that the backward kernel of one step makes."""
        made = tuple(tape.empty(shape, self.dtype, "ring_grad_part") for shape in (q, self.k, self.v))
        tape.compute(Kernel.ATTENTION, self.flops * 5 // 2, 3 * sum(x.nbytes for x in made),
                     shape_of_heads(self.q[3], self.v[3], _numel(q) // q[3], backward=True))
        return made

    def flattened(self, tape: Tape) -> Tensor:
        """fp32 gradients of keys and values in one tensor, after the first step of the ring.

        They are copied from the order of tokens to that of heads before they are joined.
        """
        _copies = [aten.new(tape, shape, "fp32", "ring_grad_flat", kernel=Kernel.COPY) for shape in (self.k, self.v)]
        return self.joined_grads(tape)

    def joined_grads(self, tape: Tape) -> Tensor:
        """Copy of the fp32 gradients of keys and values in one tensor, which can be sent."""
        return aten.new(tape, self.joined, "fp32", "ring_grad_sent", kernel=Kernel.COPY)

    def send(self, tape: Tape, sent: Tensor) -> Tensor:
        """Sends `sent` to the next rank.

        Returns the tensor of that size from the previous rank. torch calls an all-to-all whose other parts are empty
        (2.13 `distributed/_functional_collectives.py`, permute_tensor), which is a message of all of it.
        """
        tape.collective("send_recv", "cp", sent.nbytes, "fp32")
        return tape.empty(self.joined, "fp32", "ring_grad_received")


def _of_difference(tape: Tape, rows: Shape) -> Tensor:
    """`f(a - b)` of log-sum-exps."""
    _difference = aten.new(tape, rows, "fp32", "ring_rows")
    return aten.new(tape, rows, "fp32", "ring_rows")


def _minus(tape: Tape, rows: Shape, _weights: Tensor) -> Tensor:
    return aten.new(tape, rows, "fp32", "ring_rows")


def _minus_product(tape: Tape, half: Shape, rows: Shape) -> Tensor:
    """`out - sigmoid(part's rows - rows) * (out - part)`."""
    product = _product(tape, half, rows)
    return aten.new(tape, half, "fp32", "ring_better", product.nbytes)


def _product(tape: Tape, half: Shape, rows: Shape) -> Tensor:
    _weights = _of_difference(tape, rows)
    difference = aten.new(tape, half, "fp32", "ring_difference")
    return aten.new(tape, half, "fp32", "ring_product", difference.nbytes)


def _half(shape: Shape) -> Shape:
    """Half of the tokens."""
    return (shape[0], shape[1] // 2, *shape[2:])


def _numel(shape: Shape) -> int:
    batch, seq, heads, dim = shape
    return batch * seq * heads * dim
