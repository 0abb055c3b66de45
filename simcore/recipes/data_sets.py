"""Lengths of well-known data sets in tokens, where a public count exists: mean and longest sample.

Counts are those of modelscope/ms-swift 3602360a (2026-08-22), `docs/source_en/Instruction/
Supported-models-and-datasets.md`: question, answer and system prompt by Qwen 2.5's tokenizer and chat template. Left
out are rows of more than 100,000 samples, of which that many were drawn (`scripts/utils/run_dataset_info.py`), so that
the longest may be missing, and rows that count questions alone (tagged grpo, and GSM8K). Other tokenizers make about a
quarter more: the longest sample of Alpaca has 1,034 tokens of StableLM and 1,304 of Llama 2 (Lightning-AI/litgpt
26857050, `tutorials/resource-tables.md`). For HellaSwag, SQuAD and Tulu 3 no count in tokens was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["ask_for_longest"]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Tokens of a data set's samples."""

    mean: float
    longest: int


_SOURCE: Final = "ms-swift 3602360a docs/source_en/Instruction/Supported-models-and-datasets.md"
_CODE: Final = _Counted(99.3, 857)
_COUNTED: Final = {
    "yahma/alpaca-cleaned": _Counted(170.1, 1028),
    "vicgalle/alpaca-gpt4": _Counted(167.6, 607),
    "databricks/databricks-dolly-15k": _Counted(199.0, 5987),
    "huggingfaceh4/no_robots": _Counted(300.0, 6739),
    "huggingfaceh4/codealpaca_20k": _CODE,
    "sahil2801/codealpaca-20k": _CODE,
    "garage-baind/open-platypus": _Counted(389.0, 3153),
    "yukang/longalpaca-12k": _Counted(9941.8, 25826),
}
"""By the lower-case id of the data set's repository."""


def ask_for_longest(reader: Reader, draft: Draft, keys: tuple[str, ...], text: str, *by: Taken[Any],
                    multiple: int = 1) -> None:
    """Writes the longest sample of the data set that one of `keys` names as the length; asks where no count is known.

    `text`: of the question; `by`: keys that leave it open; `multiple`: to which lengths are padded.
    """
    key = next((one for one in keys if isinstance(reader.look(one), str)), "")
    name = str(reader.look(key)) if key else ""
    counted = _COUNTED.get(name.casefold())
    if counted is None:
        draft.use(*by[1:], why="lengths of samples, which are asked for")
        unknown = f" (no public count of the tokens of {name} is known)" if name else ""
        draft.ask("training.seq_len", "--seq-len N", f"{text}{unknown}", by[0] if by else None)
        return
    longest = -(-counted.longest // multiple) * multiple
    padded = f", padded to a multiple of {multiple}" if multiple > 1 else ""
    rule = (f"the longest sample of {name}: {counted.longest:,} tokens, on average {counted.mean:g}, by Qwen 2.5's "
            f"tokenizer; others make about a quarter more{padded}")
    draft.infer("training.seq_len", longest, rule, reader.text(key), *by, source=_SOURCE)
