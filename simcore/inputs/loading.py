"""Scenarios of the files, folders and globs that the user names; a bad file makes only its own entry fail."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, NotYet, Problem
from simcore.inputs.document import Document, parse_value, read_document
from simcore.inputs.paths import escaped, is_dir, is_text
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.inputs.sweep import Member, members, split_key
from simcore.inputs.yaml_parser import KeyPath, dotted

__all__ = ["Entry", "Opener", "changed", "entry_of", "files_of", "load", "read", "settings_of"]

_SUFFIXES: Final = (".yaml", ".yml")
Opener = Callable[[str], Document]
"""Reads one file as the document of a scenario; InputError or NotYet if it cannot."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One scenario of a batch, or the problems for which there is none (`scenario` is then None).

    `name`: the scenario's; of a file without one, its name without the ending. `where`: `file:line`, or the path that
    gave no scenario. `document`: of an entry without a scenario, unless it is of a sweep or cannot be read.
    """

    name: str
    where: str
    scenario: Scenario | None
    problems: tuple[Problem, ...] = ()
    document: Document | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class _Override:
    """A value given by `--set`."""

    key_path: KeyPath
    value: Any
    place: str


def read(paths: Iterable[str | os.PathLike[str]], overrides: Sequence[str] = (),
         opened: Opener = read_document) -> list[Entry]:
    """Reads every scenario of `paths` (files, folders, globs) in order, sweeps expanded, a file named twice only once.

    Of folders all `.yaml` and `.yml` files below them, but hidden ones and those of folders `answers`. `overrides`:
    texts `key=value`, as `--set` takes them, applied to each. `opened`: reads a file; another one than `read_document`
    may read what is no scenario as one. A mistake in a file is a problem of its entry, and so is
    a name that an earlier one has. InputError only for `overrides` that cannot be read.
    """
    settings = [_override(text) for text in overrides]
    entries: list[Entry] = []
    seen: set[Path] = set()
    for named in paths:
        for file in files_of(os.fspath(named)):
            if isinstance(file, Entry):
                entries.append(file)
            elif not is_text(file):
                entries.append(_fault(escaped(file), "expected a file name that is text, got other bytes"))
            elif (real := _real(file)) not in seen:
                seen.add(real)
                entries += _entries(file, settings, opened)
    return _unique(entries)


def load(path: str | os.PathLike[str], overrides: Sequence[str] = (), opened: Opener = read_document) -> list[Scenario]:
    """Reads the scenarios of one file, folder or glob, as `read`.

    InputError with all problems if there are any.
    """
    entries = read([path], overrides, opened)
    problems = [problem for entry in entries for problem in entry.problems]
    if problems:
        raise InputError(problems)
    return [entry.scenario for entry in entries if entry.scenario]


def entry_of(document: Document, overrides: Sequence[str] = ()) -> Entry:
    """Scenario of a parsed document, or its problems; a `sweep` in it is a problem.

    `overrides`: texts `key=value`, as `--set` takes them.
    """
    settings = [_override(text) for text in overrides]
    if document.data.get("sweep") is not None:
        return _failed(document, document.path, (Problem(document.where(("sweep",)), "no sweep is expected here"),))
    try:
        return _entry(Member(_changed(document, settings)), swept=False)
    except InputError as error:
        return _failed(document, document.path, error.problems)


def changed(scenario: Scenario, values: Mapping[str, Any], place: str = "") -> Scenario:
    """Copy of a scenario with the dotted keys in `values` set. `place`: that problems name; "": `--set` and the key.

    InputError for a value that no scenario may have.
    """
    document = scenario.document.with_values((split_key(key), value, place or f"--set {key}")
                                             for key, value in values.items())
    return parse_scenario(document, swept=scenario.swept)


def _changed(document: Document, settings: Iterable[_Override]) -> Document:
    for setting in settings:
        document = document.with_value(setting.key_path, setting.value, setting.place)
    return document


def settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Values that texts `key=value` give, by dotted key; InputError for a text that cannot be read."""
    return {dotted(setting.key_path): setting.value for setting in map(_override, overrides)}


