"""Batch sizes and lengths of an axolotl recipe."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.modules import family_of
from simcore.recipes.huggingface.zero import Zero, check_numbers
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_batches", "read_lengths"]

_PACKED: Final = ("core/trainers/base.py _create_multipack_sampler: one row of micro_batch_size x sequence_len tokens, "
                  "unless multipack_real_batches")
_STREAMED: Final = "utils/data/streaming.py encode_packed_streaming: rows of micro_batch_size x sequence_len tokens"
_PADDED: Final = "core/builders/causal.py: a batch is padded to its longest sequence, in steps of 64"
_STEPS: Final = "core/builders/causal.py:386: in steps of 64 or pad_to_multiple_of, unless pad_to_sequence_len: false"
_UNIT: Final = 64
_RELEASE: Final = "axolotl 067b021c"
_DEFAULTS: Final = "utils/schemas/training.py gradient_accumulation_steps"
_LENGTH: Final = "utils/schemas/config.py sequence_len"
_NEMOTRON: Final = "nemotron_h"
_NEMOTRON_LAYER: Final = ("axolotl 067b021c monkeypatch/models/nemotron_h/modeling.py patched_block_forward knows no "
                          "`full_attention`, as transformers 5.14.1, which it pins, calls such a layer")
_NEMOTRON_REPLAYS: Final = "axolotl 067b021c utils/schemas/validation.py check_nemotron_h_gradient_checkpointing"
_LONGEST: Final = 512
"""Length of samples where the recipe does not say one."""
_STEP: Final = "utils/config/__init__.py normalize_config: micro_batch_size x gradient_accumulation_steps x ranks"


def read_lengths(reader: Reader, draft: Draft) -> None:
    """Writes the length of sequences and the microbatch: rows that are packed, or sequences that are padded."""
    limit, micro = reader.integer("sequence_len"), reader.integer("micro_batch_size")
    packing, isolates = reader.flag("sample_packing"), _isolates(reader, draft)
    if packing is None:
        draft.release_default("sample_packing", "false", _RELEASE, "utils/schemas/config.py")
    _check_nemotron(reader, draft, packing)
    if packing is not None and packing.value and isolates:
        _packed(reader, draft, packing, limit, micro)
    elif packing is not None and packing.value:
        _joined(reader, draft, packing, limit, micro)
    else:
        draft.idle(packing, "the default")
        draft.idle(reader.take("multipack_real_batches"), "no packing")
        _padded(reader, draft, limit)
        _write_micro(draft, micro)
    draft.idle(reader.matching("eval_sample_packing"), "evaluation: not part of a step")
    draft.idle(reader.matching("sample_packing_*", "pretrain_multipack_buffer_size",
                               *(["group_by_length"] if packing is not None and packing.value else [])),
               "which samples come into a pack")


def _check_nemotron(reader: Reader, draft: Draft, packing: Taken[bool] | None) -> None:
    """Fails for what axolotl's own layers of Nemotron-H stop at, or what its validation does."""
    named, replays = reader.look("base_model"), reader.look("gradient_checkpointing")
    if packing is not None and packing.value:
        if family_of(draft.values.get("model")) == _NEMOTRON:
            draft.fail(packing.where, f"sample_packing of {_NEMOTRON}: unsupported operand type(s) for +: 'Tensor' and "
                                      f"'tuple' ({_NEMOTRON_LAYER}); sample_packing: false runs")
    elif replays and "nemotron-h" in str(named).lower():
        draft.fail(reader.document.where(("gradient_checkpointing",)), "gradient_checkpointing for nemotron_h requires "
                   f"sample_packing: true ({_NEMOTRON_REPLAYS}), with which the first attention layer stops")


def _isolates(reader: Reader, draft: Draft) -> bool:
    """True if each sample of a pack attends to itself alone; samples that are streamed for pretraining may do without.

    Null is no True (utils/data/streaming.py wrap_streaming_dataset: skip_position_ids is its negation).
    """
    key = "pretrain_multipack_attn"
    streams, packs = reader.has("pretraining_dataset"), reader.look("sample_packing") not in (None, False)
    if not (streams and packs):
        draft.idle(reader.flag(key), "it is read where samples of pretraining_dataset are packed")
        return True
    joins = "positions run through a row: it is one sequence to attention"
    if key in reader.names() and not reader.has(key):
        draft.use(*reader.matching(key), why=joins)
        return False
    isolates = reader.flag(key)
    draft.use(isolates, why=joins if isolates and not isolates.value else "samples attend to themselves alone")
    return isolates is None or isolates.value


def _joined(reader: Reader, draft: Draft, packing: Taken[bool], limit: Taken[int] | None,
            micro: Taken[int] | None) -> None:
    """A row of all samples of a microbatch, which attention takes for one sequence."""
    draft.use(packing, why="a row is full")
    draft.idle([one for one in (reader.take("pad_to_sequence_len"), reader.take("multipack_real_batches")) if one],
               "rows that are streamed are full (utils/data/streaming.py)")
    length, rows = limit.value if limit else _LONGEST, micro.value if micro else 1
    if draft.answers.seq_len is not None:
        draft.answered("training.seq_len", draft.answers.seq_len, draft.answers.seq_len.value * rows)
        draft.idle(limit, f"{draft.answers.seq_len.where} says how long sequences are")
    else:
        draft.infer("training.seq_len", length * rows, "sequence_len x micro_batch_size, one causal sequence",
                    *(one for one in (limit, micro) if one), source=_STREAMED)
    draft.infer("training.micro_batch_size", 1, "one row a microbatch", micro, source=_STREAMED)


