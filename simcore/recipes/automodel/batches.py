"""Batches and lengths of an Automodel recipe: step scheduler, packing, data set.

[Note: lengths]
A mock or pretraining data set draws samples of one length. Others cut samples only where `truncation` says so, and pad
them only where `padding` is max_length; `seq_length` alone does neither. A sample loses one token when labels are made
(`components/datasets/llm/formatting_utils.py`, _package_tokenized_example), before it is padded. HellaSwag pads all
samples to its longest one unless `pad_to_max_length` is false (`datasets/utils.py`, SFTSingleTurnPreprocessor). What is
not padded yet is padded to the longest sample of its batch, then to a multiple of `pad_seq_len_divisible`
(`datasets/utils.py`, pad_within_micro).

[Note: batches]
The loader's batch is `dataloader.batch_size`, and `local_batch_size` only where that is missing (0.7.0
`recipes/_typed_config.py` _resolve_dataloader). Null switches the loader's batches off: a mock data set then yields
whole ones of its own `batch_size` (1), which benchmarks set to `local_batch_size` (`recipes/llm/benchmark.py`). The
scheduler counts the batches of a step by `local_batch_size`, however many rows they have (`grad_acc_steps`).
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.data_sets import ask_for_longest
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Off, read_rows

__all__ = ["read_batches", "read_lengths"]

_DRAWN: Final = ("MockIterableDataset", "MegatronPretraining", "NanogptDataset", "MockIterableDatasetConfig")
"""Data sets whose samples have one length."""
_PADDED_WHOLE: Final = ("HellaSwag",)
"""Data sets that are padded to their longest sample by default."""
_NAMES: Final = ("dataset.dataset_name", "dataset.path_or_dataset", "dataset.path_or_dataset_id")
"""Keys that name the data set's repository."""
_MOCK: Final = ("MockIterableDataset", "MockIterableDatasetConfig")
_SAMPLED: Final = ("MegatronPretraining",)
"""Data sets with a sampler of whole batches of local_batch_size."""
_LOADER: Final = "dataloader.batch_size"
_COLLATER: Final = ("nothing reads it: the packer's own collater takes its place (0.7.0 components/datasets/"
                    "loader.py:698)")
_UNCUT: Final = (None, False, "do_not_truncate")
_FORMATTING: Final = "components/datasets/llm/formatting_utils.py"
_GLOBAL: Final = 32
_RELEASE: Final = "Automodel 0.7.0"
_SCHEDULER: Final = "components/training/step_scheduler.py StepSchedulerConfig"


def read_lengths(reader: Reader, draft: Draft) -> None:
    """Writes the length of sequences: that of packs, the user's, that of samples; or asks for it."""
    target = reader.text("dataset._target_")
    draft.use(target, why="how samples are cut and padded")
    if draft.values.get("training", {}).get("lengths") == "packed":  # of sequences with images
        return
    pack = reader.integer("packed_sequence.packed_sequence_size")
    if pack is not None and pack.value > 0:
        draft.put("training.lengths", pack, "packed")
        if draft.answers.seq_len is not None:
            draft.answered("training.seq_len", draft.answers.seq_len)
        else:
            draft.put("training.seq_len", pack)
        _read_packing(reader, draft)
        return
    draft.idle(pack, "packing is off")
    draft.idle(reader.matching("packed_sequence.*"), "packing is off")
    limit = reader.integer("dataset.seq_length") or reader.integer("dataset.seq_len")
    name = target.value.rpartition(".")[2] if target else ""
    answer = draft.answers.seq_len
    if answer is not None:
        draft.answered("training.seq_len", answer)
        draft.idle([limit] if limit else [], f"{answer.where} says how long sequences are")
        draft.idle(reader.matching(*_SHAPES), f"{answer.where} says how long sequences are")
    elif limit is not None and name in _DRAWN:
        draft.put("training.seq_len", limit)
        draft.idle(reader.matching(*_SHAPES), "samples have one length")
    elif not _is_padded_by_collater(reader, draft):
        _limited(reader, draft, limit, name, target)


def _is_padded_by_collater(reader: Reader, draft: Draft) -> bool:
    """True for Kimi-VL's, which pads to `max_length`, and takes a token off when labels are made."""
    function, limit = "dataloader.collate_fn._target_", "dataloader.collate_fn.max_length"
    if str(reader.look(function)).rpartition(".")[2] != "kimi_vl_collate_fn" or not reader.has(limit):
        return False
    made, longest = reader.text(function), reader.integer(limit)
    if made is None or longest is None:  # the problem is told
        return True
    draft.infer("training.seq_len", longest.value - 1, "batches are padded to max_length, and one token less when "
                "labels are made; longer samples are left out", made, longest,
                source="components/datasets/vlm/collate_fns.py kimi_vl_collate_fn")
    return True


_SHAPES: Final = ("dataset.padding", "dataset.pad_to_max_length", "dataset.truncation",
                  "dataloader.collate_fn.pad_seq_len_divisible")


def _read_packing(reader: Reader, draft: Draft) -> None:
    strategy = reader.text("packed_sequence.packing_strategy")
    if strategy is not None and strategy.value != "thd":
        draft.refuse(strategy, f"packs by {strategy.value}")
    else:
        draft.idle(strategy, "the default")
    read_rows(reader, draft, [Off("packed_sequence.prepacked", "packs that the data set brings, of its own length")])
    draft.idle(reader.matching("dataloader.collate_fn", "dataloader.collate_fn.*"), _COLLATER)
    draft.idle(reader.matching("packed_sequence.*", "dataset.seq_length", *_SHAPES), "which samples come into a pack")


