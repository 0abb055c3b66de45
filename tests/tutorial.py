"""Commands of `docs/tutorial`, one page after the other in one folder, and what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from checkout import ROOT
from command import Ran

__all__ = ["COLUMNS", "PAGES", "Shown", "answered", "commands", "recipe", "told"]

PAGES: Final = sorted((ROOT / "docs" / "tutorial").glob("[0-9]-*.md"))
COLUMNS: Final = "100"
"""Width of the terminal that the pages show."""
_BLOCK: Final = re.compile(r"```bash\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL)


class Shown(NamedTuple):
    """A command as the page has it, and the answer below it."""

    command: str
    answer: str


def recipe() -> str:
    """The recipe that the first page says to save."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


def commands(page: Path) -> list[Shown]:
    """Commands of a page in its order."""
    return [Shown(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


def answered(page: Path, ask: Callable[[str], str]) -> str:
    """The page with the answer that `ask` gives to each of its commands."""
    text = page.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda found: f"```bash\n{found[1]}```\n\n```text\n{ask(found[1])}```\n", text)


def told(command: str, rankscope: Callable[..., Ran], folder: Path) -> str:
    """Lines that a terminal shows of a command: a call of rankscope goes to `rankscope`, the rest to bash."""
    first, _, rest = command.replace("\\\n", "").strip().partition(" | ")
    if not first.startswith("rankscope "):
        return _lines(_shell(command, "", folder))
    done = rankscope(*shlex.split(first)[1:])
    assert done.code in (0, 1, 2), done.err
    return _lines((_shell(rest, done.out, folder) if rest else done.out) + done.err)


def _shell(command: str, given: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-c", command], cwd=folder, input=given, text=True, encoding="utf-8",  # noqa: S607
                          capture_output=True, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


def _lines(text: str) -> str:
    """The text without blanks at ends of lines and empty lines at its end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
