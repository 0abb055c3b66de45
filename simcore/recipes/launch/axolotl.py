"""Launcher that `axolotl train` starts, and its options.

Rule: axolotl 067b021c `cli/main.py` train: `--launcher` is accelerate where it is not said; words behind `--`, and
options that are no keys of a recipe, are the launcher's; `python` starts one process.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.launch.options import Options, parted
from simcore.recipes.launch.starters import Starter
from simcore.recipes.shell.pieces import Word

__all__ = ["MODULE", "inner_launcher", "is_command"]

MODULE: Final = "axolotl.cli.train"
_LAUNCHER: Final = "--launcher"
_KINDS: Final = ("accelerate", "torchrun", "python")
_OTHER: Final = ("--cloud", "--sweep")
_HANDED_ON: Final = tuple(f"--{name.replace('_', dash)}" for dash in "-_" for name in (
    "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "nproc_per_node", "nnodes",
    "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port"))
"""Options of the launchers that people give before `--`."""


def is_command(starter: Starter) -> bool:
    """True for axolotl's command, which sets variables for the ranks; its module `axolotl.cli.train` sets none."""
    return starter.kind == "axolotl" and starter.word.text != MODULE


def inner_launcher(starter: Starter, path: str) -> tuple[Starter, tuple[Word, ...]]:
    """The launcher, with its options, and the words that are left. InputError for runs elsewhere, or several."""
    words = starter.rest
    end = next((number for number, word in enumerate(words) if word.text == "--"), len(words))
    own, rest = parted(words[:end], (_LAUNCHER, *_OTHER, *_HANDED_ON))
    options = Options(own, path, starter.kind)
    options.refuse("several recipes, or a run on machines that another file names", *_OTHER)
    chosen = options.word(_LAUNCHER)
    if chosen is not None and chosen.text not in _KINDS:
        raise options.problem(chosen.line, f"{_LAUNCHER}: expected one of {', '.join(_KINDS)}, got {chosen.text!r}")
    kind = chosen.text if chosen else _KINDS[0] if is_command(starter) else "python"
    return Starter(kind, starter.word, (*(own if kind != "python" else ()), *words[end + 1:]), ()), rest
