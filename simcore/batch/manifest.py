"""What a folder of results holds: which batches, in which lines, and which one is under way; kept in `.batch`.

A file of results is known by the digest of its contents, so no crash between two steps, and nobody's editor, can make
one batch pass for another: both the old and the new file are known before one takes the place of the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from simcore.batch.fingerprint import Fingerprint
from simcore.errors import InputError
from simcore.inputs.document import read_bytes
from simcore.inputs.paths import write_whole, writing

__all__ = ["Batch", "Contents", "digest_of", "read_contents", "write_contents"]

_VERSION: Final = 1
_MOST_LINES: Final = 10**9


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a file of results: `lines` of its `scenarios`. `made_by` is empty for lines that came otherwise."""

    made_by: Fingerprint
    scenarios: int
    lines: int

    @property
    def finished(self) -> bool:
        """Whether there is a line for every scenario."""
        return self.lines == self.scenarios


@dataclass(frozen=True, slots=True)
class Contents:
    """`published`: batches of a file of results by its digest; `under_way`: those of a part, the unfinished one last.

    `replaces` is the digest of the file of results as the part was begun, empty if there was none; `anew` says that it
    was begun by `--overwrite`. `known` is False where nothing of this kind could be read.
    """

    published: Mapping[str, tuple[Batch, ...]] = field(default_factory=dict)
    under_way: tuple[Batch, ...] = ()
    replaces: str = ""
    anew: bool = False
    known: bool = True


def digest_of(path: Path) -> str:
    """SHA-256 of a file's contents. OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_contents(file: Path) -> Contents:
    """What `write_contents` wrote; not `known` for anything else, or nothing."""
    try:
        read = json.loads(read_bytes(file))
        if read["version"] != _VERSION:
            return Contents(known=False)
        return Contents({digest: _batches(rows) for digest, rows in read["published"].items()},
                        _batches(read["under_way"]), str(read["replaces"]), bool(read["anew"]))
    except (InputError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return Contents(known=False)


def _batches(rows: Sequence[Mapping[str, Any]]) -> tuple[Batch, ...]:
    """ValueError for numbers of lines that no batch has."""
    made = tuple(Batch({str(k): str(v) for k, v in row["made_by"].items()}, int(row["scenarios"]), int(row["lines"]))
                 for row in rows)
    if not all(0 <= batch.lines <= batch.scenarios <= _MOST_LINES for batch in made):
        raise ValueError("no batch has so many lines")
    return made


def write_contents(file: Path, contents: Contents) -> None:
    """InputError when it cannot be written; the older file is there then."""
    made = {"version": _VERSION, "published": {d: [*map(asdict, b)] for d, b in contents.published.items()},
            "under_way": [*map(asdict, contents.under_way)], "replaces": contents.replaces, "anew": contents.anew}
    with writing(file):
        write_whole(file, json.dumps(made, indent=1) + "\n")
