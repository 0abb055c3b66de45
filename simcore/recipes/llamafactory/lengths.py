"""Rows and microbatch of a LLaMA-Factory recipe.

[Note: one token less] `packing: true` takes one token from `cutoff_len` (ff6d4d12 `hparams/data_args.py`
__post_init__), which packs for `sft` get back as padding (`data/processor/supervised.py`). Packs of `pt` do not;
without the key they are `cutoff_len` long, since `hparams/parser.py` decides later that `pt` packs.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_lengths"]

_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_PADDED: Final = f"{_RELEASE} train/sft/workflow.py: padded to the longest of a batch, in steps of 8"
_CUT: Final = f"{_RELEASE} data/processor/pretrain.py"
_ROWS: Final = f"{_RELEASE} data/processor/supervised.py: all packs are as long"
_NEAT: Final = f"{_RELEASE} data/collator.py _unpad_packed_features: padding is cut off again"
_STEP: Final = 8


def read_lengths(reader: Reader, draft: Draft, stage: str) -> None:
    """Writes the length of rows and the microbatch.

    `stage`: pt, sft, or dpo or kto, which never pack (`data/processor/pairwise.py`, `feedback.py`).
    """
    limit, micro = reader.integer("cutoff_len"), reader.integer("per_device_train_batch_size")
    packing, neat = reader.flag("packing"), reader.flag("neat_packing")
    if micro is not None:
        draft.put("training.micro_batch_size", micro)
    else:
        draft.default("training.micro_batch_size", 8, "transformers 5.8.0", "training_args.py "
                                                                            "per_device_train_batch_size")
    if neat is not None and neat.value:
        draft.idle(packing, "neat_packing packs")
        _read_neat(draft, limit, micro, neat, stage)
        return
    draft.idle(neat, "the default")
    size = limit.value if limit else 2048
    packs = stage not in ("dpo", "kto") and (packing.value if packing is not None else stage == "pt")
    if packing is None:
        draft.release_default("packing", str(packs).lower(), _RELEASE, "hparams/parser.py: pt packs, sft does not")
    if packs and stage == "pt":
        said = packing is not None
        _write(draft, limit, size - said, "packs of cutoff_len" + (", less one" if said else ""), _CUT, packing)
    elif packs:
        _write(draft, limit, _stepped(size), "packs of cutoff_len, in steps of 8", _ROWS, packing)
    elif stage == "pt":
        _write(draft, limit, size, "the longest that cutoff_len allows", _CUT, packing)
    else:
        _write(draft, limit, _stepped(size), "the longest that cutoff_len allows, in steps of 8", _PADDED, packing)


def _read_neat(draft: Draft, limit: Taken[int] | None, micro: Taken[int] | None, neat: Taken[bool],
               stage: str) -> None:
    """Packs whose samples do not see each other: without flash-attn by a mask of all pairs, which is not simulated."""
    options = draft.values.get("framework_options", {})
    if stage == "pt":
        draft.use(neat)
        draft.fail(neat.where, f"neat_packing under stage pt is an error ({_RELEASE} hparams/parser.py)")
    elif options.get("attn_implementation") != "flash_attention_2":
        draft.refuse(neat, "samples kept apart by a mask of all pairs (served: with flash_attn: fa2)")
    elif micro is None or micro.value != 1:
        draft.use(neat)
        draft.fail(neat.where, "neat_packing with flash-attn takes one row a microbatch: per_device_train_batch_size "
                               f"must be 1 ({_RELEASE} data/collator.py)")
    else:
        draft.infer("training.lengths", "packed", "neat_packing", neat, source=_NEAT)
    _write(draft, limit, (limit.value if limit else 2048) - 1, "packs of cutoff_len, less one", _NEAT)


def _write(draft: Draft, limit: Taken[int] | None, length: int, rule: str, source: str,
           packing: Taken[bool] | None = None) -> None:
    """Writes the length of a row: the answer, or `length`, which follows by `rule`."""
    answer = draft.answers.seq_len
    if answer is not None:
        draft.answered("training.seq_len", answer)
        draft.idle([one for one in (limit, packing) if one], f"{answer.where} says how long rows are")
    elif limit is None and length == 2048:
        draft.use(packing, why="rows are as long as by default")
        draft.default("training.seq_len", length, _RELEASE, "hparams/data_args.py cutoff_len")
    else:
        draft.infer("training.seq_len", length, rule, limit, packing, source=source)


def _stepped(length: int) -> int:
    return -(-length // _STEP) * _STEP
