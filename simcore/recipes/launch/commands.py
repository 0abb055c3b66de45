"""Commands of trainers that start their ranks themselves: options of a launcher and keys of the recipe in one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from simcore.recipes.launch.axolotl import MODULE, inner_launcher
from simcore.recipes.launch.options import parted
from simcore.recipes.launch.starters import Starter
from simcore.recipes.launch.trl import COMMANDS as TRL_COMMANDS
from simcore.recipes.launch.trl import inner_accelerate
from simcore.recipes.shell.pieces import Word

__all__ = ["COMMANDS", "Command"]

Split = Callable[[Starter, str], tuple[Starter, tuple[Word, ...]]]
"""(the launcher that a command starts with its options, the other words), from the command and the script's name."""


@dataclass(frozen=True, slots=True)
class Command:
    """A trainer's command. `words`: may stand behind it, beside the recipe's file. `split`: takes the launcher out.

    `dashes`: dashes in keys are underscores. `needs_word`: the command trains only with one of `words` first.
    `module`: its training as a Python module, which needs none; "" if it has none.
    """

    words: tuple[str, ...]
    split: Split
    dashes: bool = False
    needs_word: bool = True
    module: str = ""

    def trains(self, starter: Starter) -> bool:
        """False for a command that does something else."""
        if not self.needs_word:
            return bool(starter.rest)
        return starter.word.text == self.module or any(word.text in self.words for word in starter.rest[:1])


def _by_options(*names: str) -> Split:
    """The command as its own launcher, whose options have these names."""
    def split(starter: Starter, _path: str) -> tuple[Starter, tuple[Word, ...]]:
        own, rest = parted(starter.rest, names)
        return Starter(starter.kind, starter.word, own, ()), rest

    return split


COMMANDS: Final[Mapping[str, Command]] = {
    "automodel": Command(("finetune", "pretrain", "benchmark", "llm", "vlm"),
                         _by_options("--nproc-per-node", "--nproc_per_node"), needs_word=False),
    "axolotl": Command(("train",), inner_launcher, dashes=True, module=MODULE),
    "llamafactory": Command(("train",), _by_options()),
    "trl": Command(TRL_COMMANDS, inner_accelerate),
}
"""Each by the kind of its starter."""
