"""Batches and lengths of an Automodel recipe: step scheduler, packing, data set."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_batches", "read_lengths"]

_PADDED: Final = "components/datasets/utils.py default_collater pads a batch to its longest sequence"


def read_lengths(reader: Reader, draft: Draft) -> None:
    """Writes the length of sequences: the user's, that of packs, of drawn samples, of padding, or asks for it."""
    target = reader.text("dataset._target_")
    draft.use(target)
    pack = reader.integer("packed_sequence.packed_sequence_size")
    limit = reader.integer("dataset.seq_length") or reader.integer("dataset.seq_len")
    answer = draft.answers.seq_len
    if pack is not None and pack.value > 0:
        draft.put("training.lengths", pack, "packed")
        draft.put("training.seq_len", pack)
        draft.idle(limit, "packs have a length of their own")
        _packing(reader, draft)
        return
    draft.idle(pack, "packing is off")
    draft.idle(reader.matching("packed_sequence.*"), "packing is off")
    padded = [reader.take("dataset.padding"), reader.take("dataset.pad_to_max_length")]
    if answer is not None:
        draft.answered("training.seq_len", answer)
        draft.idle([one for one in (limit, *padded) if one], f"{answer.where} says how long sequences are")
    elif limit is not None:
        _limited(draft, target, limit, padded)
    else:
        draft.use(*padded)
        name = target.value.rpartition(".")[2] if target else "the data set"
        draft.ask("training.seq_len", "--seq-len N", f"tokens of a sequence, which {name} does not limit ({_PADDED})",
                  target)


def _packing(reader: Reader, draft: Draft) -> None:
    strategy = reader.text("packed_sequence.packing_strategy")
    if strategy is not None and strategy.value != "thd":
        draft.refuse(strategy, f"packs by {strategy.value}")
    else:
        draft.idle(strategy, "the default")
    draft.idle(reader.matching("packed_sequence.*", "dataset.padding", "dataset.pad_to_max_length"),
               "which samples come into a pack")


def _limited(draft: Draft, target: Taken[str] | None, limit: Taken[int], padded: list[Taken[object] | None]) -> None:
    """Length of a data set with a longest sequence: all have it if they are padded to it, or drawn with it."""
    drawn = target is not None and "MockIterableDataset" in target.value
    if drawn or any(one is not None and one.value in (True, "max_length") for one in padded):
        draft.put("training.seq_len", limit)
        draft.use(*padded)
    else:
        draft.infer("training.seq_len", limit.value, f"the longest that {limit.key} allows: {_PADDED}", limit, *padded)


def read_batches(reader: Reader, draft: Draft) -> None:
    """Writes batch sizes; with pipeline stages a microbatch is `pp_microbatch_size` of `local_batch_size`."""
    local, whole = reader.integer("step_scheduler.local_batch_size"), reader.integer("step_scheduler.global_batch_size")
    stages = draft.values.get("mesh", {}).get("pp", 1)
    if stages == 1:
        draft.put("training.micro_batch_size", local)
    else:
        micro = reader.integer("distributed.pipeline.pp_microbatch_size")
        draft.put("training.micro_batch_size", micro)
        _read_schedule(draft, local, whole)
    draft.put("training.global_batch_size", whole)


def _read_schedule(draft: Draft, local: Taken[int] | None, whole: Taken[int] | None) -> None:
    """Uses the sequences of one schedule of pipeline stages, which must be all of a step.

    Several schedules are refused: the simulation would count them as one of all their microbatches.
    """
    mesh = draft.values.get("mesh", {})
    replicas = mesh.get("dp_shard", 0) * mesh.get("dp_replicate", 1)
    if local is not None and whole is not None and replicas and local.value * replicas != whole.value:
        draft.refuse(local, f"several schedules of pipeline stages in a step: {whole.value} sequences are "
                            f"{whole.value / replicas / local.value:g} x {replicas} ranks x {local.value}")
    else:
        draft.use(local)
