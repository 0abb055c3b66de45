"""Losses in chunks of logits: torchtune's, and those of verl's head and of TRL's.

torchtune bd2a0fc7 `modules/loss/ce_chunked_output_loss.py`, as its recipes compile it. `modules/transformer.py`
chunked_output makes the logits of all chunks first. Each chunk's cross entropy is compiled (`apply_compile_strategy`):
it casts to fp32 in registers, keeps the chunk's logits as they came and makes a gradient of their own dtype. Measured
with torch 2.13 and inductor on a CPU (`tests/truth/probe_chunked_loss.py`): backward runs all chunks' losses before the
first product; the second chunk's weight gradient is added to the first in a new tensor, further ones in place.

[Note: fused head] verl b178a3cd `utils/experimental/torch_functional.py` FusedLinearForPPO: chunks of 512 rows, each of
which makes its logits, divides them, casts them to fp32, and makes probabilities, their logarithms and an entropy of
them; backward makes the logits again, and a part of both gradients, which are summed in the hidden state's type. The
part of one chunk is there until the next one's is. The entropy has no gradient. Event for event as torch runs it
(`tests/truth/verl/fused-torch-2.13.0.json`).

[Note: TRL's head] TRL 1.16.0 `trainer/utils.py` add_fused_lm_head, `kernels/chunked_logprob.py`: rows of hidden states
whose label counts are copied, and scored by tiles of 4,096 of them and 32,768 entries of the vocabulary in one buffer;
what is stored in another type than products is cast tile by tile. Backward makes the tiles again, and sums both
gradients in fp32 whatever their type, which are cast when all are there. Scales and caps of logits are part of the
kernel. Statistics of a token, and the loss behind them, are a few numbers a token, of which one stands for all. Event
for event as torch runs it (`tests/truth/trl_grpo/trl-1.16.0-torch-2.13.0.json`). A weight that is a DTensor is gathered
whole first, in rows that its ranks pad to the same number; the padding is cut off by a view.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.hf.options import HfOptions
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.recording.kernel_shape import shape_of
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["CHUNKS", "FUSED", "LM_HEAD", "chunked_loss", "fused_head", "fused_lm_head"]

CHUNKS: Final = 8
"""num_output_chunks."""
FUSED: Final = "fused_linear"
"""Value of `training.loss` for [Note: fused head]."""
LM_HEAD: Final = "fused_lm_head"
"""Value of `training.loss` for [Note: TRL's head]."""
_ROWS: Final = 512
_TILE: Final = (4096, 32768)
"""Tokens of a tile, entries of the vocabulary: TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE."""


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


# ---- verl's head -----------------------------------------------------------------------------------------------------
def fused_head(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of the head's input `hidden`, see [Note: fused head]; the head has no adapter."""
    weight, tokens, dtype = run.params["weight"], run.tokens, hidden.dtype
    needs = (aten.needs_grad(hidden), weight.trainable)
    rows = [min(_ROWS, tokens - start) for start in range(0, tokens, _ROWS)]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_hidden = aten.new(tape, hidden.shape, dtype, "grad_hidden") if needs[0] else None
        to_weight = aten.new(tape, weight.shape, dtype, "grad_weight") if needs[1] else None
        parts: tuple[Tensor, Tensor] | None = None
        for size in rows:
            made = _undone(tape, size, run)
            parts = made
            del made
            for total, part in ((to_hidden, parts[0]), (to_weight, parts[1])):
                if total is not None:
                    tape.compute(Kernel.ELEMENTWISE, part.numel, 3 * part.nbytes)
        del parts
        return [to_hidden, to_weight]

    labels = aten.new(tape, (tokens,), "int64", "labels")
    node = tape.node((hidden, weight), (hidden, weight, labels), backward)
    scores = [aten.new(tape, (tokens,), dtype, name) for name in ("log_probs", "entropies")]
    for size in rows:
        wide = _logits(tape, size, run)
        shares, logs = (aten.new(tape, wide.shape, "fp32", name, wide.nbytes, Kernel.ELEMENTWISE, 4 * wide.numel)
                        for name in ("shares", "log_shares"))
        for name in ("powers", "weighed_logits"):
            _transient = aten.new(tape, wide.shape, "fp32", name, wide.nbytes, Kernel.ELEMENTWISE, 2 * wide.numel)
            del _transient
        del shares, logs, wide
    out = aten.new(tape, (), "fp32", "loss", 4 * tokens, Kernel.LOSS)
    out.node = node
    tape.save(node, *scores)
    return out


def _logits(tape: Tape, size: int, run: LayerWorkload) -> Tensor:
    """Logits of `size` tokens in fp32, which were divided by the temperature in the weight's type."""
    weight = run.params["weight"]
    shape, moved = (size, weight.shape[0]), weight.nbytes
    found = aten.new(tape, shape, run.compute, "chunk_logits", moved, Kernel.GEMM, 2 * size * weight.numel)
    scaled = aten.new(tape, shape, run.compute, "chunk_scaled", found.nbytes)
    del found
    return aten.new(tape, shape, "fp32", "chunk_wide", scaled.nbytes)


def _undone(tape: Tape, size: int, run: LayerWorkload) -> tuple[Tensor, Tensor]:
    """Parts of the gradients of hidden states and weight that a chunk of `size` tokens makes."""
    weight, dtype = run.params["weight"], run.compute
    wide = _logits(tape, size, run)
    shape, moved = wide.shape, wide.nbytes
    shares, places = (aten.new(tape, shape, "fp32", name, moved) for name in ("shares", "places"))
    less = aten.new(tape, shape, "fp32", "places_less_shares", 2 * moved)
    weighed = aten.new(tape, shape, "fp32", "weighed", moved)
    del less
    total = aten.new(tape, shape, "fp32", "grad_logits", moved)
    del weighed
    narrow = aten.new(tape, shape, dtype, "grad_narrow", moved)
    scaled = aten.new(tape, shape, dtype, "grad_scaled", narrow.nbytes)
    del narrow, total
    flops = 2 * size * weight.numel
    to_hidden = aten.new(tape, (size, weight.shape[1]), dtype, "chunk_grad_hidden", weight.nbytes, Kernel.GEMM, flops)
    to_weight = aten.new(tape, weight.shape, dtype, "chunk_grad_weight", scaled.nbytes, Kernel.GEMM, flops)
    del wide, shares
    del scaled
    del places
    return to_hidden, to_weight


# ---- TRL's head ------------------------------------------------------------------------------------------------------
def fused_lm_head(tape: Tape, run: LayerWorkload, hidden: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of the head's input `hidden`, see [Note: TRL's head]; the head has no adapter."""
    weight, width = run.params["weight"], hidden.shape[-1]
    rows = run.batch * min(run.scored or run.seq, run.seq - (run.cp == 1))
    if run.sequences:  # the first token of each is nobody's label: TRL 1.16.0 `trainer/sft_trainer.py`:208
        rows = run.tokens - run.sequences
    whole = _gathered(tape, run)
    chosen: Tensor | None = _scored(tape, run, hidden, rows)
    assert chosen is not None
    needs = (aten.needs_grad(chosen), weight.trainable)
    dtype = hidden.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        of_rows = aten.new(tape, (rows, width), "fp32", "grad_scored") if needs[0] else None
        wide = aten.new(tape, weight.shape, "fp32", "grad_weight_wide") if needs[1] else None
        tile = aten.new(tape, (min(rows, _TILE[0]), _TILE[1]), run.compute, "tile")
        narrow, part = _tiles(tape, run, (rows, dtype), sum(needs) + 1, held=True)
        own = [one if one is None or one.dtype == to else aten.new(tape, one.shape, to, "grad_narrow", one.nbytes)
               for one, to in ((of_rows, dtype), (wide, weight.dtype))]
        del of_rows, wide, narrow, part, tile
        return [*own]

    node = tape.node((chosen, weight), (chosen, whole or weight), backward)
    tile = aten.new(tape, (min(rows, _TILE[0]), _TILE[1]), run.compute, "tile")
    kept = _tiles(tape, run, (rows, dtype), 1, held=False)
    del kept
    del tile
    chosen = None
    del whole
    sums = [aten.new(tape, (rows,), "fp32", name, 4 * rows) for name in ("log_sum_exp", "entropies")]
    tape.save(node, *sums)
    out = aten.new(tape, (), "fp32", "loss", 4 * rows, Kernel.LOSS)
    out.node = node
    return out


def _gathered(tape: Tape, run: LayerWorkload) -> Tensor | None:
    """The head's weight as the trainer gathers it of all ranks' rows, padding included; None where it does not."""
    parts, weight = HfOptions.of(run.options).head_parts, run.params["weight"]
    if not parts:
        return None
    whole = tape.empty((-(-weight.shape[0] // parts) * parts, weight.shape[1]), weight.dtype, "gathered_head")
    if parts > 1:
        tape.collective("all_gather", "dp_shard_cp", whole.nbytes, weight.dtype)
    return whole


def _scored(tape: Tape, run: LayerWorkload, hidden: Tensor, rows: int) -> Tensor:
    """Rows of `hidden` [b, s, h] that are scored: `hidden[:, :-1][mask]`, [rows, h].

    Its gradient is put into zeros of all positions but the last, and these into zeros of all. Labels of sequences that
    ranks share are shifted before, so that all positions of a rank may be scored.
    """
    shape, dtype = hidden.shape, hidden.dtype
    most = (shape[0], shape[1] - (run.cp == 1), shape[2])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        of_most = aten.new(tape, most, dtype, "grad_of_rows", hidden_bytes)
        grads.clear()
        if most == shape:
            return [of_most]
        whole = aten.new(tape, shape, dtype, "grad_hidden", of_most.nbytes)
        del of_most
        return [whole]

    hidden_bytes = hidden.nbytes
    mask = aten.new(tape, most[:2], "uint8", "counts", 8 * run.tokens)
    node = tape.node((hidden,), (mask,), backward)
    chosen = aten.new(tape, (rows, shape[2]), dtype, "scored_hidden", hidden.nbytes, Kernel.COPY)
    chosen.node = node
    return chosen


def _tiles(tape: Tape, run: LayerWorkload, hidden: tuple[int, str], products: int, *,
           held: bool) -> tuple[Tensor | None, Tensor | None]:
    """Products of all tiles, `products` each; returns the last casts of hidden states and of the weight.

    `hidden`: rows and type of the hidden states. `held`: a cast of the weight stays until the next one is there.
    """
    weight, (rows, dtype), (vocab, width) = run.params["weight"], hidden, run.params["weight"].shape
    narrow: Tensor | None = None
    part: Tensor | None = None
    for first in range(0, rows, _TILE[0]):
        size = min(_TILE[0], rows - first)
        if dtype != run.compute:
            narrow = aten.new(tape, (size, width), run.compute, "narrow_hidden", 4 * size * width, Kernel.COPY)
        for start in range(0, vocab, _TILE[1]):
            entries = min(_TILE[1], vocab - start)
            if weight.dtype != run.compute:
                part = aten.new(tape, (entries, width), run.compute, "narrow_weight", 4 * entries * width, Kernel.COPY)
            for _ in range(products):
                tape.compute(Kernel.GEMM, 2 * size * entries * width, 2 * (size + entries) * width + 4 * size * entries,
                             shape_of(size, entries))
            tape.compute(Kernel.LOSS, 3 * size * entries, 2 * size * entries)
            if not held:
                part = None
    return narrow, part
