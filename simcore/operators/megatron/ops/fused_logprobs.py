"""Log-probabilities that are fused with the head: NeMo RL's policies over Megatron-Core, without logits of all tokens.

NeMo RL 7ea279ab `distributed/model_utils.py` ChunkedDistributedHiddenStatesToLogprobs, in the place of GPTModel's head
(`fused_linear_logprobs_chunk_size`, `use_fused_linear_logprobs`).

[Note: fused with the head]
A chunk's logits are made of the gathered hidden states and the weight, cast to fp32, and become log-probabilities; in
backward once more. Kept are the hidden states of this rank, a copy of them where tp splits them. The weight's gradient
is summed over chunks in the weight's format; each chunk casts the weight to fp32 and makes a gradient of it in fp32,
twice at once with its transpose, or with that of the chunk before. Variables of a chunk live until the next chunk's are
there (`tests/truth/probe_fused_logprobs.py`). Gradients of the hidden states are fp32 until the engine casts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.models.blocks import Head
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["FUSED", "chunk_rows", "fused_log_probabilities", "loss_of_log_probabilities"]

FUSED: Final = "fused_log_probs"
"""Name of the loss, as `training.loss` has it."""
_FORWARD: Final = (9, 10)
_BACKWARD: Final = (26, 17)
"""Passes over the fp32 logits of a chunk, and operators (`logprobs.py`)."""
_SUMS: Final = 4
"""Bytes of a token in each all-reduce."""


def fused_log_probabilities(c: Context, block: Head, x: Tensor) -> Tensor:
    """Log-probabilities [tokens, 1] in fp32 of the next tokens, of the hidden state `x` [local tokens, hidden]."""
    name = "embedding.word_embeddings.weight" if block.tied and "output_layer.weight" not in c.run.params else \
        "output_layer.weight"
    weight, is_split, hidden = c.param(name), c.local != c.tokens, block.hidden
    vocab = weight.shape[0]

    def back(_tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        parts, full = _gathered(c, saved[0], hidden) if is_split else (None, None)
        to_weight = c.tape.empty(weight.shape, weight.dtype, f"{weight.name}.grad") if weight.trainable else None
        of_hidden = _chunk_gradients(c, vocab, hidden)
        total = c.new(c.tokens, hidden, "grad_hidden_total", "fp32")
        local = c.new(c.local, hidden, "grad_hidden_fp32", "fp32")
        if is_split:
            c.tape.collective("reduce_scatter", "tp", total.nbytes, "fp32")
        del of_hidden, total, parts, full
        grad = c.new(c.local, hidden, "grad_final_norm")
        c.tape.compute(Kernel.ELEMENTWISE, 0, local.nbytes + grad.nbytes, 1)
        del local
        return [grad, to_weight]

    mask, target = c.new(c.tokens, 1, "target_mask", "uint8"), c.new(c.tokens, 1, "masked_target", "int64")
    kept = c.new(c.local, hidden, "hidden_clone") if is_split else x
    parts, full = _gathered(c, x, hidden) if is_split else (None, None)
    found = _chunks_forward(c, vocab, hidden)
    out = c.new(c.tokens, 1, "hidden_states", "fp32")
    if c.run.tp > 1:
        c.tape.collective("all_reduce", "tp", _SUMS * c.tokens, "fp32")
    del found, parts, full
    c.node(out, (x, weight), (kept, mask, target), back)
    return out


def loss_of_log_probabilities(c: Context, log_probs: Tensor) -> Tensor:
    """Loss [tokens, 1] in fp32 of log-probabilities [tokens, 1]."""
    rows = log_probs.shape[0]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, 1, "grad_logits", "fp32")
        c.tape.compute(Kernel.ELEMENTWISE, 0, 2 * grad.nbytes, 1)
        return [grad]

    out = c.new(rows, 1, "loss", "fp32")
    c.tape.compute(Kernel.ELEMENTWISE, 0, 2 * out.nbytes, 1)
    c.node(out, (log_probs,), (), back)
    return out


def _gathered(c: Context, x: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """Hidden states of all tp ranks, as they are gathered and as one tensor."""
    parts = c.new(c.tokens, hidden, "hidden_parts")
    c.tape.collective("all_gather", "tp", x.nbytes * c.sp, c.dtype)
    full = c.new(c.tokens, hidden, "hidden_gathered")
    c.tape.compute(Kernel.COPY, 0, 3 * full.nbytes, 2)
    return parts, full


def chunk_rows(c: Context) -> Iterator[int]:
    """Tokens of each chunk: positions are cut, of all sequences at once."""
    size = c.options.logprob_chunk_size
    for start in range(0, c.run.seq, size):
        yield c.run.batch * min(size, c.run.seq - start)


def _logits(c: Context, rows: int, vocab: int, hidden: int, held: list[Tensor]) -> None:
    """Logits of a chunk in fp32, which `held` has in the place of those of the chunk before."""
    narrow = c.new(rows, vocab, "chunk_logits")
    c.gemm(rows, vocab, hidden)
    held.clear()
    wide = c.new(rows, vocab, "chunk_logits_fp32", "fp32")
    if c.run.batch > 1:
        held.append(c.new(rows, vocab, "chunk_batch_first", "fp32"))
        del wide
    else:
        held.append(wide)
        del wide
    del narrow


def _log_softmax(c: Context, rows: int, vocab: int) -> Tensor:
    less = c.new(rows, vocab, "chunk_less_maximum", "fp32")
    exponentials = c.new(rows, vocab, "chunk_exponentials", "fp32")
    del exponentials
    found = c.new(rows, vocab, "chunk_log_softmax", "fp32")
    del less
    for _ in range(2 if c.run.tp > 1 else 0):
        c.tape.collective("all_reduce", "tp", _SUMS * rows, "fp32")
    return found


def _cost(c: Context, rows: int, vocab: int, passes: tuple[int, int]) -> None:
    entries = rows * vocab
    c.tape.compute(Kernel.ELEMENTWISE, 4 * entries, entries * (4 * passes[0] + c.size), passes[1])


def _chunks_forward(c: Context, vocab: int, hidden: int) -> list[Tensor]:
    """Records all chunks; returns what the last of them leaves, until the function is over."""
    logits: list[Tensor] = []
    parts = []
    for rows in chunk_rows(c):
        _logits(c, rows, vocab, hidden, logits)
        found = _log_softmax(c, rows, vocab)
        parts.append(c.new(rows, 1, "chunk_log_probabilities", "fp32"))
        del found
        _cost(c, rows, vocab, _FORWARD)
    return [*logits, *parts]


def _chunk_gradients(c: Context, vocab: int, hidden: int) -> list[Tensor]:
    """Records the gradients of all chunks; returns those of hidden states, in fp32, and what the last chunk leaves."""
    logits: list[Tensor] = []
    softmax: list[Tensor] = []
    chosen: list[Tensor] = []
    grads: list[Tensor] = []
    of_weight: list[Tensor] = []
    of_hidden: list[Tensor] = []
    for rows in chunk_rows(c):
        _logits(c, rows, vocab, hidden, logits)
        found = _log_softmax(c, rows, vocab)
        softmax.clear()
        softmax.append(c.new(rows, vocab, "softmax", "fp32"))
        del found
        one_hot = c.new(rows, vocab, "one_hot", "int64")
        product = c.new(rows, vocab, "is_chosen", "int64")
        del one_hot
        _renew(chosen, product)
        del product
        _renew(grads, c.new(rows, vocab, "chunk_grad", "fp32"))
        _cost(c, rows, vocab, _BACKWARD)
        wide = c.new(vocab, hidden, "weight_fp32", "fp32")
        of_hidden.append(c.new(rows, hidden, "chunk_grad_hidden", "fp32"))
        c.gemm(rows, hidden, vocab)
        del wide
        states = c.new(rows, hidden, "chunk_hidden_fp32", "fp32")
        _renew(of_weight, c.new(vocab, hidden, "chunk_grad_weight", "fp32"))
        c.gemm(vocab, hidden, rows)
        del states
        turned = c.new(vocab, hidden, "chunk_grad_weight_turned", "fp32")
        c.tape.compute(Kernel.ELEMENTWISE, 0, 4 * turned.nbytes, 2)
        del turned
    return [*of_hidden, *logits, *softmax, *chosen, *grads, *of_weight]


def _renew(held: list[Tensor], new: Tensor) -> None:
    """Puts a variable's next value in the place of the one before, which dies when the next is there."""
    held.clear()
    held.append(new)
