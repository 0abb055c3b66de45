"""Rows of the vocabulary in Megatron-Bridge's configurations: the model's own, or those of the tokenizer, padded.

Bridge main 067f987d, training/setup.py `_validate_and_set_vocab_size`: where `tokenizer.use_tokenizer_vocab_size` is
set, as in its recipes of pretraining, or the model has no number of rows, the tokenizer's tokens count, and are padded
to a multiple of the divisor times tp. Otherwise the model's number counts as it is.
"""

from __future__ import annotations

from typing import Final

from simcore.inputs.block import shorten
from simcore.inputs.document import Document
from simcore.recipes.draft import Draft
from simcore.recipes.imported import Left
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_vocabulary", "without_computed"]

_COUNT: Final = "tokenizer.vocab_size"
_KEY: Final = "model.overrides.vocab_size"
_TOKENS: Final = {"qwen/qwen3-": 151669, "qwen/qwen2.5-": 151665, "nvidia/nvidia-nemotron-": 131072,
                  "nvidia/nemotron-h-": 131072}
"""Tokens by the beginning of a tokenizer's repository: one more than the last of `added_tokens_decoder` in its
tokenizer_config.json, the `len(tokenizer)` that Megatron takes (core tokenizers/text/libraries)."""
_DIVISORS: Final = {"deepseek-ai/deepseek-v2": 3200, "deepseek-ai/deepseek-v3": 1280}
"""Divisors of models whose converters have their own (models/deepseek/deepseek_v2_bridge.py, deepseek_v3_bridge.py)."""
_DIVISOR: Final = 128
"""Default of the providers; converters take the largest power of two up to it that divides the model's rows."""


def read_vocabulary(reader: Reader, draft: Draft, model: Taken[str] | None, *, asks: bool = False) -> bool:
    """Writes, or asks for, the rows of the vocabulary; False where those of the model by its name count.

    `model`: Hugging Face name of the model. `asks`: asks for the rows where nothing says them.
    """
    own, pads = reader.integer("model.vocab_size"), reader.flag("model.should_pad_vocab")
    wins, kind = reader.flag("tokenizer.use_tokenizer_vocab_size"), reader.text("tokenizer.tokenizer_type")
    count, name = reader.integer("tokenizer.vocab_size"), reader.text("tokenizer.tokenizer_model")
    rest = (pads, wins, kind, count, name)
    draft.use(*rest, why="the model's own rows count (training/setup.py:741)")
    tokenizer = _tokens(kind, count, name)
    if wins and wins.value and tokenizer:
        _write(reader, draft, tokenizer, model, *rest, own)
    elif own is not None:
        draft.use(*rest)
        if pads is not None and pads.value:
            _write(reader, draft, own.value, model, own, pads)
        else:
            draft.put(_KEY, own)
            draft.use(reader.integer("model.make_vocab_size_divisible_by"))
    elif tokenizer and model is None:
        _write(reader, draft, tokenizer, model, *rest)
    elif asks or (wins and wins.value):
        draft.use(*rest)
        draft.ask(_KEY, f"--set {_KEY}=N", "rows of the vocabulary, which files of a tokenizer decide", name)
    else:
        draft.use(*rest)
        return False
    return True


def without_computed(document: Document, open_keys: tuple[str, ...]) -> tuple[Document, list[Left], tuple[str, ...]]:
    """The document of a recipe that gives its tokenizer as many tokens as the model has rows, without the tokenizer.

    Such a recipe computes the number, which is then the model's own (`cfg.tokenizer.vocab_size = cfg.model.vocab_size`,
    recipes/kimi/h100/kimi_k2.py). Lists the tokenizer's keys, and takes the number out of `open_keys`.
    """
    kept = document.data.get("tokenizer")
    if _COUNT not in open_keys or not isinstance(kept, dict):
        return document, [], open_keys
    where = {f"tokenizer.{name}": (document.where(("tokenizer", name)), value) for name, value in kept.items()}
    left = [Left("no effect", place, key, shorten(value), "the tokenizer has as many tokens as the model has rows")
            for key, (place, value) in (*where.items(), (_COUNT, (document.where(("tokenizer",)), "computed")))]
    return document.without("tokenizer"), left, tuple(key for key in open_keys if key != _COUNT)


def _tokens(kind: Taken[str] | None, count: Taken[int] | None, name: Taken[str] | None) -> int:
    """Tokens of a tokenizer, 0 if only its files say them."""
    if kind is not None and kind.value == "NullTokenizer" and count is not None:
        return count.value
    repository = name.value.lower() if name else ""
    return next((tokens for start, tokens in _TOKENS.items() if repository.startswith(start)), 0)


def _write(reader: Reader, draft: Draft, tokens: int, model: Taken[str] | None, *said: Taken[int] | Taken[str] |
           Taken[bool] | None) -> None:
    part, tp = reader.integer("model.make_vocab_size_divisible_by"), reader.integer("model.tensor_model_parallel_size")
    repository = model.value.lower() if model else ""
    own = next((size for start, size in _DIVISORS.items() if repository.startswith(start)), _DIVISOR)
    unit = (part.value if part else own) * (tp.value if tp else 1)
    draft.infer(_KEY, -(-tokens // unit) * unit, f"{tokens} tokens, padded to a multiple of {unit}", *said, part,
                source="Bridge training/setup.py, _validate_and_set_vocab_size")
