"""What makes two batches the same: every result of one would be, byte for byte, that of the other.

    scenarios  every key of every scenario, sweeps and `--set` applied, and where it is written
    files      contents of the files that scenarios name (models, topologies), and of those that these name
    options    what is asked of each scenario: --rank, --advise, --html
    engine     the version, and the code and data that this process runs
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import simcore
from simcore.errors import InputError
from simcore.inputs.document import parse_document, read_bytes
from simcore.inputs.paths import is_file
from simcore.inputs.shipped import data_folder

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry

__all__ = ["DIFFERENCES", "Fingerprint", "fingerprint"]

Fingerprint = dict[str, str]
"""Digests by the names above."""

DIFFERENCES: Final = {
    "scenarios": "other scenarios, or read from other places",
    "files": "a file that scenarios name has changed",
    "options": "other options, such as --rank, --advise, --html",
    "engine": "made by another version of rankscope",
}

_DEEPEST: Final = 4
"""Files that name files: a topology names its efficiency and its curves."""


def fingerprint(entries: Sequence[Entry], work: Callable[..., object]) -> Fingerprint:
    """Of a batch that does `work` to `entries`."""
    scenarios = hashlib.sha256()
    files: set[tuple[str, str]] = set()
    for entry in entries:
        told: dict[str, Any] = {"name": entry.name, "where": entry.where}
        if entry.scenario is None:
            told["problems"] = [[p.where, p.message, p.rule] for p in entry.problems]
        else:
            told |= {"keys": entry.scenario.normalised(), "swept": entry.scenario.swept}
            files |= _named(told["keys"], entry.scenario.folder)
        scenarios.update(json.dumps(told, sort_keys=True).encode() + b"\n")
    return {"scenarios": scenarios.hexdigest(), "files": _digest(sorted(files)), "options": _digest(_described(work)),
            "engine": _engine()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _described(work: Callable[..., object]) -> object:
    """A function's name; of a partial one its arguments too."""
    if isinstance(work, partial):
        given = {key: repr(value) for key, value in work.keywords.items()}
        return [_described(work.func), [repr(value) for value in work.args], given]
    return f"{work.__module__}.{work.__qualname__}"


def _named(keys: dict[str, Any], folder: Path) -> set[tuple[str, str]]:
    """Paths and digests of the files that values name; a name that happens to be a file's is taken for one."""
    given = {key: value for key, value in keys.items() if key != "name"}
    return {found for text in _texts(given) for start in (folder, Path()) for found in _file(str(start), text)}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


@lru_cache(maxsize=4096)
def _file(folder: str, text: str, depth: int = 0) -> tuple[tuple[str, str], ...]:
    """The file of that name and what it names; nothing where there is none, or one that no scenario could use."""
    path = Path(folder, text)
    if not text or not is_file(path):
        return ()
    try:
        content = read_bytes(path)
    except InputError:
        return ()
    found = [(str(path), hashlib.sha256(content).hexdigest())]
    if depth < _DEEPEST:
        found += [more for inner in _inner(content, path) for more in _file(str(path.parent), inner, depth + 1)]
    return tuple(found)


def _inner(content: bytes, path: Path) -> list[str]:
    try:
        return list(_texts(parse_document(content.decode("utf-8-sig"), str(path)).data))
    except (InputError, UnicodeDecodeError):
        return []


@lru_cache(maxsize=1)
def _engine() -> str:
    """Of every file of the package that is no picture's, so that a changed checkout is another version."""
    found = hashlib.sha256()
    package = Path(simcore.__file__).resolve().parent
    for root in (package, data_folder("topologies")):
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for path in (Path(folder, name) for name in sorted(files) if name.endswith((".py", ".json", ".yaml"))):
                found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()
