"""Rows of the vocabulary: tokens of the tokenizer, padded to what tensor parallel ranks divide."""

from __future__ import annotations

from typing import Final

from simcore.recipes.megatron.fields import Fields, Setting, Writer

__all__ = ["write_vocabulary"]

_GPT2: Final = 50257
"""Tokens of GPT-2's byte pair encoding."""
_TIKTOKEN: Final = 2**17
"""Tokens without --vocab-size (core 0.16.1 `training/tokenizer/tokenizer.py`, CustomTikTokenizer)."""
_KEY: Final = "model.overrides.vocab_size"
_BY_FILES: Final = "GPT-2's vocabulary"
_PROGRAM: Final = "Megatron-LM pretrain_gpt.py:527, pretrain_hybrid.py:544: args_defaults tokenizer_type"
"""The programs' own tokenizer, GPT2BPETokenizer, where no argument says one."""
_FILES: Final = ("vocab_file", "merge_file")
_TOKENIZER: Final = ("tokenizer_model", "vocab_file", "merge_file", "tiktoken_num_special_tokens", "vocab_extra_ids")


def write_vocabulary(writer: Writer, *, is_main: bool) -> None:
    """Writes the padded number of tokens, or asks for it where a file decides it. `is_main`: version main runs."""
    fields = writer.fields
    padded, given, kind = (fields.integer("padded_vocab_size"), fields.integer("vocab_size"),
                           fields.path("tokenizer_type"))
    divisor, tp = fields.integer("make_vocab_size_divisible_by"), fields.integer("tensor_model_parallel_size")
    pads = fields.flag("pad_vocab_size")
    settings = (given, kind, divisor, pads)
    rule = ""
    if padded.taken and padded.value:
        writer.write(_KEY, padded.value, padded)
        writer.idle("--padded-vocab-size says it", *settings)
    else:
        tokens, rule = _tokens(fields, given, kind, is_main=is_main)
        if tokens is None:
            writer.use(*settings, why="rows of the vocabulary, which files of the tokenizer decide")
            writer.draft.ask(_KEY, f"--set {_KEY}=N, N padded to a multiple of {divisor.value} x tp {tp.value}",
                             f"rows of the vocabulary, which files of the tokenizer {kind.value or ''} decide",
                             next(iter(kind.taken), None))
        else:
            rows = max(1, divisor.value or 128) * max(1, tp.value or 1) if pads.value else 1
            value, told = -(-tokens // rows) * rows, f"{rule}, padded to a multiple of {rows}"
            if kind.value is None:
                writer.draft.infer(_KEY, value, told, *divisor.taken, *pads.taken, source=_PROGRAM)
                writer.idle("the program's GPT2BPETokenizer says how many there are", given)
                writer.use(kind, why="the program's own tokenizer, as without it")
            else:
                writer.write(_KEY, value, *settings, rule=told)
            if rule == _BY_FILES:
                writer.use(*(fields.path(name) for name in _FILES), why="taken to be GPT-2's 50,257 tokens: "
                           f"--set {_KEY}=N says the padded number of others")
    writer.idle("files of the tokenizer", *(fields.path(name) for name in _TOKENIZER if not (
        name in _FILES and rule == _BY_FILES)))


def _tokens(fields: Fields, given: Setting[int | None], kind: Setting[str | None], *,
            is_main: bool) -> tuple[int | None, str]:
    """Tokens without padding and the rule that says so; None if the tokenizer's files decide.

    core 0.16.1 `training/tokenizer/tokenizer.py`; main `core/tokenizers/text/libraries/null_tokenizer.py`.
    """
    name = kind.value
    if name in ("NullTokenizer", "NullMultimodalTokenizer") and given.value:
        return (given.value, "--vocab-size") if is_main else (given.value + 1, "--vocab-size and an end of document")
    if name in (None, "GPT2BPETokenizer"):
        return _GPT2, _BY_FILES
    if name == "TikTokenizer":
        return given.value or _TIKTOKEN, "--vocab-size, or 2**17 without it"
    return None, ""
