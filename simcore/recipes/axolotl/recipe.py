"""Reads an axolotl recipe: every key ends in the scenario, in a list with its reason, or in an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.recipes.answers import Answers
from simcore.recipes.axolotl.adapters import read_method
from simcore.recipes.axolotl.batches import read_batches, read_lengths
from simcore.recipes.axolotl.checkpointing import read_checkpointing
from simcore.recipes.axolotl.environment import write_environment
from simcore.recipes.axolotl.images import read_images
from simcore.recipes.axolotl.model import read_formats, read_model
from simcore.recipes.axolotl.optimizer import read_optimizer
from simcore.recipes.axolotl.preference import write_preference
from simcore.recipes.axolotl.ranks import read_ranks
from simcore.recipes.axolotl.refused import refuse_rest
from simcore.recipes.axolotl.sharding import read_sharding
from simcore.recipes.axolotl.without_effect import WITHOUT_EFFECT
from simcore.recipes.axolotl.written import WRITER
from simcore.recipes.draft import Draft
from simcore.recipes.format import Format
from simcore.recipes.huggingface.companions import companions_of
from simcore.recipes.huggingface.fields import fields_of
from simcore.recipes.huggingface.fsdp import wrap_adapters
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.shipped import AXOLOTL, with_own
from simcore.recipes.imported import Imported
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.rows import read_rows

__all__ = ["FORMAT"]

_TELLING: Final = frozenset({"datasets", "pretraining_dataset", "micro_batch_size", "sequence_len", "val_set_size"})
_OLD: Final = frozenset({"gptq_groupsize", "gptq_model_v1", "gptq_disable_exllama", "adam_eps",
                         "sample_packing_seq_len_multiplier"})
"""Keys of old releases, which its examples still have, and nothing reads."""


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    return document is not None and "base_model" in document.data and not _TELLING.isdisjoint(document.data)


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    reader, draft = Reader(file.document, fields=fields_of("axolotl") | _OLD), Draft("axolotl", file.path, answers)
    draft.infer("name", Path(file.path).stem, "the file's name")
    draft = read_ranks(reader, draft)
    read_machine(draft, None)
    read_model(reader, draft)
    beside = with_own(companions_of(files[1:], draft, takes=("deepspeed",)), reader, AXOLOTL)
    sharding = read_sharding(reader, draft, beside.deepspeed)
    read_method(reader, draft, sharding.shards)
    read_images(reader, draft, sharding.shards)
    read_formats(reader, draft, sharding)
    read_checkpointing(reader, draft)
    read_lengths(reader, draft)
    read_batches(reader, draft, sharding.zero)
    read_optimizer(reader, draft, sharding)
    write_preference(reader, draft)
    write_environment(draft)
    _check(reader, draft, sharding.shards)
    refuse_rest(reader, draft)
    read_rows(reader, draft, WITHOUT_EFFECT)
    return draft.imported([reader, *beside.readers()], loose=loose)


_UNITS: Final = ("axolotl gathers each matrix of an adapter by itself (monkeypatch/accelerate/fsdp2.py "
                 "_process_lora_module_for_fsdp); here it is in its layer's unit: many small gathers a layer are left "
                 "out, and peaks of small models came out up to 15 % too high")
_WIDE: Final = "axolotl 067b021c loaders/model.py _configure_embedding_dtypes"


def _check(reader: Reader, draft: Draft, shards: Shards) -> None:
    """Writes what follows from sharding, method and attention together: wrapped adapters, norms and tables in fp32."""
    training = draft.values.get("training", {})
    method = training.get("method", "full")
    if shards is Shards.FLAT and method != "full":
        wrap_adapters(draft)
    if shards is Shards.EACH and method != "full":
        draft.unmodelled_default("fsdp_version: 2, units of adapters", "each A and B", _UNITS)
    attention = draft.values.get("framework_options", {}).get("attn_implementation", "sdpa")
    narrow = training.get("precision", {}).get("params") in ("bf16", "fp16")
    if shards is Shards.NONE and method == "full" and attention in ("eager", "sdpa") and narrow and (
            training.get("loss") != "cut"):
        draft.infer("framework_options.convert_embedding_modules_dtype", True,  # noqa: FBT003 - a value
                    "without flash attention and cut cross entropy norms, embedding and head are in fp32",
                    source=_WIDE)
        if reader.look("bf16") == "full":
            draft.infer("framework_options.autocast", False, "bf16: full, without mixed precision",  # noqa: FBT003 - a value
                        source=_WIDE)


FORMAT: Final = Format("axolotl", "axolotl YAML", _recognises, _read, WRITER, repeats=
                       "067b021c cli/config.py: yaml.safe_load", sets_itself={
    "mixed_precision": "axolotl sets ACCELERATE_MIXED_PRECISION anew, by the recipe's fp8, bf16 and fp16 (067b021c "
                       "utils/trainer.py prepare_optim_env)"})
