"""Attention under context parallelism: keys and values around a ring, or positions for heads (cp_comm_type).

TransformerEngine 2.8 and 2.18 `pytorch/attention/dot_product_attention/context_parallel.py`: AttnFuncWithCPAndKVP2P,
AttnFuncWithCPAndQKVOA2A with flash_attn_a2a_communicate.

[Note: positions for heads]
With a2a each rank sends of each of query, key and value the heads of every other rank, and gets all positions of its
own; afterwards the output goes back. One all-to-all a tensor; a copy before it puts heads apart, another behind it puts
positions in order, since a rank has one piece from the start of the sequence and one from its end. Of tensors that are
exchanged together all copies but the first and the last run beside messages of others, and cost the host alone.
Backward sends the gradient of the output, and back those of query, key and value. In 8 bits the messages are of a byte
an element.

With a2a+p2p neighbours exchange heads (hierarchical_context_parallel_sizes: so many, and so many around a ring), then
those that have the same heads send keys and values around a ring. Until TransformerEngine 2.14 backward exchanges the
output too, since what is kept is what was handed on; from 2.15 on the kernel's own output is kept.

[Note: steps of a ring]
Each rank goes through as many steps as there are ranks. In each a kernel sees the keys of one of them, of equal work:
the diagonal first, then all keys with half of the queries, or half of the keys with all queries. Meanwhile keys and
values go on to the next rank (`timing/rings.py`); backward sends their gradients too, but for the first step, and alone
in the last. Kernels of two steps are on two streams, so that the tail of one is filled by the next: the waves counted
are those of one kernel. All keys that came by, and all outputs of steps, are there until the last step. Statistics of
the softmax are merged step by step, and at the end outputs: compiled functions, one each. Backward adds up gradients by
operators of torch, beside two buffers of keys, values and their gradients. In 8 bits a step's results are widened to
fp32 before. Recorded is the first rank, which has half of the queries from the second step on; the last adds twice the
outputs and half of the gradients of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simcore.operators.megatron.ops.context import Context
from simcore.recording.tape import Kernel, Tensor

__all__ = ["Work", "attend", "differentiate", "send_gradient"]


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a rank's attention: its kernel, FLOPs and shape, and bytes of each tensor.

    `shape`: as `shape_of_heads` packs it. `parts`: bytes of query, key and value, in backward of their gradients. Of
    forward `out`: of the output as its kernel writes it, `rows`: of the softmax's statistics, fp32. `others`: that the
    kernel of backward moves.
    """

    kernel: Kernel
    flops: int
    shape: int
    parts: tuple[int, int, int]
    out: int = 0
    rows: int = 0
    others: int = 0

    @property
    def keys(self) -> int:
        """Bytes of key and value."""
        return self.parts[1] + self.parts[2]


def attend(c: Context, work: Work) -> None:
    """Records the kernels of attention's forward pass, and what ranks of context parallelism send around it."""
    _swap(c, work.parts)
    if _ranks(c)[1] > 1:
        _ring(c, work)
    else:
        c.tape.compute(work.kernel, work.flops, work.parts[0] + work.keys + work.out, work.shape)
    _swap(c, (work.out,))


def differentiate(c: Context, work: Work) -> None:
    """Records the kernels of attention's backward pass, and the messages of the gradients that it makes."""
    if _ranks(c)[1] > 1:
        _ring_backward(c, work)
    else:
        c.tape.compute(work.kernel, work.flops, work.others, work.shape)
    _swap(c, work.parts)


def send_gradient(c: Context, size: int) -> None:
    """Records the message of the output's gradient, of so many bytes on a rank; a ring alone sends none."""
    again = _ranks(c)[1] > 1 and c.options.sends_output_again
    _swap(c, (size, size) if again else (size,))


def _ranks(c: Context) -> tuple[int, int]:
    """(ranks that exchange heads, ranks of a ring), each 1 where there is no such exchange."""
    return c.options.exchange(c.run.cp)


