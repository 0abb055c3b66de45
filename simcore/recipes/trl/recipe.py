"""Reads a TRL recipe and the files beside it: a key ends in the scenario, in a list with its reason, or in an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.environment import with_environment
from simcore.recipes.format import Format
from simcore.recipes.huggingface.accelerate import Launch, read_processes
from simcore.recipes.huggingface.companions import companions_of
from simcore.recipes.huggingface.fields import fields_of
from simcore.recipes.huggingface.script import Script, names_model, read_started
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.tf32 import read_tf32
from simcore.recipes.huggingface.trainer import read_batches, read_optimizer, read_sharding
from simcore.recipes.imported import Imported, with_job
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.rows import read_rows
from simcore.recipes.trl.adapters import read_method
from simcore.recipes.trl.arguments import read_launcher
from simcore.recipes.trl.batches import read_lengths, read_lengths_of_pairs
from simcore.recipes.trl.checkpointing import read_checkpointing
from simcore.recipes.trl.formats import Formats, read_formats, write_formats, write_reference
from simcore.recipes.trl.grpo.batches import read_micro
from simcore.recipes.trl.grpo.defaults import OLD, Release, older_names, read_older, release_of
from simcore.recipes.trl.grpo.lengths import read_lengths as read_lengths_of_answers
from simcore.recipes.trl.grpo.recipe import begin_grpo, read_grpo, refuse_oldest
from simcore.recipes.trl.grpo.releases import OLDER_NAMES, Turn, turn_of
from simcore.recipes.trl.grpo.without_effect import NAMES
from simcore.recipes.trl.model import read_kernels, read_loss, read_model
from simcore.recipes.trl.preference import fields_of_stage, gone_of, read_pairs, write_pairs
from simcore.recipes.trl.stages import GRPO, SFT, arguments_of, refuse_stage, stage_of
from simcore.recipes.trl.without_effect import OF_SCRIPTS, WITHOUT_EFFECT
from simcore.recipes.trl.written import WRITER

__all__ = ["FORMAT"]

_OTHERS: Final = frozenset({"stage", "finetuning_type", "template", "cutoff_len", "base_model"})
"""Keys of recipes of other tools that also name their model by `model_name_or_path`."""


_STARTS: Final = re.compile(r"\btrl\s+(?:sft|dpo|grpo|kto|reward)\b|\b(?:sft|dpo|grpo|kto|reward)\w*\.py\b")
_NAMES_FILE: Final = re.compile(r"--config[ =]")


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is None:
        return names_model(file) and bool(_STARTS.search(file.text)) and not _NAMES_FILE.search(file.text)
    return "model_name_or_path" in document.data and _OTHERS.isdisjoint(document.data)


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    return read_started(files[0], answers, lambda script: _of_document(files, script, loose=loose))


def _of_document(files: Sequence[RecipeFile], script: Script, *, loose: bool) -> Imported:
    file = files[0]
    names = frozenset(map(str, script.document.data))
    draft = Draft("trl", file.path, script.answers)
    stage = stage_of(names, draft)
    gone = {SFT: frozenset[str](), GRPO: OLDER_NAMES}.get(stage, gone_of(stage))
    turn = turn_of(names, OLD)
    release = turn.release if stage == GRPO else release_of(names, gone)
    reader = Reader(script.document, fields=_fields(stage), older=older_names(names))
    draft.infer("name", Path(file.path).stem, "the file's name")
    if refuse_oldest(reader, draft) if stage == GRPO else refuse_stage(reader, draft, stage):
        return draft.imported([reader], loose=loose)
    if stage == GRPO:
        begin_grpo(reader, draft, arguments_of(GRPO), turn)
    read_older(reader, draft, release, gone)
    draft = read_launcher(reader, draft, [Path(one.path).name for one in files[1:]])
    beside = companions_of(files[1:], draft, takes=("accelerate", "deepspeed", "adapter"))
    if beside.accelerate is not None:
        draft = read_processes(beside.accelerate, draft)
    read_machine(draft, None)
    read_model(reader, draft)
    launch = read_sharding(reader, draft, beside)
    formats = read_formats(reader, draft, launch, release)
    read_method(reader, draft, beside.adapter, launch, formats, release)
    write_formats(draft, formats, launch, release)
    read_tf32(reader, draft, casts=bool(formats.mixed))
    if stage == GRPO:
        _read_grpo(reader, draft, launch, formats, turn)
    else:
        _read_stage(reader, draft, stage, launch, release)
        write_reference(draft, formats, launch)
    read_optimizer(reader, draft, launch, release.optimizer, release.trainer)
    read_rows(reader, draft, WITHOUT_EFFECT)
    imported = draft.imported([reader, *beside.readers()], loose=loose)
    return with_job(with_environment(imported, script.environment), script.job)


def _fields(stage: str) -> frozenset[str]:
    """Keys at the top of a recipe of a training, and those of scripts around it."""
    return (fields_of("trl") | NAMES if stage == GRPO else fields_of_stage(stage)) | OF_SCRIPTS | {"env"}


def _read_grpo(reader: Reader, draft: Draft, launch: Launch, formats: Formats, turn: Turn) -> None:
    """Reads what GRPO generates, compares with, and trains on."""
    read_kernels(reader, draft)
    read_checkpointing(reader, draft, launch, turn.release)
    read_lengths_of_answers(reader, draft, turn)
    read_micro(reader, draft)
    read_batches(reader, draft, launch)
    upcast = launch.shards in (Shards.EACH, Shards.FLAT) and bool(formats.mixed) and formats.stored != "fp32"
    read_grpo(reader, draft, formats.stored if upcast else "", turn)


def _read_stage(reader: Reader, draft: Draft, stage: str, launch: Launch, release: Release) -> None:
    """Reads the loss, the lengths and the batches of a training."""
    if stage == SFT:
        read_loss(reader, draft, launch, release)
    else:
        read_pairs(reader, draft, release, stage)
    read_kernels(reader, draft)
    read_checkpointing(reader, draft, launch, release)
    (read_lengths if stage == SFT else read_lengths_of_pairs)(reader, draft, release)
    read_batches(reader, draft, launch)
    if stage != SFT:
        write_pairs(reader, draft, stage)


FORMAT: Final = Format("trl", "TRL YAML (trl sft, dpo, grpo, kto, reward)", _recognises, _read, WRITER,
                       takes_launcher=True, repeats="f2cd5771 scripts/utils.py: yaml.safe_load")
