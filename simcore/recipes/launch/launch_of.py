"""The launch command of a script, as the number of processes and the keys of the recipe that it sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.launch.accelerate import options_of
from simcore.recipes.launch.arguments import Arguments, Override, arguments_of
from simcore.recipes.launch.axolotl import is_command
from simcore.recipes.launch.commands import COMMANDS
from simcore.recipes.launch.count import processes_of, visible_gpus
from simcore.recipes.launch.factory import kind_of, processes_by_variables
from simcore.recipes.launch.job_option import JobOption
from simcore.recipes.launch.options import Number, Options
from simcore.recipes.launch.slurm import Allocation, allocation_of, job_of, options_of_launchers, read_job
from simcore.recipes.launch.starters import NEMO_RL, Starter, prepares, starters_of
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.script import Script, Started

__all__ = ["MEMORY", "Launch", "environment_of", "launch_of", "visible_in"]

_WITH_DASHES: Final = re.compile(r"^(?:torchtitan|axolotl\.cli)\.train$|(?:torchtitan|axolotl/cli)/train\.py$")
"""Programs that take dashes in keys as underscores: tyro (torchtitan 0.2.2 `config/manager.py`) and fire (axolotl)."""
_PYTHON: Final = re.compile(r"(?:.*/)?python[0-9.]*")
MEMORY: Final = ("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables that change memory."""
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_OF_LIBRARIES: Final = re.compile(r"(?:NCCL|TORCH|PYTORCH|CUDA|CUBLAS|NVTE|UB|UCX|OMP|TORCHINDUCTOR|TRITON|HF|WANDB)_")
_LAUNCHERS: Final = ("torchrun, srun, mpirun, accelerate launch, deepspeed, automodel, axolotl train, "
                     "llamafactory-cli train, trl sft, and NeMo RL's run_sft.py, run_dpo.py, run_grpo.py")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command: processes (None if it does not say them), and keys of the recipe that it sets.

    `kind`: the last launcher, such as `torchrun`. `program`: what it starts. `further`: file of accelerate's settings
    that it names, "" for none, and the place. `environment`: variables that the script sets and the simulation knows,
    with their places. `variables`: value and place of every variable of the script, as far as it is known. `job`:
    options of `#SBATCH` lines. `options`: of accelerate, as keys of its YAML.
    """

    gpus: Number | None
    overrides: tuple[Override, ...]
    kind: str = ""
    program: str = ""
    further: tuple[str, str] = ("", "")
    environment: tuple[tuple[str, str, str], ...] = ()
    variables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    options: tuple[Override, ...] = ()
    job: tuple[JobOption, ...] = ()


def launch_of(text: str, path: str, recipe: str, variables: Mapping[str, str] | None = None,
              beside: Mapping[str, str] | None = None) -> Launch:
    """Reads the launch command of a script or text; `path`: its name, `recipe`: that of the recipe that it starts.

    `variables`: of the environment in which it is started, as far as they are known. `beside`: texts of files that the
    script sources, by their names.

    InputError, with the line, for a script without exactly one launch command, for numbers that contradict each other
    or are not known from the script alone, for another recipe, and for what no scenario can say.
    """
    script = read_job(text, path, variables, beside)
    headers = allocation_of(script.sbatch, path)
    found = [(one, starters) for one in script.commands
             if (starters := starters_of([*one.around, *one.words])) and _trains(starters[-1])]
    _expect_training(found, path)
    command, starters = _one([one for one in found if not prepares(one[1][-1])], script.commands, path)
    if command.within:
        raise InputError(Problem(f"{path}:{command.line}", f"the launch command lies in {command.within}: give "
                                                                "one command"))
    last = starters[-1]
    command_of = COMMANDS.get(last.kind)
    if command_of is not None:
        inner, rest = command_of.split(last, path)
        starters = (*starters[:-1], inner)
        arguments = arguments_of(rest, path, names=command_of.words, dashes=command_of.dashes)
    else:
        rest = last.rest if last.kind == NEMO_RL else _behind_program(last, path)
        arguments = arguments_of(rest, path, dashes=any(_WITH_DASHES.search(word.text) for word in last.rest),
                                 hydra=last.kind == NEMO_RL)
    _expect_recipe(arguments, text, path, recipe)
    return Launch(_processes(starters, script, path, headers), arguments.overrides,
                  _kind(last, starters[-1], script, path), _program(last), _further(starters[-1], path),
                  environment_of(script, text, path), _known(script, path),
                  options_of(starters[-1].options, path) if starters[-1].kind == "accelerate" else (),
                  (*job_of(script.sbatch, path), *options_of_launchers(starters, path)))


def _kind(outer: Starter, inner: Starter, script: Script, path: str) -> str:
    if outer.kind == "llamafactory":
        return kind_of(script.variables, path)
    return "axolotl" if is_command(outer) else inner.kind


def _program(starter: Starter) -> str:
    """File or module that a launcher starts, or the first word of a trainer's command; "" for neither."""
    words = [word.text for word in starter.rest]
    named = (word for number, word in enumerate(words) if word.endswith(".py") or (
        number and words[number - 1] in ("-m", "--module")))
    return words[0] if starter.kind in COMMANDS and words else next(named, "")


