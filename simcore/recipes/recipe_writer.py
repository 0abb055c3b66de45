"""The other half of a format: how its recipes are written. `Format.writer` has one where `convert` can write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simcore.inputs.dump import yaml_block
from simcore.recipes.outline import Outline

__all__ = ["Files", "Job", "RecipeWriter", "ScriptArguments", "commented", "yaml_recipe"]


@dataclass(frozen=True, slots=True)
class Job:
    """Facts of a launch command: name of the recipe's file, nodes, GPUs of each, variables of the environment."""

    file: str
    nodes: int
    gpus_per_node: int
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Name of the recipe's file without its ending, with which names of files beside it begin."""
        return self.file.rpartition(".")[0]

    @property
    def gpus(self) -> int:
        """Number of processes, one a GPU."""
        return self.nodes * self.gpus_per_node

    def exports(self) -> str:
        """Lines of shell that set the variables."""
        return "".join(f"export {name}={value}\n" for name, value in self.environment.items())

    def torchrun(self, program: str) -> str:
        """`torchrun` line that starts a program, such as `train.py --config mine.yaml`."""
        nodes = f"--nnodes {self.nodes} " if self.nodes > 1 else ""
        return f"torchrun {nodes}--nproc-per-node {self.gpus_per_node} {program}\n"


Files = Callable[[Mapping[str, Any], Job], Mapping[str, str]]
"""Texts of further files by their names, from the nested keys of the recipe."""


def yaml_recipe(keys: Mapping[str, Any], job: Job) -> str:
    """YAML text of a recipe's nested keys."""
    del job
    return yaml_block(keys)


def commented(text: str, reasons: Mapping[str, str]) -> str:
    """Text of YAML or TOML with a comment behind each line whose key has a reason."""
    lines = text.splitlines()
    keys = [re.split(r"[:=]", line, maxsplit=1)[0].strip() for line in lines]
    return "".join(f"{line}  # {reasons[key]}\n" if key in reasons else f"{line}\n"
                   for line, key in zip(lines, keys, strict=True))


def _no_files(keys: Mapping[str, Any], job: Job) -> Mapping[str, str]:
    del keys, job
    return {}


@dataclass(frozen=True, slots=True)
class ScriptArguments:
    """Arguments of a launch script, as far as a script of the user's is changed by them.

    `alike`: names of all arguments that set what the one of a name sets, () for an unknown name. `values`: how many
    values follow a name: "none" behind a switch, "one" or "many". `given`: values that a script (text, name in
    messages) gives, as far as they are known.
    """

    alike: Callable[[str], tuple[str, ...]]
    values: Callable[[str], str]
    given: Callable[[str, str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RecipeWriter:
    """Writes recipes of one format.

    `suffix`: ending of the recipe's file, such as ".yaml". `frameworks`: those whose scenarios it takes. `write`:
    writes the keys of an outline. `launch`: the launch command as lines of shell, "" where the recipe has it itself.
    `text`: text of the recipe from its nested keys. `beside`: files that belong to it, such as the trainer's to that of
    its launcher; with them it is read back as what all of them are. `patches`: a recipe of the user's can be changed
    key by key (`--into`), as YAML. `arguments`: so can a script, argument by argument.
    """

    suffix: str
    frameworks: tuple[str, ...]
    write: Callable[[Outline], None]
    launch: Callable[[Job], str]
    text: Callable[[Mapping[str, Any], Job], str] = yaml_recipe
    beside: Files = _no_files
    patches: bool = False
    arguments: ScriptArguments | None = None

    def takes(self, name: str) -> bool:
        """True if recipes of the format run the framework of this name."""
        return name in self.frameworks
