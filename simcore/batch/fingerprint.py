"""Fingerprint of a batch: batches with equal fingerprints give byte-identical results.

    scenarios  every key of every scenario, sweeps and `--set` applied, and its place
    files      contents of the files that scenarios name (models, topologies), and of those that these name
    options    options that apply to each scenario: --rank, --advise, --html
    engine     the version, and the code and data that this process runs
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from simcore.errors import InputError
from simcore.executors.engine import engine
from simcore.inputs.document import parse_document, read_bytes
from simcore.inputs.paths import is_file

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry

__all__ = ["DIFFERENCES", "SHARD", "Fingerprint", "fingerprint"]

Fingerprint = dict[str, str]
"""Digests by the names above."""

SHARD: Final = "shard"
"""Name of the shard, such as `2/4`, in the fingerprint of a batch of which a folder has a part only."""

DIFFERENCES: Final = {
    "scenarios": "other scenarios, or read from other places",
    "files": "a file that scenarios name has changed",
    "options": "other options, such as --rank, --advise, --html",
    "engine": "made by another version of rankscope",
    SHARD: "another shard, or none",
}

_DEEPEST: Final = 4
"""Depth of files that name files: a topology names its efficiency and its curves."""


def fingerprint(entries: Sequence[Entry], work: Callable[..., object]) -> Fingerprint:
    """Hexadecimal SHA-256 digests by name; two batches in which all are equal give byte-identical results.

    Names: `scenarios` (keys and places of `entries`), `files` (contents of the files that scenarios name, and of those
    that these name), `options` (name and arguments of `work`, the function that simulates one scenario), `engine` (code
    and data of rankscope, without the drawings of `viz`).
    """
    scenarios = hashlib.sha256()
    files: set[tuple[str, str]] = set()
    for entry in entries:
        description: dict[str, Any] = {"name": entry.name, "where": entry.where}
        if entry.scenario is None:
            description["problems"] = [[p.where, p.message, p.rule] for p in entry.problems]
        else:
            description |= {"keys": entry.scenario.normalised(), "swept": entry.scenario.swept}
            files |= _named(description["keys"], entry.scenario.folder)
        scenarios.update(json.dumps(description, sort_keys=True).encode() + b"\n")
    return {"scenarios": scenarios.hexdigest(), "files": _digest(sorted(files)), "options": _digest(_described(work)),
            "engine": engine()}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _described(work: Callable[..., object]) -> object:
    """A function's name; for a partial function with its arguments, functions among them by their names."""
    if isinstance(work, partial):
        return [_described(work.func), [_told(value) for value in work.args],
                {key: _told(value) for key, value in work.keywords.items()}]
    return f"{work.__module__}.{work.__qualname__}"


def _told(value: object) -> object:
    """Text of an argument that is the same in every process."""
    return _described(value) if isinstance(value, partial | FunctionType) else repr(value)


def _named(keys: dict[str, Any], folder: Path) -> set[tuple[str, str]]:
    """(path, digest) of the files that values name; a value that is also the name of a file counts."""
    values = {key: value for key, value in keys.items() if key != "name"}
    return {named_file for text in _texts(values) for start in (folder, Path()) for named_file in _file(str(start),
                                                                                                        text)}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


@lru_cache(maxsize=4096)
def _file(folder: str, text: str, depth: int = 0) -> tuple[tuple[str, str], ...]:
    """(path, digest) of the file of that name and of the files it names; empty if it cannot be used by a scenario."""
    path = Path(folder, text)
    if not text or not is_file(path):
        return ()
    try:
        content = read_bytes(path)
    except InputError:
        return ()
    files = [(str(path), hashlib.sha256(content).hexdigest())]
    if depth < _DEEPEST:
        files += [more for inner in _inner(content, path) for more in _file(str(path.parent), inner, depth + 1)]
    return tuple(files)


def _inner(content: bytes, path: Path) -> list[str]:
    try:
        return list(_texts(parse_document(content.decode("utf-8-sig"), str(path)).data))
    except (InputError, UnicodeDecodeError):
        return []