def _known(script: Script, path: str) -> Mapping[str, tuple[str, str]]:
    """(value, place) of the variables of one word that the script alone tells."""
    return {name: (words[0].text, f"{path}:{words[0].line}") for name, words in script.variables.items()
            if len(words) == 1 and not words[0].unknown}


def _processes(starters: Sequence[Starter], script: Script, path: str, headers: Allocation) -> Number | None:
    if starters[-1].kind == "llamafactory":
        return processes_by_variables(script.variables, starters, path, headers)
    return processes_of(starters, path, headers, visible_in(script, path))


def visible_in(script: Script, path: str) -> Number | None:
    """GPUs of a node that CUDA_VISIBLE_DEVICES leaves, where the script exports a list of them."""
    word = next(iter(script.variables.get(_VISIBLE, ())), None)
    if _VISIBLE not in script.exported or word is None or word.unknown:
        return None
    count = visible_gpus(word.text)
    return None if count is None else Number(count, f"{path}:{word.line} {_VISIBLE}")


def _expect_training(found: Sequence[tuple[Started, tuple[Starter, ...]]], path: str) -> None:
    """Raises InputError if all that is launched prepares data, or converts or tries a model."""
    names = [(prepares(starters[-1]), command) for command, starters in found]
    if names and all(name for name, _ in names):
        name, command = names[0]
        raise InputError(Problem(f"{path}:{command.line}", f"not yet: starts {name}: by its name no training, but data "
                                                           "that are prepared, or a model that is converted or tried"))


def _one(found: Sequence[tuple[Started, tuple[Starter, ...]]], commands: Sequence[Started],
         path: str) -> tuple[Started, tuple[Starter, ...]]:
    if len({one.line for one, _ in found}) == 1:  # of a loop it is told
        return found[0]
    if found:
        lines = ", ".join(str(one.line) for one, _ in found)
        raise InputError(Problem(path, f"has {len(found)} launch commands (lines {lines}): give one"))
    open_word = next((one.words[0] for one in commands if one.words[0].unknown), None)
    if open_word is not None:
        raise InputError(Problem(f"{path}:{open_word.line}", f"starts {open_word.text}, which is not known from the "
                                                             f"script alone: {open_word.unknown}"))
    raise InputError(Problem(path, f"has no launch command that is read ({_LAUNCHERS})"))


def _trains(starter: Starter) -> bool:
    """False for a trainer's command that does something else, and for srun or mpirun of a helper."""
    if starter.kind in COMMANDS:
        return COMMANDS[starter.kind].trains(starter)
    return bool(starter.rest) and (starter.kind not in ("srun", "mpirun") or any(
        _PYTHON.fullmatch(word.text) or word.text.endswith((".py", ".sh")) for word in starter.rest))


def _behind_program(starter: Starter, path: str) -> tuple[Word, ...]:
    """Arguments behind the program that a launcher starts: `[python] FILE.py` or `[python] -m MODULE`."""
    words = list(starter.rest)
    while words and (_PYTHON.fullmatch(words[0].text) or words[0].text in ("-u", "-O", "--")):
        words.pop(0)
    if words and words[0].text in ("-m", "--module"):
        words.pop(0)
    elif words and not words[0].text.endswith(".py") and not words[0].unknown:
        raise InputError(Problem(f"{path}:{words[0].line}", f"{starter.kind} starts {words[0].text}, which is not "
                                                            "read: give the command that starts Python"))
    return tuple(words[1:])


def _expect_recipe(arguments: Arguments, text: str, path: str, recipe: str) -> None:
    """InputError for a command that names another recipe, unless only a variable's default (`:-`) names it."""
    word = arguments.config
    if word is None or word.unknown or Path(word.text).name == Path(recipe).name:
        return
    if ":-" not in text.splitlines()[word.line - 1]:
        raise InputError(Problem(f"{path}:{word.line}", f"starts a training with {word.text}, not with {recipe}"))


def environment_of(script: Script, text: str, path: str) -> tuple[tuple[str, str, str], ...]:
    """(name, value, place) of the variables that the training sees; InputError for one of memory that is not known.

    Not those that the script itself uses (`$NAME`), unless their names are those of a library.
    """
    found: list[tuple[str, str, str]] = []
    for name in script.exported:
        words = script.variables[name]
        if not words and name not in MEMORY and _OF_LIBRARIES.match(name):
            found.append((name, "", f"{path}:{_line_of(text, name)}"))
        if not words or (re.search(rf"\$\{{?{name}\b", text) and not _OF_LIBRARIES.match(name)):
            continue
        open_word = next((word for word in words if word.unknown), None)
        if name in MEMORY and open_word is not None:
            told = f"{name} is {open_word.text}: not known from the script alone: {open_word.unknown}"
            raise InputError(Problem(f"{path}:{open_word.line}", told))
        found.append((name, " ".join(word.text for word in words), f"{path}:{words[0].line}"))
    return tuple(found)


def _line_of(text: str, name: str) -> int:
    """Line that sets a variable to nothing."""
    said = re.search(rf"\b{re.escape(name)}=", text)
    return text.count("\n", 0, said.start()) + 1 if said else 1


def _further(starter: Starter, path: str) -> tuple[str, str]:
    if starter.kind != "accelerate":
        return "", ""
    word = Options(starter.options, path, starter.kind).word("--config_file", "--config-file")
    return (word.text, f"{path}:{word.line}") if word else ("", "")
