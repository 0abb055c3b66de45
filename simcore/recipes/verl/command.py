"""The command of a script that starts a trainer of verl: which trainer, and the keys that its arguments set.

A script is read and never run (`shell`). Keys are those of hydra: `a.b=c`, `+a.b=c` and `++a.b=c` set, `~a.b` is
refused; a group (`optim=fsdp`) stands at `hydra.optim`, as the trainer does at `hydra.trainer`. `--config-name` names
the trainer's file. Arguments of the script (`$@`) are empty, as if it were started without any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document, parse_value
from simcore.inputs.yaml_parser import KeyPath
from simcore.recipes.answers import Answer
from simcore.recipes.launch.job_option import JobOption
from simcore.recipes.launch.launch_of import environment_of
from simcore.recipes.launch.slurm import job_of, options_of_launchers, read_job
from simcore.recipes.launch.starters import starters_of
from simcore.recipes.megatron.launch import gpus_of
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.script import Started

__all__ = ["Command", "command_of", "trainer_in"]

_TRAINER: Final = re.compile(r"(?:verl\.(?:trainer|experimental)|recipe)\.[\w.]+")
_FILE: Final = re.compile(r"(?:\S*/)?((?:verl/trainer|verl/experimental|recipe)/[\w/]+)\.py")
_KEY: Final = re.compile(r"(\+{0,2})([A-Za-z_][\w.@/-]*)")
_CONFIG: Final = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd")
_GROUPS: Final = ("optim", "engine", "model", "model_engine", "actor", "critic", "ref", "rollout", "reward_model",
                  "data")
_MOST_DEPTH: Final = 24
_Set = tuple[KeyPath, Any, str]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its trainer as a module, keys as a document, and what they leave open.

    `config`: name of the trainer's file, "" for its own. `gpus`: processes of a launcher, None if the command does not
    say it. `unknown`: reasons why values of keys are not known from the script alone, by path.
    `environment`: variables that the training sees; `job`: options of `#SBATCH` lines. `appended`: keys with a `+`, as
    (path, value, place); `plain`: those without a sign, which must be there.
    """

    trainer: str
    document: Document
    config: str
    gpus: Answer | None
    unknown: Mapping[KeyPath, str]
    environment: tuple[tuple[str, str, str], ...] = ()
    job: tuple[JobOption, ...] = ()
    appended: tuple[_Set, ...] = ()
    plain: tuple[_Set, ...] = ()


def trainer_in(text: str) -> bool:
    """True for a text that starts a trainer of verl, as far as its words tell."""
    return bool(re.search(r"-m\s+(?:verl\.(?:trainer|experimental)\.|recipe\.)\w|verl/trainer/main_\w+\.py", text))


def command_of(text: str, path: str, variables: Mapping[str, str] | None = None,
               beside: Mapping[str, str] | None = None) -> Command:
    """Reads a script; `variables`, `beside`: as of `read_script`.

    InputError, with the line, for one without exactly one trainer, or a word that sets no key.
    """
    script = read_job(text, path, variables, beside)
    found = [(command, number) for command in script.commands if (number := _trainer_at(command.words)) is not None]
    if len({command.line for command, _ in found}) != 1:
        lines = ", ".join(str(command.line) for command, _ in found)
        told = f"starts {len(found)} trainers (lines {lines}): give one" if found else "starts no trainer of verl"
        raise InputError(Problem(path, told))
    command, number = found[0]
    if command.within:
        raise InputError(Problem(f"{path}:{command.line}", f"the trainer's command lies in {command.within}"))
    word = command.words[number]
    by_file = _FILE.fullmatch(word.text)
    trainer = by_file[1].replace("/", ".") if by_file else word.text
    document, config, unknown, signed = _keys(command.words[number + 1:], path)
    return Command(trainer, document.with_value(("hydra", "trainer"), trainer, f"{path}:{word.line}"), config,
                   gpus_of(command, script, path) if _is_launched(command) else None, unknown,
                   environment_of(script, text, path), (*job_of(script.sbatch, path), *options_of_launchers(
                       starters_of([*command.around, *command.words]), path)), tuple(signed["+"]), tuple(signed[""]))


def _trainer_at(words: Sequence[Word]) -> int | None:
    """Number of the word that names the trainer."""
    for number, word in enumerate(words):
        if number and words[number - 1].text in ("-m", "--module") and _TRAINER.fullmatch(word.text):
            return number
        if _FILE.fullmatch(word.text):
            return number
    return None


def _is_launched(command: Started) -> bool:
    return any(word.text.rpartition("/")[2] in ("torchrun", "srun", "mpirun", "torch.distributed.run")
               for word in (*command.around, *command.words))


def _keys(words: Sequence[Word], path: str) -> tuple[Document, str, dict[KeyPath, str], dict[str, list[_Set]]]:
    """Document of the keys that arguments set, the trainer's file, values that are not known, keys by their sign."""
    values: list[_Set] = []
    signed: dict[str, list[_Set]] = {"": [], "+": [], "++": []}
    unknown: dict[KeyPath, str] = {}
    config, number = "", 0
    while number < len(words):
        word, where = words[number], f"{path}:{words[number].line}"
        name, has_value, inner = word.text.partition("=")
        number += 1
        if name in _CONFIG:
            value = inner if has_value else words[number].text if number < len(words) else ""
            number += 0 if has_value else 1
            config = Path(value).stem if name in _CONFIG[:2] else config
            continue
        key = _KEY.fullmatch(name)
        if not word.text.strip() or word.text.startswith(("$@", "${@")):
            continue
        if key is None or not has_value:
            reason = f": {word.unknown}" if word.unknown else ""
            raise InputError(Problem(where, f"the argument {word.text!r:.100} sets no key{reason}"))
        at = tuple(key[2].split("."))
        at = ("hydra", *at) if at[0] in _GROUPS and len(at) == 1 else at
        if len(at) > _MOST_DEPTH:
            raise InputError(Problem(where, f"a key of {len(at)} levels"))
        unknown.pop(at, None)
        if word.unknown:
            unknown[at] = word.unknown
        values.append((at, inner if word.unknown else _value(inner, where), where))
        signed[key[1]] += values[-1:]
    return Document(path, {}).with_values(values), config, unknown, signed


def _value(text: str, where: str) -> Any:
    """Value of a key; a text that is no YAML is text."""
    try:
        return parse_value(text, where)
    except InputError:
        return text
