"""Manifest of a folder of results, in `.batch`: its batches, their lines, and the batch under way.

A file of results is identified by the digest of its contents, so neither a crash between two steps nor an editor can
make one batch pass for another: the old and the new file are both recorded before one replaces the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from simcore.batch.fingerprint import Fingerprint
from simcore.errors import InputError
from simcore.inputs.document import read_bytes
from simcore.inputs.paths import write_whole, writing

__all__ = ["Batch", "Contents", "read_contents", "write_contents"]

_VERSION: Final = 1
_MOST_LINES: Final = 10**9


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch (the scenarios of one command) in a file of results.

    `scenarios`: their number; `lines`: number of their results that are in the file, one line each. `made_by`:
    fingerprint that identifies the batch; empty for lines of unknown origin.
    """

    made_by: Fingerprint
    scenarios: int
    lines: int

    @property
    def finished(self) -> bool:
        """True if there is a line for every scenario."""
        return self.lines == self.scenarios


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of the manifest of a folder of results: which batches its two files hold.

    `published`: batches in `results.jsonl`, in order, by the digest of that file; `under_way`: those in
    `results.jsonl.part`, the unfinished one last. `replaces`: digest of `results.jsonl` when the part was begun, empty
    if there was none; `anew`: the part was begun by `--overwrite`. `known` is False if no manifest could be read.
    """

    published: Mapping[str, tuple[Batch, ...]] = field(default_factory=dict)
    under_way: tuple[Batch, ...] = ()
    replaces: str = ""
    anew: bool = False
    known: bool = True


def read_contents(file: Path) -> Contents:
    """Manifest that `write_contents` wrote to `file`; with `known` False if that is missing or foreign."""
    try:
        read = json.loads(read_bytes(file))
        if read["version"] != _VERSION:
            return Contents(known=False)
        return Contents({digest: _batches(rows) for digest, rows in read["published"].items()},
                        _batches(read["under_way"]), str(read["replaces"]), bool(read["anew"]))
    except (InputError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return Contents(known=False)


def _batches(rows: Sequence[Mapping[str, Any]]) -> tuple[Batch, ...]:
    """Batches of rows; ValueError for numbers of lines that no batch has."""
    batches = tuple(Batch({str(k): str(v) for k, v in row["made_by"].items()}, int(row["scenarios"]), int(row["lines"]))
                 for row in rows)
    if not all(0 <= batch.lines <= batch.scenarios <= _MOST_LINES for batch in batches):
        raise ValueError("no batch has so many lines")
    return batches


def write_contents(file: Path, contents: Contents) -> None:
    """Writes the manifest; InputError if it cannot be written, and then the older file stays."""
    document = {"version": _VERSION, "published": {d: [*map(asdict, b)] for d, b in contents.published.items()},
            "under_way": [*map(asdict, contents.under_way)], "replaces": contents.replaces, "anew": contents.anew}
    with writing(file):
        write_whole(file, json.dumps(document, indent=1) + "\n")
