"""One file of input: plain values, and the place of every one of them.

Only this module opens files that the user names: size and kind are checked before anything is read (a test looks for
other readers), and YAML and JSON are parsed by `yaml_parser`. Nothing here depends on what a scenario is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

from simcore.errors import InputError, Problem
from simcore.inputs.bounds import MAX_LINE
from simcore.inputs.yaml_parser import MAX_DEPTH, KeyPath, Parser, dotted

__all__ = ["MAX_BYTES", "Document", "confine", "named_at", "parse_document", "parse_value", "read_bytes",
           "read_document", "read_text"]  # fmt: skip

MAX_BYTES: Final = 2**18
"""Size of one file. The scanner's time grows with the square of a token's length: at this size, a second or two."""
_ABSENT: Final = object()
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags that open a pipe without waiting for its writer (Windows has none), and bytes unchanged (on Windows)."""
_CONFINED: Final[list[Path]] = []
"""Folders that files are read from; empty: from everywhere."""


@dataclass(frozen=True)
class Document:
    """A parsed input file: its plain values, and the place of each in the file.

    `data`: shared where the file used an alias, so never change it. `lines`: line (from 1) by path of keys. `path`:
    name of the file in messages.
    """

    path: str
    data: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)
    places: Mapping[KeyPath, str] = field(default_factory=dict, repr=False)
    """Places of the values that `with_value` set, by key path."""
    repeated: Mapping[KeyPath, Problem] = field(default_factory=dict, repr=False)
    """Keys that stand twice with equal values, each with where and the words of a refusal."""

    @cached_property
    def folder(self) -> Path:
        """Folder that relative paths in the file are relative to."""
        return _folder_of(self.path)

    def value(self, key: str) -> Any:
        """Value of a dotted key, None where there is none."""
        found: Any = self.data
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def line_of(self, key_path: KeyPath) -> int:
        """Line (from 1) of a key, or of the nearest enclosing key that is in the file; 1 if there is none."""
        if not self.lines:  # of values that no file has
            return 1
        line = self.lines.get(key_path)  # the usual case
        return line or next((self.lines[part] for part in _prefixes(key_path) if part in self.lines), 1)

    def where(self, key_path: KeyPath) -> str:
        """Place of a key for a message: `file:line`, or the place that was given when `with_value` set it."""
        if self.places:
            for length in range(len(key_path), -1, -1):
                if put_in := self.places.get(key_path[:length]):
                    return put_in
        return f"{self.path}:{self.line_of(key_path)}"

    def with_value(self, key_path: KeyPath, value: object, place: str) -> Document:
        """Copy of the document with one value set; `place` is what messages name as its place.

        Missing mappings on the way are added. InputError if a value on the way exists and is not a mapping, or for a
        path of more than `MAX_DEPTH` keys.
        """
        return self.with_values([(key_path, value, place)])

    def with_values(self, values: Iterable[tuple[KeyPath, object, str]]) -> Document:
        """Copy of the document with several values set, one after the other: (key path, value, place) of each.

        As by `with_value`; each mapping is copied once.
        """
        data, places = dict(self.data), dict(self.places)
        copied: dict[KeyPath, dict[str, Any]] = {}
        for key_path, value, place in values:
            if len(key_path) > MAX_DEPTH:
                raise InputError(Problem(place, f"expected a key of at most {MAX_DEPTH} levels, got {len(key_path):,}"))
            inner, first_new = data, None
            for depth, key in enumerate(key_path[:-1], 1):
                prefix, step = key_path[:depth], inner.get(str(key))
                if step is not None and not isinstance(step, dict):
                    raise InputError(Problem(place, f"cannot set {dotted(key_path)}: {dotted(prefix)} is {step!r}, "
                                                    "not a mapping"))
                first_new = first_new or (prefix if step is None else None)
                if step is None or copied.get(prefix) is not step:
                    inner[str(key)] = copied[prefix] = step = dict(step or {})
                inner = step
            inner[str(key_path[-1])] = value
            places[first_new or key_path] = places[key_path] = place
        return Document(self.path, data, self.lines, places)

    def settings(self) -> dict[str, Any]:
        """Values that `with_value` set, by dotted key: what the document has beside its file."""
        found: dict[str, Any] = {}
        for key_path, place in self.places.items():
            is_part = any(place == other and len(path) > len(key_path) and path[:len(key_path)] == key_path
                          for path, other in self.places.items())
            inner: Any = self.data
            for key in key_path:
                inner = inner[key] if isinstance(inner, dict) and key in inner else _ABSENT
            if inner is not _ABSENT and not is_part:
                found[dotted(key_path)] = inner
        return found

    def without(self, key: str) -> Document:
        """Copy of the document without one top-level key."""
        return replace(self, data={name: value for name, value in self.data.items() if name != key})


@lru_cache(maxsize=64)
def _folder_of(path: str) -> Path:
    return Path(path).parent