def _override(text: str) -> _Override:
    key, equals, value = text.partition("=")
    key_path = split_key(key.strip())
    place = f"--set {text}"[:120]
    if not equals or not all(key_path):
        raise InputError(Problem(place, f"expected key=value, such as mesh.ep=4, got {text!r}"))
    return _Override(key_path, parse_value(value, place), place)


def _real(path: str) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a NUL: reading the file reports it
        return Path(path)


def files_of(named: str) -> Iterator[str | Entry]:
    """Files that a path, a folder or a glob stands for, or an entry that says why there are none."""
    exists = os.path.lexists(named) if "\0" not in named else False
    if exists and is_dir(named):
        yield from _in_folder(named)
    elif exists or not glob.has_magic(named):
        yield named
    else:
        matches = sorted(glob.glob(named, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute patterns
        if not matches:
            yield _fault(named, "no file matches")
        for path in matches:
            if is_dir(path):
                yield from _walk(path)
            elif _is_scenario(Path(path)):
                yield path


def _in_folder(folder: str) -> Iterator[str | Entry]:
    entries = list(_walk(folder))
    yield from entries
    if not entries:
        yield _fault(folder, f"the folder holds no scenario ({', '.join('*' + end for end in _SUFFIXES)})")


def _walk(folder: str) -> Iterator[str | Entry]:
    """Scenario files under a folder, in order; a folder that cannot be read is one entry with a problem."""
    unread: list[OSError] = []
    for root, folders, files in os.walk(folder, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "answers")
        yield from (os.path.join(root, name) for name in sorted(files) if _is_scenario(Path(name)))  # noqa: PTH118
    yield from (_fault(str(error.filename), f"the folder cannot be read: {(error.strerror or '').lower()}")
                for error in unread)


def _is_scenario(path: Path) -> bool:
    return path.suffix in _SUFFIXES and not path.name.startswith(".") and ".answer." not in path.name


def _fault(named: str, message: str) -> Entry:
    return Entry(Path(named).name or named, named, None, (Problem(named, message),))


def _entries(path: str, settings: list[_Override], opened: Opener) -> list[Entry]:
    """Entries of one file."""
    document = None
    try:
        document = opened(path)
        document = _changed(document, settings)
        parts = members(document)
    except (InputError, NotYet) as error:
        return [_failed(document, path, error.problems)]
    swept = document.data.get("sweep") is not None
    return _together(document, [_entry(part, swept=swept) for part in parts])


def _failed(document: Document | None, path: str, problems: tuple[Problem, ...]) -> Entry:
    name = document.data.get("name") if document else None
    where = document.where(("name",)) if document else path
    return Entry(name if isinstance(name, str) else Path(path).stem, where, None, problems)


def _entry(part: Member, *, swept: bool) -> Entry:
    document = part.document
    if part.problems:
        return _failed(document, document.path, part.problems)
    try:
        scenario = parse_scenario(document, swept=swept)
    except InputError as error:
        failed = _failed(document, document.path, tuple(map(part.hinted, error.problems)))
        return failed if swept else replace(failed, document=document)
    return Entry(scenario.name, document.where(("name",)), scenario)


def _together(document: Document, entries: list[Entry]) -> list[Entry]:
    """Reports problems common to all members of a sweep once, for the file."""
    if len(entries) < 2:
        return entries
    common = set(entries[0].problems).intersection(*(entry.problems for entry in entries))
    if not common:
        return entries
    shared = _failed(document, document.path, tuple(problem for problem in entries[0].problems if problem in common))
    own = (replace(entry, problems=tuple(p for p in entry.problems if p not in common)) for entry in entries)
    return [shared, *(entry for entry in own if entry.problems)]


def _unique(entries: list[Entry]) -> list[Entry]:
    """Refuses the second scenario of the same name; entries that could not be read have no name yet."""
    first: dict[str, Entry] = {}
    for index, entry in enumerate(entries):
        if entry.scenario is None:
            continue
        earlier = first.setdefault(entry.name, entry)
        if earlier is not entry:
            message = f"name: {entry.name!r} is already the name of the scenario at {earlier.where}"
            entries[index] = replace(entry, scenario=None, problems=(Problem(entry.where, message),))
    return entries
