"""Packed sequences: the sequences in a row of tokens, and the number of positions that a token attends to.

[Note: packing]
A microbatch of packs is one row of all its tokens: TransformerEngine's layout thd, flash-attn's `varlen` functions, in
transformers position ids that start again. Memory then depends on the tokens, hardly on their sequences: flash-attn's
backward adds 128 rows for each of them (`csrc/flash_attn/flash_api.cpp`, mha_varlen_bwd, at 0251105a). What attention
computes is the sum of squared lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.inputs.training import Training

__all__ = ["Packing", "assumptions", "pack_sequences"]


@dataclass(frozen=True, slots=True)
class Packing:
    """The token sequences of one microbatch: `batch` rows of `seq` positions each.

    `sequences`: number of sequences packed into these rows, 0 if each row is one sequence. `attended`: length of the
    sequence that a token belongs to, as the mean over tokens.
    """

    batch: int
    seq: int
    sequences: int
    attended: int


def pack_sequences(training: Training) -> Packing:
    """Returns the rows of tokens of one microbatch: their number, length, and the sequences in them.

    Packed microbatches are one row; its sequences have one length, and the last of each pack has the remainder.
    """
    batch, seq = training.micro_batch_size, training.seq_len
    if training.lengths != "packed":
        return Packing(batch, seq, 0, seq)
    length = min(training.packed_length or seq, seq)
    number, rest = divmod(seq, length)
    squares = number * length**2 + rest**2
    return Packing(1, batch * seq, batch * (number + (rest > 0)), -(-squares // seq))


def assumptions(training: Training) -> tuple[tuple[str, str, str, str], ...]:
    """Returns assumptions about sequence lengths, each (key, value, kind of assumption, source).

    Empty unless sequences are packed and the scenario does not state their length.
    """
    if training.lengths != "packed" or training.packed_length is not None:
        return ()
    return (("training.packed_length", f"one sequence of {training.seq_len} tokens fills each pack", "assumed",
             "lengths are not stated: attention computes no more than that, bytes hardly depend on it"),)
