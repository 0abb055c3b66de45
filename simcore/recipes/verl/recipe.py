"""Recognises recipes of verl, scripts and YAML alike, and reads those of the supervised trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.models.placeholders import meant
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.environment import with_environment
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported, with_job
from simcore.recipes.inheritance.parents import DEFAULTS, merged
from simcore.recipes.inheritance.references import resolved
from simcore.recipes.megatron.launch import agreed
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.verl.command import Command, command_of, trainer_in
from simcore.recipes.verl.defaults import expect_new, expect_there
from simcore.recipes.verl.rl import DAPO, MAIN, read_or_refuse
from simcore.recipes.verl.sft import SFT, read_sft

__all__ = ["FORMAT"]

_IDLE: Final = ("trainer", "hydra")
_ENGINE: Final = "verl.trainer.sft_trainer"
_MODELS: Final = {"actor_rollout_ref.model.path": "model", "model.partial_pretrain": "model",
                  "critic.model.path": "rl.critic.model", "reward_model.model.path": "rl.reward.model"}
"""Keys that name a model, with those of the scenario."""
_PACKAGED: Final = ("ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "dapo_trainer", "dapo_megatron_trainer",
                    "_self_")
"""Parents whose values are verl's own defaults."""
_STRATEGY: Final = ("actor_rollout_ref", "actor", "strategy")
_BY_PARENT: Final = {"ppo_megatron_trainer": "megatron", "dapo_megatron_trainer": "megatron"}
"""Strategies of the actor by verl's own files that set one, as fsdp is elsewhere."""


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is None:
        return trainer_in(file.text)
    model = document.data.get("model")
    return isinstance(document.data.get("actor_rollout_ref"), dict) or _has_engine(document) or (
        isinstance(model, dict) and "partial_pretrain" in model)


def _has_engine(document: Document) -> bool:
    """True for the file of the newer supervised trainer (`verl.trainer.sft_trainer`), whose parents have an engine."""
    parents = document.data.get(DEFAULTS)
    return isinstance(parents, list) and any(isinstance(one, dict) and "engine@engine" in one for one in parents)


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    draft = Draft("verl", file.path, answers)
    draft.infer("name", Path(file.path).stem, "the file's name")
    command = None if file.mapping() else command_of(file.text, file.path, draft.answers.variables, file.sources)
    whole = _with_strategy(_document(files, command, draft), command.config if command else "")
    document, problems = resolved(whole, {}, lambda path: path[0] in _IDLE)
    reader = Reader(document)
    trainer = reader.look("hydra.trainer") or (
        _ENGINE if _has_engine(document) else SFT if reader.is_mapping("model") else MAIN)
    if trainer == SFT:
        _read_groups(reader, draft)
        draft.wrong.extend(problems)
        if command is not None:
            expect_new(draft, command.appended, [one for one in map(RecipeFile.mapping, files[1:]) if one is not None])
            if len(files) == 1:
                expect_there(draft, command.plain)
        read_sft(reader, draft, agreed(answers.gpus, command.gpus if command else None))
        _tell_unknown(draft, document, command.unknown if command else {})
    elif read_or_refuse(reader, draft, str(trainer)):
        _read_groups(reader, draft)
        draft.wrong.extend(problems)
        _tell_unknown(draft, document, command.unknown if command else {})
    imported = draft.imported([reader], loose=loose)
    return with_job(with_environment(imported, command.environment), command.job) if command else imported


def _document(files: Sequence[RecipeFile], command: Command | None, draft: Draft) -> Document:
    """Keys of all files, those of the command on top; GPUs that it says, and values that it leaves unknown."""
    file = files[0]
    own = file.mapping()
    if own is not None:
        for other in files[1:]:
            draft.fail(other.path, "name the script first, and one YAML file behind it")
        return own
    assert command is not None
    document = command.document
    for other in files[1:]:
        below = other.mapping()
        if below is None or Path(other.path).stem != command.config:
            draft.fail(other.path, f"is not the file that the command names ({command.config or 'none'})")
        else:
            document = merged(below, document)
    if command.config and command.config not in _PACKAGED and len(files) == 1 and command.trainer in (SFT, MAIN, *DAPO):
        draft.fail(file.path, f"names {command.config}.yaml, which is no file of verl: name it behind the script")
    return document


def _with_strategy(document: Document, config: str) -> Document:
    """Document with the strategy that verl's own file sets, by its name in the command or among the parents."""
    parents = document.data.get(DEFAULTS)
    for name in (config, *(parents if isinstance(parents, list) else ())):
        if isinstance(name, str) and name in _BY_PARENT:
            below = Document(document.path, {}).with_value(_STRATEGY, _BY_PARENT[name], document.where(()))
            return merged(below, document)
    return document


def _read_groups(reader: Reader, draft: Draft) -> None:
    """Parents of a YAML file: those of verl itself, whose values are the release's defaults."""
    parents = reader.take(DEFAULTS)
    names = parents.value if parents is not None and isinstance(parents.value, list) else []
    others = [name for name in names if name not in _PACKAGED and name != {"optim": "fsdp"}]
    if others:
        draft.refuse(parents, f"parents {', '.join(map(str, others))[:100]} (read are verl's own: "
                              f"{', '.join(_PACKAGED[:-1])})")
    else:
        draft.idle(parents, "verl's own: values of the release")


def _tell_unknown(draft: Draft, document: Document, unknown: Mapping[KeyPath, str]) -> None:
    """Tells values that more than the script decides, but for those on which nothing depends."""
    idle = {left.key for left in draft.left if left.kind == "no effect"}
    for path, reason in unknown.items():
        if dotted(path) in _MODELS and (_MODELS[dotted(path)] == "model" or dotted(path) not in idle):
            key = _MODELS[dotted(path)]
            draft.leave_out(key)
            near = _named(document, path, draft.path if key == "model" else "")
            draft.ask(key, f"--set {key}=NAME or PATH of its config.json" + (f", such as {near}" if near else ""),
                      f"model ({dotted(path)}: {reason})")
        elif dotted(path) not in idle:
            draft.fail(document.where(path), f"{dotted(path)} is not known from the script alone: {reason}")


def _named(document: Document, path: KeyPath, script: str) -> str:
    """Name of a model that the known end of a path has, or else the script's own place; "" if none has."""
    end = str(document.value(dotted(path))).rstrip("/").rpartition("/")[2]
    return meant("" if "$" in end else end) or meant("/".join(PurePath(script).parts[-3:]))


FORMAT: Final = Format("verl", "verl scripts and YAML", _recognises, _read)
