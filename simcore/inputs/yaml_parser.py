"""Parser of YAML text (and so of JSON) into plain values, bounded and checked, with the line of every value.

The text becomes events (ruamel.yaml, pure Python), and one pass over the events builds the values and a map from key
path to line. Scalars follow the YAML 1.2 core schema, so `no` and `1:30` are text, and dates stay text. Building from
events instead of nodes means that depth, size and cycles are checked before a value is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.parser import Parser as EventParser
from ruamel.yaml.scanner import Scanner

from simcore.errors import InputError, Problem

__all__ = ["DUPLICATE", "MAX_DEPTH", "MAX_NODES", "KeyPath", "Parser", "dotted"]

MAX_NODES: Final = 20_000
"""Values in one document, counted with aliases expanded."""
MAX_DEPTH: Final = 64
_TOO_DEEP: Final = f"expected at most {MAX_DEPTH} levels of nesting, got more"
DUPLICATE: Final = "duplicate key"
"""Beginning of the message about a key that a mapping has twice."""
_MAX_PROBLEMS: Final = 1000
"""Problems after which the rest of a text is not read."""

KeyPath = tuple[str | int, ...]
"""Mapping keys and list positions from the top of a document, such as `("mesh", "ep")`."""

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_WORDS: Final[dict[str, bool | None]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
_BASED: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_OLD_OCTAL: Final = re.compile(r"[-+]?0[0-9_]+")
_MAX_DIGITS: Final = 400
_MERGE: Final = "<<"
"""Key of mappings whose keys a mapping has too (YAML 1.1, https://yaml.org/type/merge.html)."""


def dotted(key_path: KeyPath) -> str:
    """Path of keys as text: `("mesh", "ep")` -> `"mesh.ep"`."""
    return ".".join(map(str, key_path))


@dataclass(frozen=True, slots=True)
class _Built:
    """A value, the number of values in it and its depth, aliases expanded."""

    value: Any
    num_nodes: int = 1
    depth: int = 0


class _Nested(Exception):
    """Brackets within more others than a document may have; `line` from 0."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class _Scanner(Scanner):
    """Scanner that stops at the first bracket too deep: it looks far ahead, in time that grows with depth squared.

    The reader is a plain attribute, and what the parser asks again and again of one token is found once: a sixth of the
    time is saved.
    """

    reader: Any = None

    def __init__(self, loader: Any) -> None:
        self.reader = loader.reader
        self._has_token = False
        super().__init__(loader)

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - ruamel's name
        if len(self.flow_context) > MAX_DEPTH:
            raise _Nested(self.reader.line)
        super().fetch_flow_collection_start(TokenClass, to_push)

    def check_token(self, *choices: Any) -> bool:
        token = self.peek_token()
        return token is not None and (not choices or isinstance(token, choices))

    def peek_token(self) -> Any:
        while not self._has_token and self.need_more_tokens():
            self.fetch_more_tokens()
        self._has_token = True
        return self.tokens[0] if self.tokens else None

    def get_token(self) -> Any:
        token = self.peek_token()
        if token is not None:
            self._has_token = False
            self.tokens_taken += 1
            del self.tokens[0]
        return token


class _Events(EventParser):
    """Parser of tokens whose scanner is a plain attribute."""

    scanner: Any = None

    def __init__(self, loader: Any) -> None:
        self.scanner = loader.scanner
        super().__init__(loader)


class Parser:
    """Parses one YAML (or JSON) text into plain values, within limits of depth and size.

    `path` names it in messages. After `document`, `lines` has the line (from 1) of every value by its path of keys, and
    `repeated` the keys that a mapping has twice with equal values, which are problems too unless `takes_repeats`.
    """

    def __init__(self, text: str, path: str, *, takes_repeats: bool = False) -> None:
        self.path, self.takes_repeats = path, takes_repeats
        self.repeated: dict[KeyPath, Problem] = {}
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.anchors: dict[str, _Built | None] = {}  # None: still being built
        self.num_nodes = 0
        self.text = text
        self.events = self._events()

    def document(self) -> Any:
        """Value of the one document in the text, None if it is empty; InputError with all problems found."""
        if match := _SURROGATE.search(self.text):
            self._refuse(self.text.count("\n", 0, match.start()), "expected UTF-8 text, got other bytes")
        if match := _CONTROL.search(self.text):
            line = len(re.findall("\r\n|\r|\n", self.text[: match.start()]))
            self._refuse(line, f"control character U+{ord(match[0]):04X}: remove it")
        value = None
        next(self.events)
        if isinstance(next(self.events), DocumentStartEvent):
            value = self._node(next(self.events), (), 0).value
            next(self.events)
            if not isinstance(event := next(self.events), StreamEndEvent):
                self._refuse(event.start_mark.line, "expected one document, a second one starts here")
        if self.problems:
            raise InputError(self.problems)
        return value

    def _events(self) -> Iterator[Event]:
        try:
            yaml = YAML(typ="safe", pure=True)
            yaml.Scanner, yaml.Parser = _Scanner, _Events
            yield from yaml.parse(self.text)
        except _Nested as nested:
            self._refuse(nested.line, _TOO_DEEP)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._refuse(mark.line if mark else 0, _syntax(error, "JSON" if self.path.endswith(".json") else "YAML"))
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - the scanner lets plain ones through, such as chr() of \UFFFFFFFF
            self._refuse(0, f"cannot be read as YAML: {error}")

    def _refuse(self, line: int, message: str) -> NoReturn:
        """Raises InputError with all problems up to this line (lines from 0, as ruamel counts)."""
        raise InputError([*self.problems, Problem(f"{self.path}:{line + 1}", message)])

    def _note(self, event: Event, message: str) -> None:
        """Records a problem that does not hinder reading the rest."""
        self.problems.append(Problem(f"{self.path}:{event.start_mark.line + 1}", message))
        if len(self.problems) == _MAX_PROBLEMS:
            self._refuse(event.start_mark.line, f"{_MAX_PROBLEMS:,} problems: the rest was not read")

    def _node(self, event: Any, key_path: KeyPath, depth: int) -> _Built:
        """Value that starts with `event`."""
        line = event.start_mark.line
        self.lines.setdefault(key_path, line + 1)
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        self._count(1, depth, line)
        if tag := getattr(event, "tag", None):
            self._note(event, f"tag {str(tag)[:60]!r} is not read: write a plain value, and quote what must be text")
        if event.anchor:
            self.anchors[event.anchor] = None
        built = self._value(event, key_path, depth)
        if event.anchor:
            self.anchors[event.anchor] = built
        return built

    def _value(self, event: Any, key_path: KeyPath, depth: int) -> _Built:
        if isinstance(event, MappingStartEvent):
            return self._mapping(key_path, depth)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(key_path, depth)
        return _Built(self._scalar(event))

    def _alias(self, event: AliasEvent, depth: int) -> _Built:
        line, name = event.start_mark.line, event.anchor
        shown = name[:60]
        if name not in self.anchors:
            self._refuse(line, f"alias *{shown} has no anchor &{shown} before it")
        built = self.anchors[name]
        if built is None:
            self._refuse(line, f"alias *{shown} stands inside its own anchor: the value would be endless")
        self._count(built.num_nodes, depth + built.depth, line)
        return built

    def _count(self, num_nodes: int, depth: int, line: int) -> None:
        self.num_nodes += num_nodes
        if self.num_nodes > MAX_NODES:
            self._refuse(line, f"expected at most {MAX_NODES:,} values (aliases expanded), got more")
        if depth > MAX_DEPTH:
            self._refuse(line, _TOO_DEEP)

    def _mapping(self, key_path: KeyPath, depth: int) -> _Built:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        parts = []
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self._key(event, key_path, depth)
            self.lines.setdefault((*key_path, key), event.start_mark.line + 1)
            parts.append(self._node(next(self.events), (*key_path, key), depth + 1))
            if key == _MERGE:
                self._merge(event, parts[-1].value, key_path, merged)
                continue
            if key in values:
                self._note_again(event, (*key_path, key), is_equal=_is_same(values[key], parts[-1].value))
            values[key] = parts[-1].value
        return _container({**merged, **values}, parts)

    def _merge(self, event: Event, value: Any, key_path: KeyPath, merged: dict[str, Any]) -> None:
        """Adds the keys of mappings that a merge key names; a mapping's own keys, and those of earlier ones, win."""
        line = self.lines.pop((*key_path, _MERGE))
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict):
                self._note(event, f"<<: expected a mapping, or a list of them, got {repr(one)[:60]}")
                continue
            for key, inner in one.items():
                merged.setdefault(key, inner)
                self.lines.setdefault((*key_path, key), line)

    def _note_again(self, event: Event, key_path: KeyPath, *, is_equal: bool) -> None:
        """Records a key that its mapping has already."""
        message = f"{DUPLICATE} {dotted(key_path)!r}, first given on line {self.lines[key_path]}"
        if self.takes_repeats and is_equal:
            self.repeated[key_path] = Problem(f"{self.path}:{event.start_mark.line + 1}", message)
        else:
            self._note(event, message)

    def _key(self, event: Event, key_path: KeyPath, depth: int) -> str:
        if not isinstance(event, ScalarEvent | AliasEvent):
            self._refuse(event.start_mark.line, "expected a text key, got a mapping or a list")
        key = self._node(event, (*key_path, "?"), depth + 1).value
        self.lines.pop((*key_path, "?"), None)
        if isinstance(key, dict | list):
            self._refuse(event.start_mark.line, "expected a text key, got an alias of a mapping or a list")
        if not isinstance(key, str):
            self._note(event, f"expected a text key, got {repr(key)[:60]}: put it in quotes")
        return str(key)

    def _sequence(self, key_path: KeyPath, depth: int) -> _Built:
        parts: list[_Built] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            parts.append(self._node(event, (*key_path, len(parts)), depth + 1))
        return _container([part.value for part in parts], parts)

    def _scalar(self, event: ScalarEvent) -> Any:
        text: str = event.value
        if _OLD_OCTAL.fullmatch(text) and event.implicit[0]:
            self._note(event, f"{text}: a leading zero is octal to some readers: leave it out, or quote text")
        if _SURROGATE.search(text):  # JSON writes characters beyond U+FFFF as two escapes
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return _plain(text) if event.implicit[0] else text


def _is_same(first: Any, second: Any) -> bool:
    """True for equal values of one type: 1, 1.0 and true are three."""
    return repr(first) == repr(second)


def _container(value: Any, parts: list[_Built]) -> _Built:
    depth = 1 + max((part.depth for part in parts), default=0)
    return _Built(value, 1 + sum(part.num_nodes for part in parts), depth)


def _plain(text: str) -> Any:
    """Value of an unquoted scalar by the YAML 1.2 core schema (which includes `1_000`, as people write it)."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_DIGITS or text[0] not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return float(text) if _FLOAT.fullmatch(text) else text


def _syntax(error: MarkedYAMLError, language: str) -> str:
    reason = " ".join(f"{error.problem or error.context or 'not YAML'}".split())
    if "'\\t'" in reason:
        return "a tab where YAML expects spaces: indent with spaces"
    context = " ".join(f"{error.context}".split()) if error.context and error.problem else ""
    return f"not valid {language}: {reason}" + (f" ({context})" if context else "")
