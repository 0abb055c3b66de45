"""The command of a script that starts a trainer of OpenRLHF: which trainer, and its arguments as keys.

A script is read and never run (`shell`). Launchers are `deepspeed --module`, torchrun, srun, `ray job submit ... --
python3 -m`, or python itself, whose trainer starts its processes by Ray.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.recipes.answers import Answer
from simcore.recipes.launch.arguments import Override, arguments_of
from simcore.recipes.launch.count import processes_of
from simcore.recipes.launch.job_option import JobOption
from simcore.recipes.launch.launch_of import environment_of
from simcore.recipes.launch.slurm import allocation_of, job_of, options_of_launchers, read_job
from simcore.recipes.launch.starters import starters_of
from simcore.recipes.openrlhf.older import OLDER, OLDER_PAIRS, OLDER_PPO
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.script import Script, Started

__all__ = ["Command", "command_of", "trainer_in"]

_TRAINER: Final = re.compile(r"openrlhf\.cli\.train_\w+")
_FILE: Final = re.compile(r"(?:\S*/)?openrlhf/cli/(train_\w+)\.py")
_STARTS: Final = re.compile(r"openrlhf(?:\.cli\.|/cli/)train_\w+")
_SAID: Final = ("echo", "printf")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its trainer, such as `train_sft`, and its arguments as a document of today's names.

    `gpus`: processes of a launcher, None if the command does not say it. `unknown`: reasons why values are not known
    from the script alone, by path. `environment`: variables that the training sees; `job`: options of `#SBATCH` lines.
    """

    trainer: str
    document: Document
    gpus: Answer | None
    unknown: Mapping[KeyPath, str]
    environment: tuple[tuple[str, str, str], ...] = ()
    job: tuple[JobOption, ...] = ()


def trainer_in(text: str) -> bool:
    """True for a text that names a trainer of OpenRLHF."""
    return bool(_STARTS.search(text))


def command_of(text: str, path: str, variables: Mapping[str, str] | None = None,
               beside: Mapping[str, str] | None = None) -> Command:
    """Reads a script; `variables`, `beside`: as of `read_script`.

    InputError, with the line, for one without exactly one trainer, or a word that sets no key.
    """
    script = read_job(text, path, variables, beside)
    found = [(command, number) for command in script.commands if command.words[0].text not in _SAID
             and (number := _trainer_at(command.words)) is not None]
    if len({command.line for command, _ in found}) != 1:
        lines = ", ".join(str(command.line) for command, _ in found)
        told = (f"starts {len(found)} trainers (lines {lines}): give one" if found else
                "starts no trainer of OpenRLHF that is known from the script alone")
        raise InputError(Problem(path, told))
    command, number = found[0]
    word = command.words[number]
    by_file = _FILE.fullmatch(word.text)
    overrides = arguments_of(command.words[number + 1:], path).overrides
    trainer = by_file[1] if by_file else word.text.rpartition(".")[2]
    names = {**OLDER, **(OLDER_PPO if trainer == "train_ppo_ray" else OLDER_PAIRS)}
    document = Document(path, {}).with_values((_today(one, names), one.value, one.where) for one in overrides)
    starters = starters_of([*command.around, *command.words])
    unknown = {_today(one, names): one.unknown for one in overrides if one.unknown}
    return Command(trainer, document, _gpus(command, script, path), unknown, environment_of(script, text, path),
                   (*job_of(script.sbatch, path), *options_of_launchers(starters, path)))


def _today(one: Override, names: Mapping[str, str]) -> KeyPath:
    """Path of a key in today's names, which are given by the older ones."""
    name = dotted(one.path)
    return tuple(names.get(name, name).split("."))


def _trainer_at(words: Sequence[Word]) -> int | None:
    """Number of the word that names the trainer."""
    for number, word in enumerate(words):
        if _TRAINER.fullmatch(word.text) and number and words[number - 1].text in ("-m", "--module"):
            return number
        if _FILE.fullmatch(word.text):
            return number
    return None


def _gpus(command: Started, script: Script, path: str) -> Answer | None:
    """Processes of launchers around the trainer; None where none is there, or where they leave it to the machine."""
    starters = starters_of([*command.around, *command.words])
    if not starters or starters[-1].kind == "python":
        return None
    found = processes_of(starters, path, allocation_of(script.sbatch, path))
    return None if found is None else Answer(found.value, found.where)
