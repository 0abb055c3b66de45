"""Recognises scripts of OpenRLHF, reads those of four trainers, refuses the others by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from simcore.inputs.yaml_parser import dotted
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.environment import with_environment
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported, with_job
from simcore.recipes.megatron.launch import agreed
from simcore.recipes.openrlhf.command import Command, command_of, trainer_in
from simcore.recipes.openrlhf.pairs import read_dpo, read_rewards
from simcore.recipes.openrlhf.ppo import read_ppo
from simcore.recipes.openrlhf.sft import read_sft
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["FORMAT"]

_RAY: Final = "train_ppo_ray"
"""Trainer whose models are processes that Ray starts."""
_MODELS: Final = (("model", "model_name_or_path"), ("actor", "model_name_or_path"))
_OVER_ZERO: Final = {"train_sft": read_sft, "train_dpo": read_dpo, "train_rm": read_rewards}
_OTHERS: Final = {
    "train_prm": "a process reward model by OpenRLHF", "train_kto": "KTO by OpenRLHF",
    "train_kd": "distillation by OpenRLHF"}


def _recognises(file: RecipeFile) -> bool:
    return file.mapping() is None and trainer_in(file.text)


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    draft = Draft("openrlhf", file.path, answers)
    draft.infer("name", Path(file.path).stem, "the file's name")
    command = command_of(file.text, file.path, draft.answers.variables, file.sources)
    gpus = answers.gpus if command.trainer == _RAY else agreed(answers.gpus, command.gpus)
    draft = replace(draft, answers=replace(draft.answers, gpus=gpus))
    for other in files[1:]:
        draft.fail(other.path, "is read by no trainer of OpenRLHF, whose settings are arguments alone")
    reader = Reader(command.document)
    readers = [reader]
    if command.trainer in _OVER_ZERO:
        readers.append(_OVER_ZERO[command.trainer](reader, draft))
        _tell_unknown(draft, command)
    elif command.trainer == _RAY:
        draft, strategy = read_ppo(reader, draft)
        readers.append(strategy)
        _tell_unknown(draft, command)
    else:
        _refuse(reader, draft, command)
    imported = draft.imported(readers, loose=loose)
    return with_job(with_environment(imported, command.environment), command.job)


def _refuse(reader: Reader, draft: Draft, command: Command) -> None:
    first = next(iter(reader.all()), None)
    told = _OTHERS.get(command.trainer, "a trainer of OpenRLHF")
    draft.refuse(first and reader.take(first.key), f"{command.trainer}: {told}", always=True)
    draft.idle(reader.matching("*"), "of a recipe that is refused")


def _tell_unknown(draft: Draft, command: Command) -> None:
    """Tells values that more than the script decides, but for those on which nothing depends."""
    idle = {left.key for left in draft.left if left.kind == "no effect"}
    for path, reason in command.unknown.items():
        if path in _MODELS:
            draft.leave_out("model")
            draft.ask("model", "--set model=NAME or PATH of its config.json", f"model ({dotted(path)}: {reason})")
        elif dotted(path) not in idle:
            draft.fail(command.document.where(path), reason)


FORMAT: Final = Format("openrlhf", "OpenRLHF scripts", _recognises, _read)
