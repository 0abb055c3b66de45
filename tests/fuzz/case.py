"""An input, what was expected of it, and what came instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, NamedTuple

__all__ = ["PIPE", "Case", "Content", "Fault", "Findings", "Input", "Kind", "Special", "Tree"]

PIPE: Final = "pipe"
"""A file of that name is a pipe without a writer."""
Tree = dict[str, Any]
"""Content of a YAML or JSON file."""
_IN_YAML: Final = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}
_NUMBERS: Final = re.compile(r"(?<=[ \[])(?:NaN|-?Infinity)(?=,?$)", re.MULTILINE)


class Special(NamedTuple):
    """A special file: a pipe, a link, a folder, or a sparse file of `size` bytes."""

    how: Literal["pipe", "link", "folder", "sparse"]
    to: str = ""
    size: int = 0


Content = Tree | list[Any] | bytes | Special


@dataclass(frozen=True)
class Input:
    """Files by name, as trees or bytes, and the words of the command line.

    Trees are written as JSON, which YAML is; of a list in a .jsonl each item on a line.

    `checks`: names of what is compared, where more can be compared than time allows.
    """

    files: Mapping[str, Content]
    arguments: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()

    def content(self, name: str) -> bytes:
        """A file's bytes; of a tree a key a line, so that lines of messages can be checked."""
        held = self.files[name]
        if isinstance(held, Special):
            return b""
        if isinstance(held, bytes):
            return held
        if name.endswith(".jsonl") and isinstance(held, list):
            return "".join(f"{json.dumps(line)}\n" for line in held).encode()
        text = json.dumps(held, indent=1)
        return (text if name.endswith(".json") else _NUMBERS.sub(lambda match: _IN_YAML[match[0]], text)).encode()


class Fault(NamedTuple):
    """`check` is what was expected, by its name; `told` what came."""

    check: str
    told: str

    @property
    def signature(self) -> str:
        """The same for faults that differ in numbers and names alone."""
        plain = re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", self.told.splitlines()[0] if self.told else "")
        return f"{self.check}: {re.sub(r'[-+]?[0-9][0-9_.,e+-]*', '#', plain)}"[:160]


@dataclass
class Findings:
    """Number of expectations that were looked at, and those that did not hold; `counts` is for the summary."""

    checks: int = 0
    faults: list[Fault] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def expect(self, check: str, holds: object, told: str | Callable[[], str]) -> None:
        """Count an expectation, and note it where it does not hold."""
        self.checks += 1
        if not holds:
            self.faults.append(Fault(check, told if isinstance(told, str) else told()))

    def count(self, what: str) -> None:
        """One more of these."""
        self.counts[what] = self.counts.get(what, 0) + 1


class Kind(NamedTuple):
    """A kind of cases: how one is drawn and judged, and its share of all (`weight`)."""

    name: str
    weight: int
    draw: Callable[[Random], Input]
    judge: Callable[[Input, Findings], None]


class Case(NamedTuple):
    """The `number`-th case of a seed."""

    seed: int
    kind: Kind
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{self.number}"

    def draw(self) -> Input:
        """The same on every machine, and whatever was drawn before."""
        return self.kind.draw(Random(f"{self.seed}/{self.name}"))
