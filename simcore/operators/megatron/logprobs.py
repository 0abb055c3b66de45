"""Log-probabilities in chunks of tokens, in the place of a cross entropy: NeMo RL's policies over Megatron-Core.

NeMo RL 7ea279ab `distributed/model_utils.py` ChunkedDistributedLogprob, over the logits of this rank's vocabulary in
the compute dtype (`defer_fp32_logits`, which upstream asks for: `models/megatron/setup.py` _validate_chunking_config).

[Note: log-probabilities in chunks]
Kept for backward are the logits. At once there are, in bytes per token of a chunk and entry of the vocabulary: forward
12 (fp32 logits, less their maximum, and exponentials or the result), backward 24 (fp32 logits, the softmax, and the
chosen tokens twice as int64: one_hot and its product with the mask). The gradient of all logits is made before the
first chunk. GPTModel returns logits with the batch first: several sequences are copied, both ways.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.fused_logprobs import chunk_rows
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["log_probabilities"]

_ONCE: Final = 6
"""Operators of torch before and after the chunks: five for the mask and the masked targets, and a concatenation."""
_FORWARD: Final = (9, 10)
"""Passes over the fp32 logits of a chunk, and operators: a cast (written), the maximum, a difference, exponentials,
their sum, a difference; the sum is copied for its all-reduce, its logarithm taken, targets are gathered and masked."""
_BACKWARD: Final = (26, 17)
"""The same and exponentials, then one_hot in int64 (zeros, chosen tokens set), times the mask, cast to fp32, less the
softmax, times the gradient, copied into that of all logits."""
_SUMS: Final = 4
"""Bytes of a token in each all-reduce: its maximum, its sum of exponentials, and in forward its log-probability."""


def log_probabilities(c: Context, given: list[Tensor]) -> Tensor:
    """Log-probabilities [tokens, 1] in fp32 of the next tokens; the logits [tokens, this rank's vocabulary] are taken.

    `given`: the list that holds the logits, which is emptied where a copy takes their place.
    """
    logits = _batch_first(c, given)
    rows, vocab = logits.shape

    def back(_tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, vocab, "grad_logits")
        c.tape.compute(Kernel.ELEMENTWISE, 0, grad.nbytes, 1)
        if c.run.cp > 1:
            c.tape.collective("all_reduce", "cp", c.run.cp * 4 * rows, "fp32")
        for chunk in chunk_rows(c):
            _gradient(c, saved[0], chunk)
        return [grad]

    mask, target = c.new(rows, 1, "target_mask", "uint8"), c.new(rows, 1, "masked_target", "int64")
    wide: list[Tensor] = []
    parts = [_forward(c, logits, chunk, wide) for chunk in chunk_rows(c)]
    out = c.new(rows, 1, "log_probabilities", "fp32")
    c.tape.compute(Kernel.ELEMENTWISE, 0, 2 * (out.nbytes + target.nbytes), _ONCE)
    parts.clear()
    wide.clear()
    c.node(out, (logits,), (logits, mask, target), back)
    _gather_sequences(c, out)
    return out


def _batch_first(c: Context, given: list[Tensor]) -> Tensor:
    """`GPTModel._postprocess` without labels: `transpose(0, 1).contiguous()`, a copy of several sequences.

    The pipeline schedule holds what the model returns until the loss is there.
    """
    if c.run.batch == 1:
        return given[0]
    logits = given.pop()

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [grads[0]]

    rows, vocab = logits.shape
    copy = c.new(rows, vocab, "logits_batch_first")
    c.tape.compute(Kernel.COPY, 0, 2 * copy.nbytes, 1)
    c.node(copy, (logits,), (), back)
    c.locals.append(copy)
    return copy


def _forward(c: Context, logits: Tensor, rows: int, wide: list[Tensor]) -> Tensor:
    """Log-probabilities of a chunk. `wide`: its fp32 logits, which a variable holds until those of the next are cut."""
    wide.clear()
    found = _log_softmax(c, logits, rows, wide)
    part = c.new(rows, 1, "chunk_log_probabilities", "fp32")
    del found
    passes, operators = _FORWARD
    _cost(c, logits, rows, passes, 1, operators)
    _reduce(c, rows, 3)
    return part


def _gradient(c: Context, logits: Tensor, rows: int) -> None:
    """Gradient of a chunk, copied into that of all logits."""
    wide: list[Tensor] = []
    found = _log_softmax(c, logits, rows, wide)
    softmax = _fp32(c, logits, rows, "softmax")
    del found
    one_hot = c.new(rows, logits.shape[1], "one_hot", "int64")
    chosen = c.new(rows, logits.shape[1], "is_chosen", "int64")
    del one_hot
    grad = _fp32(c, logits, rows, "chunk_grad")
    passes, operators = _BACKWARD
    _cost(c, logits, rows, passes, 2, operators)
    _reduce(c, rows, 2)
    del softmax, chosen
    wide.clear()
    del grad


def _log_softmax(c: Context, logits: Tensor, rows: int, wide: list[Tensor]) -> Tensor:
    """Log_softmax of a chunk over the vocabulary's parts; `wide` gets its fp32 logits, where they are no view."""
    if logits.dtype != "fp32":
        wide.append(_fp32(c, logits, rows, "chunk_logits"))
    less = _fp32(c, logits, rows, "chunk_less_maximum")
    exponentials = _fp32(c, logits, rows, "chunk_exponentials")
    del exponentials
    found = _fp32(c, logits, rows, "chunk_log_softmax")
    del less
    return found


def _fp32(c: Context, logits: Tensor, rows: int, name: str) -> Tensor:
    return c.new(rows, logits.shape[1], name, "fp32")


def _cost(c: Context, logits: Tensor, rows: int, passes: int, own: int, operators: int) -> None:
    """`passes` over a chunk's entries in fp32, `own` over them in the compute dtype."""
    entries = rows * logits.shape[1]
    c.tape.compute(Kernel.ELEMENTWISE, 4 * entries, entries * (4 * passes + own * c.size), operators)


def _reduce(c: Context, rows: int, count: int) -> None:
    for _ in range(count if c.run.tp > 1 else 0):
        c.tape.collective("all_reduce", "tp", _SUMS * rows, "fp32")


def _gather_sequences(c: Context, out: Tensor) -> None:
    """`allgather_cp_sharded_tensor`: each context-parallel rank gets the log-probabilities of all positions."""
    if c.run.cp > 1:
        c.tape.collective("all_gather", "cp", c.run.cp * out.nbytes, "fp32")
