"""Releases of TRL by which a recipe is read: the newest, or an older one that had the names of the recipe.

A recipe with names that ended with TRL 0.19 has the defaults of 0.19.1, which recompute no layer; one with other names
of transformers 4 those of 0.24.0. Neither makes the newest's loss without whole logits. Layers are those of
transformers 5.23 all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.inputs.block import shorten
from simcore.recipes.draft import Draft
from simcore.recipes.imported import Left
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Row, Says, read_rows

__all__ = ["NEWEST", "OLD", "OLDER", "Release", "note_norms", "older_names", "read_older", "release_of"]


@dataclass(frozen=True, slots=True)
class Release:
    """Defaults of a release of TRL, and of the transformers beside it, that change what a step holds.

    `recomputes`: layers are recomputed by default; `cuts_logits`: the loss makes no whole logits; `optimizer`: the
    default of `optim`; `narrow_adapters`: adapters beside a packed base are in bf16, and its norms as they are read;
    `mixes`: bf16 is on unless fp16 is.
    """

    name: str
    trainer: str
    recomputes: bool
    cuts_logits: bool
    optimizer: str
    narrow_adapters: bool
    mixes: bool = True


NEWEST: Final = Release("TRL 1.16.0", "transformers 5.23.0", recomputes=True, cuts_logits=True,
                        optimizer="adamw_torch_fused", narrow_adapters=True)
OLDER: Final = Release("TRL 0.19.1", "transformers 4.53.0", recomputes=False, cuts_logits=False,
                       optimizer="adamw_torch", narrow_adapters=False)
"""The last release with `max_seq_length` (v0.19.1 `trainer/sft_config.py`), and transformers of the same month."""
MIDDLE: Final = Release("TRL 0.24.0", "transformers 4.56.1 with torch 2.8", recomputes=True, cuts_logits=False,
                        optimizer="adamw_torch_fused", narrow_adapters=False)
"""A release after those names, with transformers 4's (v0.24.0 `trainer/sft_config.py`, `models/utils.py`)."""

_RENAMED: Final[Mapping[str, str]] = {
    "dtype": "torch_dtype", "max_length": "max_seq_length", "use_liger_kernel": "use_liger",
    "per_device_train_batch_size": "per_gpu_train_batch_size"}
"""Older name of a key by its name in TRL 1.16.0 and transformers 5.23.0, with the same values."""
_GONE: Final = ("evaluation_strategy", "warmup_ratio", "overwrite_output_dir", "logging_dir", "push_to_hub_model_id",
                "save_safetensors", "dataset_batch_size", "num_of_sequences", "chars_per_token",
                "include_tokens_per_second", "group_by_length", "no_cuda", "torchdynamo", "fp16_opt_level", "adafactor")
"""Arguments that no name of the newer releases takes the place of in the same words."""
OLD: Final = frozenset((*_RENAMED.values(), *_GONE))
_OLDEST: Final = ("max_seq_length", "use_liger", "dataset_batch_size", "num_of_sequences", "chars_per_token")
"""Arguments of TRL's that ended with 0.19 or before; others are transformers 4's, or ended later."""
_FIRST: Final = ("max_seq_length", "per_gpu_train_batch_size", "use_liger")
"""Older names that go before the newer one where both stand (TRL v0.19.1 `trainer/sft_config.py:261`, v0.12.0
`sft_trainer.py`; transformers 4 `training_args.py` train_batch_size)."""
_ROWS: Final[tuple[Row, ...]] = (
    Idle(("evaluation_strategy", "overwrite_output_dir", "logging_dir", "push_to_hub_model_id", "save_safetensors"),
         "when it evaluates, and what it writes"),
    Idle(("warmup_ratio",), "a learning rate is a value"),
    Idle(("dataset_batch_size", "num_of_sequences", "chars_per_token"), "how samples are read"),
    Idle(("include_tokens_per_second", "fp16_opt_level"), "what is logged, and Apex, which is not used"),
    Off("no_cuda", "training on the CPU"),
    Says("torchdynamo", "", "text", {None: None}, what="layers by torch.compile, backend"),
)
_READ_AS: Final = ("of an older release: read by the defaults of {} with {} ({}whole logits), on the layers of "
                   "transformers 5.23.0; TRL 1.16.0 has no such argument, at which `trl sft` stops")
_NORMS: Final = ("norms beside a packed base, which TRL 0.19 to 0.24 keep in fp32 (PEFT "
                 "prepare_model_for_kbit_training, peft_module_casting_to_bf16)")


def older_names(names: frozenset[str]) -> dict[str, str]:
    """Older names among the top-level `names` of a recipe, by the newer one, where the older one is read."""
    return {new: old for new, old in _RENAMED.items() if old in names and (new not in names or old in _FIRST)}


def release_of(names: frozenset[str], gone: frozenset[str] = frozenset()) -> Release:
    """The release by which a recipe with these names is read; `gone`: further arguments that the newest has not."""
    return NEWEST if names.isdisjoint(OLD | gone) else MIDDLE if names.isdisjoint(_OLDEST) else OLDER


def read_older(reader: Reader, draft: Draft, release: Release, gone: frozenset[str] = frozenset()) -> None:
    """Lists the arguments that only older releases have, and says by which release the recipe is read."""
    if release is NEWEST:
        return
    known = frozenset(_OLDEST) if release is OLDER else OLD | gone
    first = next(one for one in reader.all() if one.key in known)
    default = "layers are recomputed, " if release.recomputes else "no layer is recomputed unless it is asked for, "
    draft.left.append(Left("not modelled", first.where, first.key, shorten(first.value),
                           _READ_AS.format(release.name, release.trainer, default)))
    read_rows(reader, draft, _ROWS)
    for new, old in _RENAMED.items():
        if old in reader.older.values():
            draft.idle(reader.matching(new), f"{old} goes before it")
        else:
            draft.idle(reader.matching(old), f"{new} goes before it")


def note_norms(draft: Draft) -> None:
    """Says what the answer leaves out of a packed base under the older release."""
    draft.unmodelled_default("norms", "fp32", _NORMS)
