"""A question of the page: a scenario as text or as values, files that were dropped beside it, layouts to search."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import MAX_BYTES, Document, parse_document
from simcore.inputs.loading import Entry, entry_of, read
from simcore.inputs.scenario import Scenario
from simcore.inputs.yaml_parser import MAX_DEPTH, KeyPath, dotted

__all__ = ["Question", "folder_of", "names_of", "price_of", "space_of_question"]

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")
"""Names of dropped files: no folder, nothing hidden."""
_MOST_FILES: Final = 8
_MOST_USD: Final = 10_000
_MOST_CANDIDATES: Final = 100_000
_MOST_KEYS: Final = 2000
"""Keys of a scenario that comes as values, far more than there are."""


@dataclass(frozen=True)
class Question:
    """A scenario that the page asks about, and what else the question says.

    `name`: of the scenario's file, in messages. `text`: its YAML or JSON, or `values`: its keys. `files`: texts of
    dropped files by name, which the scenario may name. `rest`: further fields, which the kind of question reads.
    """

    name: str
    text: str | None
    values: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Question:
        """Question out of a request's JSON; InputError for a field of another type than expected."""
        name, text = fields.get("name", "studio.yaml"), fields.get("text")
        values, files = fields.get("values", {}), fields.get("files", {})
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(Problem("name", "expected a file name without a folder"))
        if text is not None and not isinstance(text, str):
            raise InputError(Problem("text", "expected the text of a scenario"))
        if not isinstance(values, dict):
            raise InputError(Problem("values", "expected the keys of a scenario"))
        if not isinstance(files, dict) or len(files) > _MOST_FILES:
            raise InputError(Problem("files", f"expected at most {_MOST_FILES} files by name"))
        for file, content in files.items():
            _expect_file(file, content)
        return cls(name, text, values, files, fields)

    def document(self) -> Document:
        """Document of the scenario: of a text with its lines, of values with the dotted key as place of each."""
        if self.text is not None:
            if len(self.text.encode()) > MAX_BYTES:
                raise InputError(Problem(self.name, f"expected at most {MAX_BYTES:,} bytes"))
            return parse_document(self.text, self.name)
        places = dict(_places(self.values, ()))
        if len(places) > _MOST_KEYS:
            raise InputError(Problem("values", f"expected at most {_MOST_KEYS:,} keys"))
        return Document(self.name, dict(self.values), places=places)

    def entries(self) -> list[Entry]:
        """Entries of the scenario, as the command line reads them from a file; a mistake is in its entry."""
        return read([self.name], opened=lambda path: self.document())

    def scenario(self) -> Scenario:
        """The one scenario; InputError with its problems, or for a sweep."""
        entry = entry_of(self.document())
        if entry.scenario is None:
            raise InputError(entry.problems)
        return entry.scenario


def price_of(question: Question) -> float | None:
    """A user's own price of an hour of a GPU in USD; None: that of the machine. InputError for what is no price."""
    price = question.rest.get("price")
    if price is None:
        return None
    if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price <= _MOST_USD:
        raise InputError(Problem("price", f"expected USD per GPU-hour from 0 to {_MOST_USD:,}"))
    return float(price)


def space_of_question(question: Question) -> Any:
    """Space around the question's job; InputError for fields of another kind, and for too many layouts."""
    from simcore.search.space import candidates, space_of

    asked = question.rest
    free = asked.get("free")
    if free is not None and not (isinstance(free, dict) and all(isinstance(one, list) for one in free.values())):
        raise InputError(Problem("free", "expected lists of values by key"))
    gpus = asked.get("gpus") or []
    if not isinstance(gpus, list) or not all(type(n) is int and 1 <= n <= 2**22 for n in gpus):
        raise InputError(Problem("gpus", "expected numbers of GPUs"))
    space = space_of(question.scenario(), gpus=gpus, frameworks=names_of(asked, "frameworks", ()),
                     topologies=names_of(asked, "topologies", ()),
                     free=None if free is None else {key: tuple(values) for key, values in free.items()})
    if sum(1 for _, _ in zip(range(_MOST_CANDIDATES + 1), candidates(space), strict=False)) > _MOST_CANDIDATES:
        message = f"has more than {_MOST_CANDIDATES:,} layouts: free fewer keys, or use `rankscope search`"
        raise InputError(Problem("free", message))
    return space


def names_of(asked: Mapping[str, Any], field: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Names in a field of a question, `usual` without one; InputError for something else."""
    names = asked.get(field) or usual
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(Problem(field, "expected a list of names"))
    return tuple(names)


def folder_of(files: Mapping[str, str], root: Path) -> Path:
    """Folder under `root` with the dropped files; the same files have the same folder, so what was read stays known."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:24]
    folder = root / digest
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=root) as made:
            for name, text in files.items():
                Path(made, name).write_text(text, encoding="utf-8")
            Path(made).rename(folder)
            Path(made).mkdir()  # what the context removes
    return folder


def _expect_file(name: object, content: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(Problem(str(name)[:80], "expected a file name without a folder"))
    if not isinstance(content, str) or len(content.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InputError(Problem(name, f"expected text of at most {MAX_BYTES:,} bytes"))


def _places(values: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    for key, value in values.items():
        inner = (*path, key)
        if len(inner) > MAX_DEPTH:
            raise InputError(Problem(dotted(path), f"expected a key of at most {MAX_DEPTH} levels"))
        yield inner, dotted(inner)
        if isinstance(value, dict):
            yield from _places(value, inner)
