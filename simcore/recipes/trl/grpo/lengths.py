"""Tokens of a prompt and of its answer, which make a sequence.

TRL 1.16.0 `trainer/grpo_trainer.py` cuts no prompt: prompts are padded to the longest of a batch, answers likewise up
to `max_completion_length`. vLLM takes none that are longer together than `vllm_max_model_length`.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_lengths"]

_ANSWER: Final = 512
_RELEASE: Final = "TRL 1.16.0"
_OPEN: Final = "tokens of a prompt and its answer: prompts are not cut"


def read_lengths(reader: Reader, draft: Draft) -> None:
    """Writes the tokens of a sequence, and those of its prompt."""
    answer, longest = reader.integer("max_completion_length"), reader.integer("vllm_max_model_length")
    multiple = reader.integer("pad_to_multiple_of")
    step = multiple.value if multiple is not None and multiple.value > 0 else 1
    new = -(-(answer.value if answer is not None else _ANSWER) // step) * step
    said = draft.answers.seq_len
    draft.use(answer, why="tokens of an answer")
    draft.use(multiple, why="prompts and answers are padded to multiples of it")
    if answer is None:
        draft.release_default("max_completion_length", _ANSWER, _RELEASE, "trainer/grpo_config.py")
    if said is not None:
        total, where = said.value, said.where
        draft.answered("training.seq_len", said, total)
        draft.use(longest, why="longest sequence of the engine")
    elif longest is not None:
        total, where = -(-longest.value // step) * step, longest.where
        draft.infer("training.seq_len", total, "the longest that vllm_max_model_length allows", longest,
                    source="vLLM refuses prompts and answers that are longer together")
    else:
        draft.ask("training.seq_len", "--seq-len N", _OPEN)
        return
    if total <= new:
        draft.fail(where, f"a sequence of {total:,} tokens has no room for a prompt beside an answer of {new:,} "
                          "(max_completion_length)")
        return
    draft.infer("rl.prompt_tokens", total - new, f"a sequence less an answer of {new:,} tokens", answer, multiple)
