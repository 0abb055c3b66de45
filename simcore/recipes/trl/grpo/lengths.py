"""Tokens of a prompt and of its answer, which make a sequence.

TRL `trainer/grpo_trainer.py` cuts prompts at `max_prompt_length` up to 0.25, and none from 0.26 on. Prompts are padded
to the longest of a batch, answers likewise up to `max_completion_length`. vLLM takes none that are longer together than
`vllm_max_model_length`.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.trl.grpo.releases import Turn

__all__ = ["read_lengths"]

_CONFIG: Final = "trainer/grpo_config.py"
_OPEN: Final = "tokens of a prompt and its answer: prompts are not cut"
_CUT: Final = "the longest prompt, at which prompts are cut, and an answer"
_MEANT: Final = "the longest prompt that the recipe expects, which this release cuts no more, and an answer"


def read_lengths(reader: Reader, draft: Draft, turn: Turn) -> None:
    """Writes the tokens of a sequence, and those of its prompt."""
    answer, multiple = reader.integer("max_completion_length"), reader.integer("pad_to_multiple_of")
    step = multiple.value if multiple is not None and multiple.value > 0 else 1
    new = -(-(answer.value if answer is not None else turn.answer) // step) * step
    draft.use(answer, why="tokens of an answer")
    draft.use(multiple, why="prompts and answers are padded to multiples of it")
    if answer is None:
        draft.release_default("max_completion_length", turn.answer, turn.name, _CONFIG)
    found = _total(reader, draft, turn, new, step)
    if found is None:
        return
    total, where = found
    if total <= new:
        draft.fail(where, f"a sequence of {total:,} tokens has no room for a prompt beside an answer of {new:,} "
                          "(max_completion_length)")
        return
    draft.infer("rl.prompt_tokens", total - new, f"a sequence less an answer of {new:,} tokens", answer, multiple)


def _total(reader: Reader, draft: Draft, turn: Turn, new: int, step: int) -> tuple[int, str] | None:
    """(tokens of a sequence, where they are said), None where they are asked for."""
    longest, cut, said = (reader.integer("vllm_max_model_length"), reader.integer("max_prompt_length"),
                          draft.answers.seq_len)
    if said is not None:
        draft.answered("training.seq_len", said, said.value)
        draft.use(longest, cut, why="longest sequence of the engine, longest prompt")
        return said.value, said.where
    named = reader.matching("max_prompt_length")
    if cut is not None or (turn.cut and not named):
        prompt = cut.value if cut is not None else turn.cut
        draft.infer("training.seq_len", prompt + new, _CUT if turn.cut else _MEANT, cut, longest,
                    source=f"{turn.name} {_CONFIG} max_prompt_length")
        return prompt + new, cut.where if cut is not None else draft.path
    draft.use(*named, why="prompts are not cut")
    if longest is not None:
        total = -(-longest.value // step) * step
        draft.infer("training.seq_len", total, "the longest that vllm_max_model_length allows", longest,
                    source="vLLM refuses prompts and answers that are longer together")
        return total, longest.where
    draft.ask("training.seq_len", "--seq-len N", _OPEN)
    return None
