"""torchtune's loss in chunks of logits (bd2a0fc7 `modules/loss/ce_chunked_output_loss.py`), as its recipes compile it.

`modules/transformer.py` chunked_output makes the logits of all chunks first. Each chunk's cross entropy is compiled
(`apply_compile_strategy`): it casts to fp32 in registers, keeps the chunk's logits as they came and makes a gradient of
their own dtype. Measured with torch 2.13 and inductor on a CPU (`tests/truth/probe_chunked_loss.py`): backward runs
all chunks' losses before the first product; the second chunk's weight gradient is added to the first in a new tensor,
further ones in place.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["CHUNKS", "chunked_loss"]

CHUNKS: Final = 8
"""num_output_chunks."""


def chunked_loss(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of the head's input `hidden`, with logits in `CHUNKS` chunks of tokens.

    The head has no adapter.
    """
    weight, dtype, moved = run.params["weight"], hidden.dtype, hidden.nbytes + run.params["weight"].nbytes
    needs, rows = (aten.needs_grad(hidden), weight.trainable), _rows(run.tokens)
    products = 2 * weight.numel

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made = []
        for size in reversed(rows):
            made.append(aten.new(tape, (size, weight.shape[0]), dtype, "chunk_grad_logits", 0, Kernel.LOSS))
            saved.pop()
        to_weight, parts = None, []
        for size in reversed(rows):
            grad = made.pop(0)
            if needs[0]:
                parts.append(aten.new(tape, (size, weight.shape[1]), dtype, "chunk_grad_hidden", grad.nbytes,
                                      Kernel.GEMM, products * size))
            if needs[1]:
                part = aten.new(tape, weight.shape, dtype, "chunk_grad_weight", grad.nbytes, Kernel.GEMM,
                                products * size)
            del grad
            if needs[1]:
                to_weight = _summed(tape, to_weight, part, is_second=len(made) == len(rows) - 2)
                del part
        to_hidden = aten.new(tape, hidden.shape, dtype, "grad_hidden") if needs[0] else None
        return [to_hidden, to_weight]

    labels = aten.new(tape, (run.tokens,), "int64", "labels")
    logits = [aten.new(tape, (size, weight.shape[0]), dtype, "chunk_logits", moved, Kernel.GEMM, products * size)
              for size in rows]
    node = tape.node((hidden, weight), (hidden, weight, labels, *logits), backward)
    tape.compute(Kernel.LOSS, 3 * sum(rows) * weight.shape[0], sum(one.nbytes for one in logits))
    del logits, labels
    out = aten.new(tape, (), "fp32", "loss", 4 * run.tokens, Kernel.LOSS)
    out.node = node
    return out


def _rows(tokens: int) -> list[int]:
    """torch.tensor_split: the first ones have one row more."""
    size, more = divmod(tokens, CHUNKS)
    return [rows for rows in (size + (at < more) for at in range(CHUNKS)) if rows]


def _summed(tape: Tape, total: Tensor | None, part: Tensor, *, is_second: bool) -> Tensor:
    """In torch 2.13 `csrc/autograd/input_buffer.cpp`: in place where no other reference to the sum exists."""
    if total is None:
        return part
    if is_second:
        return tape.add_grads(total, part)
    tape.compute(Kernel.ELEMENTWISE, part.numel, 3 * part.nbytes, 1)
    return total
