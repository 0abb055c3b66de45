"""Parents of a recipe: files that its key `defaults` names, merged below it as NeMo RL does.

NVIDIA-NeMo/RL 7ea279ab nemo_rl/utils/config.py (load_config_with_inheritance): `defaults` is a path or a list of
paths, relative to the file that names them; each parent is read with its own parents, the later one wins, and the
recipe wins over all. Mappings are merged key by key, anything else replaces. A mapping at the top with `_override_:
true` replaces the parents' whole.

[Note: tree]
A parent is read only from the tree of the recipe: the nearest folder above it that has `.git` or `pyproject.toml`, else
its own folder; or where the user names it beside the recipe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import KeyPath
from simcore.recipes.recipe_file import RecipeFile, read_files

__all__ = ["DEFAULTS", "merged", "with_parents"]

DEFAULTS: Final = "defaults"
_REPLACES: Final = "_override_"
_MOST_FILES: Final = 32
_MOST_TEXT: Final = 2**19
"""Characters of all files of a chain together."""
_TOPS: Final = (".git", "pyproject.toml")


def with_parents(file: RecipeFile, beside: Sequence[RecipeFile] = ()) -> tuple[Document, tuple[RecipeFile, ...]]:
    """Document of a recipe with all that its parents say, and those of the files `beside` it that were read.

    Every value keeps the file and line where it was said; `defaults` stays. InputError at the line that names a parent:
    for one outside of [Note: tree], one that cannot be read, a circle, or a chain beyond this module's limits.
    """
    chain = _Chain(_tree(file), beside)
    document = chain.read(file, (Path(file.path).resolve(),))
    if DEFAULTS in file.document.data:
        document = document.with_value((DEFAULTS,), file.document.data[DEFAULTS], file.document.where((DEFAULTS,)))
    return document, tuple(chain.named)


def merged(below: Document, above: Document) -> Document:
    """Document of two, of which `above` wins; every value keeps its place."""
    places = {path: below.where(path) for path in _paths(below.data, ())}
    data = _merge(below.data, above.data, (), places)
    places.update((path, above.where(path)) for path in _paths(above.data, ()))
    return Document(above.path, data, places=places)


@dataclass
class _Chain:
    """Files of a recipe while they are read. `tree`: the folder that parents lie in; `named`: files beside it, used."""

    tree: Path
    beside: Sequence[RecipeFile]
    named: list[RecipeFile] = field(default_factory=list)
    num_files: int = 0
    num_characters: int = 0

    def read(self, file: RecipeFile, around: tuple[Path, ...]) -> Document:
        """Document of a file with its parents; `around`: the file itself, behind those that lead to it."""
        document = file.document
        self._count(file)
        found: Document | None = None
        for name, where in _names(document):
            parent, path = self._parent(name, where, file, around[-1])
            if path in around:
                shown = " -> ".join(one.name for one in (*around[around.index(path):], path))
                raise InputError(Problem(where, f"defaults in a circle: {shown}"))
            inner = self.read(parent, (*around, path))
            found = inner if found is None else _over(found, inner)
        own = document.without(DEFAULTS)
        return _over(Document(file.path, {}), own) if found is None else _over(found, own)

    def _count(self, file: RecipeFile) -> None:
        self.num_files += 1
        self.num_characters += len(file.text)
        if self.num_files > _MOST_FILES or self.num_characters > _MOST_TEXT:
            raise InputError(Problem(file.path, f"defaults: more than {_MOST_FILES} files, or {_MOST_TEXT:,} "
                                                "characters"))

    def _parent(self, name: str, where: str, file: RecipeFile, child: Path) -> tuple[RecipeFile, Path]:
        """The file that `name` means in `file`, whose resolved path is `child`; with its own resolved path."""
        try:
            path = (child.parent / name).resolve()
        except (OSError, ValueError, RuntimeError):
            raise InputError(Problem(where, f"defaults: {name!r:.100} is no path")) from None
        given = next((one for one in self.beside if Path(one.path).resolve() == path), None) or next(
            (one for one in self.beside if Path(one.path).name == path.name), None)
        if given is not None:
            self.named.append(given)
            return given, Path(given.path).resolve()
        if not path.is_relative_to(self.tree):
            raise InputError(Problem(where, f"defaults: {name:.200} lies outside of {self.tree.name or self.tree}, the "
                                            "tree of the recipe: name that file beside the recipe"))
        if not path.exists():
            raise InputError(Problem(where, f"defaults: {name:.200}: no such file: name it beside the recipe"))
        return read_files([os.path.normpath(Path(file.path).parent / name)])[0], path


def _tree(file: RecipeFile) -> Path:
    """Folder that parents lie in, see [Note: tree]."""
    folder = Path(file.path).resolve().parent
    around = (one for one in (folder, *folder.parents) if one != one.parent)  # never all of the disk
    return next((one for one in around if any((one / top).exists() for top in _TOPS)), folder)


def _names(document: Document) -> Iterator[tuple[str, str]]:
    """(path, place) of each parent that a document names."""
    said = document.data.get(DEFAULTS)
    for number, name in enumerate(said if isinstance(said, list) else [] if said is None else [said]):
        where = document.where((DEFAULTS, number) if isinstance(said, list) else (DEFAULTS,))
        if not isinstance(name, str) or not name:
            raise InputError(Problem(where, f"defaults: expected paths of files, got {name!r:.100}"))
        if "${" in name:
            raise InputError(Problem(where, f"defaults: {name:.100}: nothing is resolved in a path"))
        yield name, where


def _over(below: Document, above: Document) -> Document:
    """Document of both, in which a mapping of `above` with `_override_` replaces the one below whole."""
    replaces = [key for key, value in above.data.items() if isinstance(value, dict) and value.get(_REPLACES) is True]
    for key in replaces:
        below = below.without(key)
    data = {key: {name: inner for name, inner in value.items() if name != _REPLACES} if key in replaces else value
            for key, value in above.data.items()}
    return merged(below, replace(above, data=data))


def _merge(below: dict[str, Any], above: dict[str, Any], path: KeyPath, places: dict[KeyPath, str]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        at, old = (*path, key), below.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            found[key] = _merge(old, value, at, places)
            continue
        for inner in _paths(old, at):
            places.pop(inner, None)
        found[key] = value
    return found


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Paths of a value and of all inside it."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))
