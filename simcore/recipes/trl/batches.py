"""Lengths of a TRL recipe, and its microbatch.

[Note: one row] Packs by best fit, and batches without padding, are one row of all tokens of a microbatch (TRL 1.16.0
`trainer/sft_trainer.py` padding_free). `wrapped` packs are rows of equal length, one a sequence, unless padding_free is
on: then they are one row as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.recipes.data_sets import ask_for_longest
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.trl.grpo.defaults import NEWEST, Release

__all__ = ["read_lengths", "read_lengths_of_pairs"]

_LENGTH: Final = "trainer/sft_config.py max_length"
_ROW: Final = "trainer/sft_trainer.py padding_free: all tokens of a microbatch are one row"
_WRAPPED: Final = "data_utils.py _pack_wrapped: all tokens in a line, cut at max_length"
_LONGEST: Final = "trainer/sft_trainer.py: samples are cut there, and a batch is padded to its longest"
_OPEN: Final = "tokens of a sequence: max_length is null, so that nothing is cut"
_SKIPS: Final = "dataset_kwargs.skip_prepare_dataset"
_UNCUT: Final = ("tokens of a sequence: dataset_kwargs.skip_prepare_dataset leaves samples as they are, whatever "
                 "max_length says")
_TRAINER: Final = "transformers 5.23.0"


@dataclass(frozen=True, slots=True)
class _Row:
    """Number of samples in a row of tokens, how its length follows, and where `release` says so."""

    samples: int
    rule: str
    file: str
    release: Release

    @property
    def source(self) -> str:
        """Source of the rule."""
        return f"{self.release.name} {self.file}"


def read_lengths(reader: Reader, draft: Draft, release: Release) -> None:
    """Writes the length of sequences and the microbatch."""
    limit = reader.integer("max_length")
    packing, strategy = reader.flag("packing"), reader.text("packing_strategy")
    multiple = reader.integer("pad_to_multiple_of")
    draft.idle(reader.take("eval_packing"), "evaluation: not part of a step")
    draft.idle(reader.take("truncation_mode"), "which end is cut")
    micro = reader.integer("per_device_train_batch_size")
    if packing is None:
        draft.release_default("packing", "false", release.name, "trainer/sft_config.py")
    if packing is None or not packing.value:
        draft.idle(packing, "the default")
        draft.idle(strategy, "no packing")
        _unpacked(reader, draft, limit, multiple, release)
        _write_micro(draft, micro)
        return
    free, skips = reader.flag("padding_free"), reader.flag(_SKIPS)
    if skips is not None and skips.value:
        draft.refuse(skips, "packs that the data set brings")
    else:
        draft.idle(skips, "the default")
    is_wrapped, is_free = strategy is not None and strategy.value == "wrapped", free is not None and free.value
    if is_wrapped and not is_free:
        draft.idle(free, "the default")
        draft.use(packing, strategy, why="rows of equal length, as is simulated by default")
        _write_length(draft, limit, multiple, _Row(1, "rows of equal length", _WRAPPED, release),
                      unlimited=_is_unlimited(reader))
        _write_micro(draft, micro)
        return
    if not is_wrapped:
        draft.idle(free, "packs by best fit switch it on")
    row = _Row(micro.value if micro else 8, "max_length x per_device_train_batch_size", _ROW, release)
    draft.infer("training.lengths", "packed", "packing", packing, strategy, free if is_wrapped else None,
                source=row.source)
    _write_length(draft, limit, multiple, row, unlimited=_is_unlimited(reader))
    draft.infer("training.micro_batch_size", 1, "one row a microbatch", micro, source=row.source)


def read_lengths_of_pairs(reader: Reader, draft: Draft, release: Release) -> None:
    """Writes the length of sequences, of a prompt and an answer, and the microbatch, in pairs."""
    limit, automatic = reader.integer("max_length"), reader.look("pad_to_multiple_of") == "auto"
    multiple = None if automatic else reader.integer("pad_to_multiple_of")
    draft.idle(reader.take("pad_to_multiple_of") if automatic else None, "GPUs need none")
    draft.idle(reader.take("truncation_mode"), "which end is cut")
    draft.idle(reader.matching("max_prompt_length", "max_completion_length"), "parts of what max_length cuts")
    _write_length(draft, limit, multiple, _Row(1, "the longest that max_length allows", _LONGEST, release),
                  unlimited=_is_unlimited(reader))
    _write_micro(draft, reader.integer("per_device_train_batch_size"))


def _unpacked(reader: Reader, draft: Draft, limit: Taken[int] | None, multiple: Taken[int] | None,
              release: Release) -> None:
    """Writes the length of batches without packs, or asks for it where nothing cuts samples."""
    free, skips = reader.flag("padding_free"), reader.flag(_SKIPS)
    if free is not None and free.value and release is not NEWEST:
        draft.refuse(free, f"batches without padding of {release.name}")
    elif free is not None and free.value and not _is_unlimited(reader):
        draft.use(free)
        draft.fail(free.where, "When `padding_free=True` without packing, max_length is not enforced: set packing, or "
                               "max_length to null (TRL 1.16.0 trainer/sft_trainer.py __init__)")
    elif free is not None and free.value:
        draft.refuse(free, "batches without padding whose samples nothing cuts")
    else:
        draft.idle(free, "the default")
    unprepared = skips is not None and skips.value
    if not unprepared:
        draft.idle(skips, "the default")
    if draft.answers.seq_len is not None:
        draft.idle(skips if unprepared else None, f"{draft.answers.seq_len.where} says how long sequences are")
    elif unprepared or (limit is None and _is_unlimited(reader)):
        given = [one for one in (skips if unprepared else None, limit, multiple) if one is not None]
        ask_for_longest(reader, draft, ("dataset_name",), _UNCUT if unprepared else _OPEN, *given,
                        multiple=multiple.value if multiple is not None and multiple.value > 0 else 1)
        return
    _write_length(draft, limit, multiple, _Row(1, "the longest that max_length allows", _LONGEST, release),
                  unlimited=False)


def _is_unlimited(reader: Reader) -> bool:
    """True if the recipe says that nothing is cut."""
    return "max_length" in reader.names() and reader.look("max_length") is None


def _write_micro(draft: Draft, micro: Taken[int] | None) -> None:
    if micro is not None:
        draft.put("training.micro_batch_size", micro)
    else:
        draft.default("training.micro_batch_size", 8, _TRAINER, "training_args.py per_device_train_batch_size")


def _write_length(draft: Draft, limit: Taken[int] | None, multiple: Taken[int] | None, row: _Row,
                  *, unlimited: bool) -> None:
    """Writes the length of a row of samples, each of the longest length."""
    answer = draft.answers.seq_len
    if answer is not None:
        draft.idle([one for one in (limit, multiple) if one], f"{answer.where} says how long sequences are")
        draft.answered("training.seq_len", answer, answer.value * row.samples)
        longest = answer.value
    elif limit is None and unlimited:
        draft.use(multiple)
        draft.ask("training.seq_len", "--seq-len N", _OPEN)
        return
    else:
        longest = limit.value if limit else 1024
        step = multiple.value if multiple is not None and multiple.value > 0 else 1
        length = -(-longest * row.samples // step) * step
        if limit is None and length == longest * row.samples:
            draft.default("training.seq_len", length, row.release.name, _LENGTH)
            draft.use(multiple, why="lengths are multiples of it")
        else:
            padded = f", padded to a multiple of {step}" if step > 1 else ""
            draft.infer("training.seq_len", length, f"{row.rule}{padded}", limit, multiple, source=row.source)
    if row.samples > 1:
        draft.infer("training.packed_length", longest, "the longest sample of a row", source=row.source)