def _packed(reader: Reader, draft: Draft, packing: Taken[bool], limit: Taken[int] | None,
            micro: Taken[int] | None) -> None:
    """Packs of one row for all sequences of a microbatch, or of a row for each."""
    draft.infer("training.lengths", "packed", "sample_packing", packing, source=_PACKED)
    draft.idle(reader.take("pad_to_sequence_len"), "packs are counted as full")
    if draft.answers.seq_len is not None:
        draft.idle(limit, f"{draft.answers.seq_len.where} says how long sequences are")
    rows = reader.flag("multipack_real_batches")
    if rows is not None and rows.value:
        draft.use(rows, why="each sample of a microbatch has a row of its own")
        _length(draft, limit, 1)
        _write_micro(draft, micro)
        return
    draft.idle(rows, "the default")
    _length(draft, limit, micro.value if micro else 1)
    draft.infer("training.micro_batch_size", 1, "one row a microbatch", micro, source=_PACKED)


def _length(draft: Draft, limit: Taken[int] | None, rows: int) -> None:
    """Writes the length of a pack: `rows` times the longest sample, which is taken to be one of them."""
    answer = draft.answers.seq_len
    if answer is not None:
        longest = answer.value
        draft.answered("training.seq_len", answer, longest * rows)
    elif limit is None:
        longest = _LONGEST
        draft.default("training.seq_len", longest * rows, _RELEASE, _LENGTH)
    elif rows == 1:
        longest = limit.value
        draft.put("training.seq_len", limit)
    else:
        longest = limit.value
        draft.infer("training.seq_len", longest * rows, "sequence_len x micro_batch_size", limit, source=_PACKED)
    if rows > 1:
        draft.infer("training.packed_length", longest, "the longest sample of a pack",
                    None if answer else limit, source=_PACKED)


def _padded(reader: Reader, draft: Draft, limit: Taken[int] | None) -> None:
    """Sequences of a batch are as long as its longest, or as `sequence_len` where the recipe pads to it."""
    whole = reader.flag("pad_to_sequence_len")
    if draft.answers.seq_len is not None:
        draft.answered("training.seq_len", draft.answers.seq_len)
        draft.idle([one for one in (limit, whole) if one], f"{draft.answers.seq_len.where} says how long sequences are")
    elif limit is None:
        draft.use(whole, why="all samples are padded to sequence_len")
        draft.default("training.seq_len", _LONGEST, _RELEASE, _LENGTH)
    elif (padded := _in_steps(reader, limit.value)) != limit.value:
        draft.use(whole, why="all samples are padded to sequence_len")
        draft.infer("training.seq_len", padded, "the longest that sequence_len allows, padded", limit,
                    reader.integer("pad_to_multiple_of"), source=_STEPS)
    elif whole is not None and whole.value:
        draft.use(whole, why="all samples are padded to sequence_len")
        draft.put("training.seq_len", limit)
    else:
        draft.idle(whole, "the longest sequences are counted")
        draft.infer("training.seq_len", limit.value, "the longest that sequence_len allows", limit, source=_PADDED)


def _in_steps(reader: Reader, longest: int) -> int:
    """Length to which the longest sample of a text's batch is padded; preference training has a collator of its own."""
    if reader.look("pad_to_sequence_len") is False or reader.look("rl") or reader.look("processor_type"):
        return longest
    unit = reader.look("pad_to_multiple_of")
    unit = unit if isinstance(unit, int) and unit > 0 else _UNIT
    return -(-longest // unit) * unit


def _write_micro(draft: Draft, micro: Taken[int] | None) -> None:
    if micro is not None:
        draft.put("training.micro_batch_size", micro)
    else:
        draft.default("training.micro_batch_size", 1, _RELEASE, "utils/schemas/training.py micro_batch_size")


def read_batches(reader: Reader, draft: Draft, zero: Zero | None) -> None:
    """Writes the sequences (packs, where they are one row) of an optimizer step."""
    steps, batch = reader.integer("gradient_accumulation_steps"), reader.integer("batch_size")
    check_numbers(draft, zero, reader.integer("micro_batch_size"), steps)
    if steps is not None and batch is not None:
        draft.use(batch)
        draft.fail(batch.where, "only one of gradient_accumulation_steps and batch_size may be said "
                                "(utils/schemas/validation.py check_gas_bsz)")
    else:
        draft.idle(batch, f"gradient_accumulation_steps goes before it, 1 where it is not said ({_DEFAULTS})")
    mesh, training = draft.values.get("mesh", {}), draft.values.get("training", {})
    micro, ranks = training.get("micro_batch_size"), mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1)
    if micro is None or not mesh:
        draft.use(steps, why="microbatches of a step of so many ranks as are asked for")
    elif steps is not None:
        draft.infer("training.global_batch_size", micro * steps.value * ranks,
                    f"{micro} x {steps.key} x {ranks} data-parallel ranks", steps, source=_STEP)
    else:
        draft.default("training.global_batch_size", micro * ranks, _RELEASE, f"{_DEFAULTS}: no accumulation")
