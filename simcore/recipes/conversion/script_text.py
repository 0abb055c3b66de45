"""Arguments in the text of a shell script: found, set, added and taken away, while everything else stays as it is.

A value that a variable gives is set where the variable is, if nothing else has its value and no condition decides it.
What is not simple raises NotYet with the line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcore.errors import NotYet, Problem

__all__ = ["ScriptText"]

_ONE: Final = r"""(?P<gap>[ \t]+|=)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s"')\\]+)"""
_MANY: Final = r"""(?P<gap>[ \t]+|=)(?P<value>(?!--)[^\s"')\\]+(?:[ \t]+(?!--)[^\s"')\\]+)*)"""
_VARIABLE: Final = re.compile(r"""(["']?)\$(?:(?P<bare>\w+)|\{(?P<name>\w+)(?::?-(?P<default>[^}$]*))?\})\1""")


@dataclass(frozen=True)
class ScriptText:
    """Text of a script (`text`), which messages call `path`."""

    text: str
    path: str

    def names(self) -> tuple[str, ...]:
        """All words that look like arguments (`--name`), each once."""
        return tuple(dict.fromkeys(found[0] for found in self._found(r"--[A-Za-z][\w-]*")))

    def value(self, name: str) -> str | None:
        """Text of an argument's value as it stands, without quotes; None if the argument is not there."""
        for found in self._found(rf"{re.escape(name)}(?:{_ONE})?"):
            return (found["value"] or "").strip("\"'")
        return None

    def with_value(self, name: str, value: Any) -> ScriptText:
        """Script in which an argument that is there has another value; a switch stays as it is."""
        if isinstance(value, bool):
            return self
        several = isinstance(value, list)
        found = self._only(name, _MANY if several else _ONE)
        start, end = found.span("value")
        variable = _VARIABLE.fullmatch(found["value"])
        if variable is not None:
            return self._with_variable(variable, found, value, start)
        if "$" in found["value"]:
            raise self._not_yet(start, f"{name}: its value is put together of variables")
        return self._replaced(start, end, _words(value))

    def with_argument(self, name: str, value: Any) -> ScriptText:
        """Script with a further argument, on a line of its own ahead of the last line of arguments."""
        lines = self.text.splitlines(keepends=True)
        at = max((number for number, line in enumerate(lines) if re.match(r"\s*--[A-Za-z]", line)), default=None)
        if at is None:
            raise NotYet(Problem(self.path, f"not yet: --into: {name}: no argument has a line of its own, before which "
                                            "it would stand"))
        indent = re.match(r"\s*", lines[at])
        assert indent is not None
        goes_on = at > 0 and lines[at - 1].rstrip().endswith("\\")
        shown = name if isinstance(value, bool) else f"{name} {_words(value)}"
        lines.insert(at, f"{indent[0]}{shown}{' ' + chr(92) if goes_on else ''}\n")
        return ScriptText("".join(lines), self.path)

    def ahead_of(self, name: str, words: str) -> ScriptText:
        """Script with further words ahead of an argument, on its line."""
        at = self._only(name, "").start()
        return self._replaced(at, at, f"{words} ")

    def without(self, name: str, *, values: str) -> ScriptText:
        """Script without an argument; `values`: "none" of a switch, "one" or "many"."""
        found = self._only(name, {"none": "", "one": _ONE, "many": _MANY}[values])
        before, after = self.text[:found.start()], self.text[found.end():]
        first, last = before.rpartition("\n")[2], after.partition("\n")[0]
        if first.strip() or last.strip() not in ("", "\\"):
            text = before.rstrip(" \t") + after if first.strip() else before + after.lstrip(" \t")
            return ScriptText(text, self.path)
        before = before[:len(before) - len(first)]
        if not last.strip() and before.endswith("\\\n"):  # the line before was continued by this one
            before = f"{before[:-2].rstrip()}\n"
        return ScriptText(before + after.partition("\n")[2], self.path)

    # ---- places --------------------------------------------------------------------------------------------------
    def _found(self, pattern: str) -> Iterator[re.Match[str]]:
        """Matches of an argument that stand in no comment."""
        for found in re.finditer(rf"(?<![\w-]){pattern}(?![\w-])", self.text):
            line = self.text[self.text.rfind("\n", 0, found.start()) + 1:found.start()]
            if not line.lstrip().startswith("#") and " #" not in line:
                yield found

    def _only(self, name: str, values: str) -> re.Match[str]:
        """The only place of an argument with its values."""
        found = [*self._found(rf"{re.escape(name)}{values}")]
        if len(found) != 1:
            at = found[1].start() if found else self.text.find(name)
            raise self._not_yet(max(0, at), f"{name} stands in {len(found)} places" if found else f"{name}: its value "
                                "stands elsewhere")
        return found[0]

    def _with_variable(self, variable: re.Match[str], found: re.Match[str], value: Any, start: int) -> ScriptText:
        """The variable's own value is set; a default within its use, if the script does not set it."""
        name = variable["bare"] or variable["name"]
        own = [*re.finditer(rf"^(?P<indent>[ \t]*)(?:export[ \t]+)?{name}=(?P<value>[^\s;#]*)", self.text,
                            re.MULTILINE)]
        sums = [(one.start(), one.end()) for one in re.finditer(r"\$\(\([^\n]*?\)\)", self.text)]
        uses = [one for one in self._found(rf"(?:\$\{{?)?{name}") if (
            one[0] != name or any(start <= one.start() < end for start, end in sums)) and not any(
            line.start() <= one.start() < line.end() for line in own)]
        if len(uses) > 1:
            raise self._not_yet(uses[0].start() if uses[0].start() != start else uses[1].start(),
                                f"{name}: {len(uses)} places have this variable's value, one of them "
                                f"{found[0].split()[0]}")
        if len(own) > 1 or (own and own[0]["indent"]):
            raise self._not_yet(own[-1].start("value"), f"{name}: a condition, or several lines, set this variable")
        if own:
            default = re.fullmatch(r"""(["']?)\$\{\w+:?-(?P<default>[^}$]*)\}\1""", own[0]["value"])
            if default is None and "$" in own[0]["value"]:
                raise self._not_yet(own[0].start("value"), f"{name}: its value is put together of variables")
            at = own[0].start("value")
            begin, end = default.span("default") if default else (0, len(own[0]["value"]))
            shown = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            return self._replaced(at + begin, at + end, shown if default else _words(value))
        if variable["default"] is None:
            raise self._not_yet(start, f"{name}: the script does not set this variable")
        begin, end = variable.span("default")
        return self._replaced(start + begin, start + end, str(value))

    def _replaced(self, start: int, end: int, text: str) -> ScriptText:
        return ScriptText(f"{self.text[:start]}{text}{self.text[end:]}", self.path)

    def _not_yet(self, at: int, told: str) -> NotYet:
        return NotYet(Problem(f"{self.path}:{self.text.count(chr(10), 0, at) + 1}", f"not yet: --into: {told}"))


def _words(value: Any) -> str:
    listed: Sequence[Any] = value if isinstance(value, list) else [value]
    return " ".join(shlex.quote(str(one)) for one in listed)
