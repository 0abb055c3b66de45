"""Paths of the data that comes with rankscope: topologies, example scenarios, measured runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from simcore.errors import InputError, Problem
from simcore.inputs.paths import exists

__all__ = ["Kind", "data_folder", "example", "find_file"]

Kind = Literal["topologies", "scenarios", "measured"]
_IN_CHECKOUT: Final[dict[Kind, str]] = {"measured": "tests/truth/measured"}
"""Folders that are not at the top of a checkout, by kind."""


def data_folder(kind: Kind) -> Path:
    """Folder of the shipped topologies, scenarios or measured runs, installed or in a checkout."""
    return _folder(__file__, kind)


@lru_cache
def _folder(file: str, kind: Kind) -> Path:
    package = Path(file).resolve().parents[1]
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / _IN_CHECKOUT.get(kind, kind)


def example(name: str) -> Path:
    """Path of the shipped scenario file, or folder of scenarios, named `name` (without `.yaml`).

    InputError, with all the names, if there is none.
    """
    examples = {path.stem: path for path in sorted(data_folder("scenarios").glob("*")) if not path.name.startswith(".")}
    if name not in examples:
        raise InputError(Problem(f"example {name}", f"is none of: {', '.join(examples)}"))
    return examples[name]


def find_file(what: str, ref: str | Path, known: Mapping[str, Path], where: str, folder: Path = Path()) -> Path:
    """Path that `known` has for the name `ref`; else the file at path `ref`, relative to `folder`.

    If there is neither: InputError at `where`, with the nearest name; `what` is the word for such a file in its
    message.
    """
    if str(ref) in known:
        return known[str(ref)]
    if exists(folder / ref):
        return folder / ref
    near = difflib.get_close_matches(str(ref).lower(), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    message = f"no {what} {str(ref)!r}{hint} Known: {', '.join(sorted(known))}, or the path of a file"
    raise InputError(Problem(where, message))
