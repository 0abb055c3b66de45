"""One file of a recipe: its text, and its values where it is YAML, JSON or TOML. Nothing in it is executed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document, parse_document, read_text
from simcore.recipes.launch.arguments import Override
from simcore.recipes.toml_lines import toml_lines

__all__ = ["RecipeFile", "read_files"]


@dataclass(frozen=True)
class RecipeFile:
    """A file that the user named: `path` as in messages, its text, and keys that a launch command sets in it.

    `sources`: of a script, texts of the files that it sources, by their names.
    """

    path: str
    text: str
    overrides: tuple[Override, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def document(self) -> Document:
        """Values of the file and the line of each; of TOML the lines of tables and keys.

        InputError for a file that is no mapping, or that `inputs.yaml_parser` refuses.
        """
        if isinstance(self._parsed, InputError):
            raise self._parsed
        return self._parsed

    @cached_property
    def _parsed(self) -> Document | InputError:
        """The document, or why there is none: each format asks for it, and a long text is not parsed for each."""
        try:
            document = _toml(self) if Path(self.path).suffix == ".toml" else parse_document(
                self.text, self.path, takes_repeats=True)
        except InputError as error:
            return error
        for one in self.overrides:
            document = document.with_value(one.path, one.value, one.where)
        return document

    def mapping(self) -> Document | None:
        """The document, or None for a file that is not read as a mapping, such as a shell script."""
        return self._parsed if isinstance(self._parsed, Document) else None


def read_files(paths: Sequence[str]) -> tuple[RecipeFile, ...]:
    """Files of one recipe, in the order in which the user names them.

    InputError for one that cannot be read or passes the limits of `inputs.document`.
    """
    return tuple(RecipeFile(str(path), read_text(Path(path))) for path in paths)


def _toml(file: RecipeFile) -> Document:
    try:
        return Document(file.path, tomllib.loads(file.text), toml_lines(file.text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(Problem(file.path, f"not valid TOML: {error}")) from None