def _limited(reader: Reader, draft: Draft, limit: Taken[int] | None, name: str, target: Taken[str] | None) -> None:
    """Length of samples that are padded to `limit`, or cut there; without one of both it is asked."""
    padding, cut = reader.take("dataset.padding"), reader.take("dataset.truncation")
    multiple = reader.integer("dataloader.collate_fn.pad_seq_len_divisible")
    whole = reader.flag("dataset.pad_to_max_length")
    shaped = [one for one in (limit, padding, cut, multiple, whole) if one is not None]
    is_cut = cut is not None and cut.value not in _UNCUT
    if limit is not None and is_cut:
        is_padded = padding is not None and padding.value == "max_length"
        longest = limit.value if is_padded else limit.value - 1
        rule = (f"samples are cut and padded to {limit.key}" if is_padded else f"the longest sample is cut at "
                f"{limit.key}, and one token less when labels are made")
        if multiple is not None and multiple.value > 0:
            longest = -(-longest // multiple.value) * multiple.value
            rule += f", then padded to a multiple of {multiple.value}"
        draft.infer("training.seq_len", longest, rule, *shaped, source=_FORMATTING)
        return
    by = [*([target] if target else []), *shaped]
    ask_for_longest(reader, draft, _NAMES, f"tokens of a sequence: {_unlimited(limit, name, whole)}", *by,
                    multiple=multiple.value if multiple is not None and multiple.value > 0 else 1)


def _unlimited(limit: Taken[int] | None, name: str, whole: Taken[bool] | None) -> str:
    if name in _PADDED_WHOLE and (whole is None or whole.value):
        return f"{name} pads all samples to its longest one"
    short = f"{limit.key} without truncation cuts nothing, and " if limit else ""
    return f"{short}batches of {name or 'the data set'} are padded to their longest sample"


def read_batches(reader: Reader, draft: Draft) -> None:
    """Writes batch sizes, see [Note: batches]; with stages a microbatch is `pp_microbatch_size` of a batch."""
    local, whole = reader.integer("step_scheduler.local_batch_size"), reader.integer("step_scheduler.global_batch_size")
    if local is None:
        draft.release_default("step_scheduler.local_batch_size", 1, _RELEASE, "recipes/llm/train_ft.py")
    if _has_own_batches(reader, draft, local, whole):
        return
    if draft.values.get("mesh", {}).get("pp", 1) == 1:
        draft.put("training.micro_batch_size", local)
    else:
        draft.put("training.micro_batch_size", reader.integer("distributed.pipeline.pp_microbatch_size"))
        _read_schedule(draft, local, whole)
    if whole is not None:
        draft.put("training.global_batch_size", whole)
    else:
        draft.default("training.global_batch_size", _GLOBAL, _RELEASE, _SCHEDULER)


def _has_own_batches(reader: Reader, draft: Draft, local: Taken[int] | None, whole: Taken[int] | None) -> bool:
    """True if the loader's batches have other rows than `local_batch_size`, which are then written, or refused."""
    target = str(reader.look("dataset._target_") or "").rpartition(".")[2]
    counted, said = local.value if local else 1, reader.integer(_LOADER) if reader.has(_LOADER) else None
    if target in _SAMPLED:
        draft.idle(said, "the sampler of this data set makes batches of local_batch_size")
        return False
    rows, by = (said.value, [said]) if said else _rows_of_samples(reader, draft, target, counted)
    if rows == counted:
        draft.idle(by, "batches have step_scheduler.local_batch_size rows")
        return False
    step = whole.value if whole else _GLOBAL
    if draft.values.get("mesh", {}).get("pp", 1) > 1 or step % counted:
        draft.refuse(by[0], f"the loader's batches have {rows} row{'' if rows == 1 else 's'}, where a step counts each "
                            f"as step_scheduler.local_batch_size {counted}")
        draft.use(*by[1:])
        return False
    rule = ("the loader's batch goes before local_batch_size" if said else "samples of the data set are batches "
            "already (dataset.batch_size, 1 without it), which benchmarks' own recipe alone sets to local_batch_size")
    draft.infer("training.micro_batch_size", rows, rule, *by, source="recipes/_typed_config.py _resolve_dataloader")
    draft.infer("training.global_batch_size", step // counted * rows, f"{step} / {counted} batches of {rows}", *by,
                local, whole, source=_SCHEDULER)
    return True


def _rows_of_samples(reader: Reader, draft: Draft, target: str, counted: int) -> tuple[int, list[Taken[Any]]]:
    """Rows of a batch where the loader makes none, and keys that say so; `counted` where it makes them.

    Null beside a data set that yields no batches is an error of Automodel (`datasets/loader.py`).
    """
    nulls = reader.matching(_LOADER)
    if not nulls:
        return counted, []
    if target not in _MOCK:
        draft.refuse(nulls[0], "samples that are batches")
        return counted, []
    kind = reader.look("recipe._target_" if reader.is_mapping("recipe") else "recipe")
    own = reader.integer("dataset.batch_size")
    by = [*([own] if own else []), *nulls]
    return (counted if "Benchmarking" in str(kind) else own.value if own else 1), by


def _read_schedule(draft: Draft, local: Taken[int] | None, whole: Taken[int] | None) -> None:
    """Writes the sequences of one run of the pipeline's schedule, unless they are all of a step."""
    mesh: dict[str, Any] = draft.values.get("mesh", {})
    replicas = mesh.get("dp_shard", 0) * mesh.get("dp_replicate", 1)
    if local is not None and replicas and local.value * replicas != (whole.value if whole else _GLOBAL):
        draft.put("framework_options.local_batch_size", local)
    else:
        draft.use(local, why="all of a step, in one schedule")
