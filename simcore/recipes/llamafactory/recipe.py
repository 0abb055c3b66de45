"""Reads a LLaMA-Factory recipe and the files beside it: a key ends in the scenario, in a list, or in an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from simcore.recipes.answers import Answer, Answers
from simcore.recipes.draft import Draft
from simcore.recipes.environment import with_environment
from simcore.recipes.format import Format
from simcore.recipes.huggingface.accelerate import Launch, read_processes
from simcore.recipes.huggingface.companions import Companions, companions_of
from simcore.recipes.huggingface.fields import fields_of
from simcore.recipes.huggingface.script import Script, names_model, read_started
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.shipped import LLAMA_FACTORY, with_own
from simcore.recipes.huggingface.trainer import read_batches, read_optimizer, read_sharding
from simcore.recipes.imported import Imported, with_job
from simcore.recipes.llamafactory.checkpointing import read_checkpointing
from simcore.recipes.llamafactory.environment import ALLOCATOR, check_programs, ray_at, write_environment
from simcore.recipes.llamafactory.formats import read_formats
from simcore.recipes.llamafactory.images import read_images
from simcore.recipes.llamafactory.kind import VERSION_1, is_rewrite, trains
from simcore.recipes.llamafactory.lengths import read_lengths
from simcore.recipes.llamafactory.low_rank import read_low_rank_switch
from simcore.recipes.llamafactory.method import read_method
from simcore.recipes.llamafactory.model import read_model
from simcore.recipes.llamafactory.preference import write_preference
from simcore.recipes.llamafactory.rewrite import FIELDS, read_rewrite
from simcore.recipes.llamafactory.without_effect import WITHOUT_EFFECT
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.rows import read_rows

__all__ = ["FORMAT"]

_TELLING: Final = frozenset({"stage", "finetuning_type", "template", "cutoff_len"})
"""Arguments that trainers of other projects do not have."""


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is None:
        return names_model(file) and any(f"--{name}" in file.text for name in _TELLING)
    names = {*document.data}
    return ("model_name_or_path" in names and not _TELLING.isdisjoint(names)) or (
        "model" in names and len(names & VERSION_1) > 1)


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    return read_started(files[0], answers, lambda script: _of_document(files, script, loose=loose))


def _of_document(files: Sequence[RecipeFile], script: Script, *, loose: bool) -> Imported:
    file = files[0]
    if is_rewrite(script.document.data):
        return _of_rewrite(files, script, loose=loose)
    reader = Reader(script.document, fields=fields_of("llamafactory"))
    draft = Draft("llamafactory", file.path, script.answers)
    draft.infer("name", Path(file.path).stem, "the file's name")
    beside = with_own(companions_of(files[1:], draft, takes=("accelerate", "deepspeed")), reader, LLAMA_FACTORY)
    stage = str(reader.look("stage") or "sft")
    if trains(reader, draft):
        draft = _read_training(reader, draft, beside, stage)
    else:
        for one in beside.readers():
            draft.idle(one.matching("*"), "beside a recipe that is refused")
    imported = draft.imported([reader, *beside.readers()], loose=loose)
    if ("environment", "expandable_segments") in draft.origins:
        imported = replace(imported, sets_anew=frozenset({ALLOCATOR}))
    return with_job(with_environment(imported, script.environment), script.job)


def _of_rewrite(files: Sequence[RecipeFile], script: Script, *, loose: bool) -> Imported:
    """A recipe of the rewrite, beside which no other file is read."""
    reader, draft = Reader(script.document, fields=FIELDS), Draft("llamafactory", files[0].path, script.answers)
    draft.infer("name", Path(files[0].path).stem, "the file's name")
    beside = companions_of(files[1:], draft, takes=())
    read_rewrite(reader, draft)
    write_environment(draft, Launch(Shards.NONE), beside)
    return with_job(with_environment(draft.imported([reader], loose=loose), script.environment), script.job)


def _read_training(reader: Reader, draft: Draft, beside: Companions, stage: str) -> Draft:
    """Reads the recipe block by block; the draft that it returns has the number of GPUs that files say."""
    check_programs(draft)
    draft = _read_workers(reader, draft)
    if beside.accelerate is not None:
        draft = read_processes(beside.accelerate, draft)
    read_machine(draft, None)
    read_model(reader, draft)
    launch = _read_sharding(reader, draft, beside)
    method = read_method(reader, draft, launch)
    read_images(reader, draft, method)
    read_formats(reader, draft, launch, method)
    read_checkpointing(reader, draft, launch)
    read_lengths(reader, draft, stage)
    read_batches(reader, draft, launch)
    if not read_low_rank_switch(reader, draft, launch, method):
        read_optimizer(reader, draft, launch)
    write_environment(draft, launch, beside)
    write_preference(reader, draft, stage)
    read_rows(reader, draft, WITHOUT_EFFECT)
    return draft


def _read_sharding(reader: Reader, draft: Draft, beside: Companions) -> Launch:
    """As `trainer.read_sharding`, which has FSDP of a later Trainer: this one takes version 1 where none is said."""
    if reader.look("fsdp") in (None, False, "", []):
        return read_sharding(reader, draft, beside)
    draft.refuse(reader.take("fsdp"), "FSDP by the trainer's own arguments (served: accelerate's YAML beside it)")
    draft.idle(reader.matching("fsdp_*", "deepspeed", "deepspeed.*", "ddp_*"), "settings of what is refused")
    for one in beside.readers():
        draft.idle(one.matching("*"), "beside FSDP that is refused")
    return Launch(Shards.NONE, is_refused=True)


def _read_workers(reader: Reader, draft: Draft) -> Draft:
    """The draft with the number of Ray's workers, which have a GPU each.

    A launch script says by USE_RAY that Ray starts them (1 where the recipe has no number); without a script `--gpus`
    goes before the recipe's number.
    """
    workers, answer = reader.integer("ray_num_workers"), draft.answers.gpus
    by_ray = ray_at(draft.answers)
    if not by_ray and (workers is None or answer is not None or draft.answers.launcher):
        draft.idle(workers, "read with USE_RAY=1 alone")
        return draft
    said = Answer(workers.value if workers else 1, workers.where if workers else by_ray)
    draft.use(workers, why="Ray starts as many ranks as it has workers")
    if answer is not None and answer.value != said.value:
        draft.fail(answer.where, f"Ray starts {said.value} ranks ({said.where}; USE_RAY, {by_ray}): ray_num_workers, 1 "
                                 "where it is not said")
    return replace(draft, answers=replace(draft.answers, gpus=answer or said))


FORMAT: Final = Format("llamafactory", "LLaMA-Factory YAML", _recognises, _read, takes_launcher=True)