def _swap(c: Context, parts: Sequence[int]) -> None:
    """Records the messages of tensors of `parts` bytes that are exchanged together, see [Note: positions for heads]."""
    heads, ring = _ranks(c)
    if heads == 1:
        return
    axis, first, last = "cp" if ring == 1 else f"cp/{heads}", parts[0], parts[-1]
    c.tape.compute(Kernel.COPY, first, 2 * first, 1)
    for size in parts:
        c.tape.collective("all_to_all", axis, size, c.dtype)
    c.tape.compute(Kernel.ELEMENTWISE, last, 2 * last, 2 * len(parts) - 1)


# ---- around a ring --------------------------------------------------------------------------------------------------
def _ring(c: Context, work: Work) -> None:
    """Forward of [Note: steps of a ring]. Key and value are put into one tensor first, which can be sent."""
    tape, wide = c.tape, _wide(c, work)
    steps, axis = _around(c)
    received = [tape.empty((work.keys,), "uint8", "ring_keys")]
    tape.compute(Kernel.COPY, work.keys, 2 * work.keys, 1)
    made: list[Tensor] = []
    for step in range(steps):
        share = 2 if step else 1
        if step < steps - 1:
            received.append(tape.empty((work.keys,), "uint8", "ring_keys"))
            tape.collective("send_recv", axis, work.keys, c.dtype)
        made.append(tape.empty((wide * work.out // share,), "uint8", "ring_out"))
        moved = (work.parts[0] + work.out) // share + work.keys
        tape.compute(work.kernel, work.flops // steps, moved, work.shape)
        if wide > 1:
            tape.compute(Kernel.ELEMENTWISE, work.out, (1 + wide) * work.out // share, 1)
        tape.compute(Kernel.ELEMENTWISE, work.rows, (2 if step == 0 else 3) * work.rows // share, 1)
    for step in range(steps):
        share = 2 if step else 1
        tape.compute(Kernel.ELEMENTWISE, work.out, (3 if step else 2) * wide * work.out // share, 1)
    made.clear()
    received.clear()


def _ring_backward(c: Context, work: Work) -> None:
    """Backward of [Note: steps of a ring], last step first: the diagonal is the last."""
    tape, wide = c.tape, _wide(c, work)
    steps, axis = _around(c)
    query, keys = work.parts[0], work.keys
    buffers = [tape.empty((3 * wide * keys,), "uint8", "ring_buffers")]
    tape.compute(Kernel.COPY, keys, 2 * keys, 1)
    for step in range(steps):
        first, last = step == 0, step == steps - 1
        tape.collective("send_recv", axis, keys * (1 if first or last else 2), c.dtype)
        share = 1 if last else 2
        _made = tape.empty((wide * (query // share + keys),), "uint8", "ring_grads")
        tape.compute(work.kernel, work.flops // steps, work.others // share, work.shape)
        if wide > 1:
            tape.compute(Kernel.ELEMENTWISE, query + keys, (1 + wide) * (query // share + keys), 3)
        halves = (2, 4) if first else (5, 5) if last else (3, 6)  # moved of the query's gradient, and of the keys'
        tape.compute(Kernel.ELEMENTWISE, query, halves[0] * wide * query // 2, 2 if last else 1)
        tape.compute(Kernel.ELEMENTWISE, keys, halves[1] * wide * keys // 2, 4 if last else 2)
        del _made
    buffers.clear()


def _around(c: Context) -> tuple[int, str]:
    """Steps of a ring, and the mesh axis on which its ranks lie: apart where neighbours exchange heads."""
    heads, steps = _ranks(c)
    return steps, "cp" if heads == 1 else f"cp%{heads}"


def _wide(c: Context, work: Work) -> int:
    """Times the bytes of a kernel's result that its sum over steps has: in 8 bits sums are fp32."""
    return 2 if work.kernel == Kernel.FP8_ATTENTION else 1
