"""Lengths of a GRPO recipe's sequences: the longest one, and the prompt's part of it."""

from __future__ import annotations

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_lengths"]


def read_lengths(reader: Reader, draft: Draft, block: str, longest_key: str, source: str = "") -> None:
    """Writes the longest sequence, and the tokens of it that are a prompt where answers end before it is full.

    `block`: the recipe's block of the engine; `longest_key`: its key of the longest sequence. Sequences are counted at
    full length ([Note: full length] in `policy.py`), of which an answer is no more than max_new_tokens.
    """
    longest, most = reader.integer(longest_key), reader.integer(f"{block}.max_new_tokens")
    answer = draft.answers.seq_len
    if answer is not None:
        draft.idle(longest, f"{answer.where} says how long sequences are")
    else:
        draft.put("generation.max_model_len", longest)
    whole = answer.value if answer is not None else longest.value if longest is not None else 0
    if most is None or not 0 < most.value < whole:
        draft.idle(most, f"every sequence is decoded to {longest_key.rpartition('.')[2]}")
        return
    draft.infer("rl.prompt_tokens", whole - most.value, "sequences of full length, of which max_new_tokens are decoded",
                most, source=source)