def _prefixes(key_path: KeyPath) -> Iterator[KeyPath]:
    return (key_path[:length] for length in range(len(key_path), -1, -1))


def read_document(path: str | os.PathLike[str]) -> Document:
    """Reads and parses one YAML or JSON file of at most `MAX_BYTES`.

    InputError if it cannot be read, and with `file:line` for every problem in it.
    """
    return parse_document(read_text(Path(path)), str(path))


def parse_document(text: str, path: str, *, takes_repeats: bool = False) -> Document:
    """Parses the text of a YAML or JSON file whose top level is a mapping; `path` names it in messages.

    InputError with `path:line` for every problem in it; `takes_repeats`: a key that stands twice with equal values is
    none.
    """
    builder = Parser(text, path, takes_repeats=takes_repeats)
    data = builder.document()
    if isinstance(data, dict):
        return Document(path, data, builder.lines, repeated=builder.repeated)
    got = "nothing: the file is empty" if data is None else f"{'a list' if isinstance(data, list) else repr(data)[:60]}"
    raise InputError(Problem(f"{path}:{builder.lines.get((), 1)}", f"expected a mapping (key: value), got {got}"))


def parse_value(text: str, where: str) -> Any:
    """Value of a YAML document (None if empty), such as the value of `--set`; InputError at `where` if unreadable."""
    try:
        return Parser(text, where).document()
    except InputError as error:
        raise InputError(Problem(where, problem.message) for problem in error.problems) from None


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Content of a regular file.

    InputError if it is not one, cannot be read, or has more than `limit` bytes.
    """
    content = b"".join(_blocks(path, limit, lambda file: iter([file.read(limit + 1)])))
    if problem := _too_large(len(content), limit):  # it grew while it was read, or its reported size was wrong
        raise InputError(Problem(str(path), problem))
    return content


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Text of a regular UTF-8 file of at most `limit` bytes.

    InputError as `read_bytes`, and for bytes that are no text.
    """
    return _text(read_bytes(path, limit), str(path))


def read_lines(path: Path, limit: int) -> Iterator[str]:
    """Yields the lines of a regular UTF-8 file one by one, with their ends.

    InputError as `read_bytes`, for other bytes than text, and for a line of more than `bounds.MAX_LINE` bytes. `limit`:
    largest size of the file in bytes.
    """
    taken = 0
    for number, line in enumerate(_blocks(path, limit, lambda file: iter(lambda: file.readline(MAX_LINE + 1), b"")), 1):
        taken += len(line)
        if problem := _too_large(len(line), MAX_LINE) or _too_large(taken, limit):
            raise InputError(Problem(f"{path}:{number}", problem))
        yield _text(line, str(path), number)


def confine(*folders: Path) -> None:
    """Lets this process read files below `folders` alone from now on; InputError for others.

    For a process that answers requests, whose scenarios may come from anybody.
    """
    _CONFINED.extend(folder.resolve() for folder in folders)


@contextmanager
def named_at(where: str, path: Path) -> Iterator[None]:
    """Context in which an InputError about the file `path` as a whole gets the place `where`.

    That is the place that names the file. Problems inside the file keep their own lines.
    """
    try:
        yield
    except InputError as error:
        raise InputError(Problem(where, f"{path}: {problem.message}") if problem.where == str(path) else problem
                         for problem in error.problems) from None


def _blocks(path: Path, limit: int, read: Callable[[BinaryIO], Iterator[bytes]]) -> Iterator[bytes]:
    """Blocks that `read` yields; the file is checked before it is opened (opening a device may act on it) and after."""
    try:
        problem = _outside(path) or _unfit(path.stat(), limit)
        if not problem:
            with os.fdopen(os.open(path, _FLAGS), "rb") as file:
                problem = _unfit(os.fstat(file.fileno()), limit)
                yield from () if problem else read(file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        problem = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {_reason(error)}"
    if problem:
        raise InputError(Problem(str(path), problem)) from None


def _outside(path: Path) -> str:
    if not _CONFINED or any(path.resolve().is_relative_to(folder) for folder in _CONFINED):
        return ""
    return "is not among the files that were given"


def _reason(error: Exception) -> str:
    return (error.strerror or "unknown reason").lower() if isinstance(error, OSError) else str(error)


def _unfit(status: os.stat_result, limit: int) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "expected a file, got a directory"
    if not stat.S_ISREG(status.st_mode):
        return "expected a regular file, got a pipe, socket or device"
    return _too_large(status.st_size, limit)


def _too_large(num_bytes: int, limit: int) -> str:
    return f"expected at most {limit:,} bytes, got {num_bytes:,} or more" if num_bytes > limit else ""


def _text(content: bytes, path: str, first: int = 1) -> str:
    """Decoded `content`; `first` is the number of the line that it begins with."""
    try:
        return content.decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + first
        message = f"expected UTF-8 text, got byte 0x{error.object[error.start]:02x} at byte {error.start}"
        raise InputError(Problem(f"{path}:{line}", message)) from None
