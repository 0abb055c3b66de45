"""Where the data that comes with rankscope lies: topologies, example scenarios, measured runs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from simcore.errors import InputError, Problem

__all__ = ["Kind", "data_folder", "example"]

Kind = Literal["topologies", "scenarios", "measured"]
_IN_CHECKOUT: Final[dict[Kind, str]] = {"measured": "tests/truth/measured"}
"""Of those that do not lie at the top."""


def data_folder(kind: Kind) -> Path:
    """The folder of that kind, inside the installed package or in a checkout."""
    return _folder(__file__, kind)


@lru_cache
def _folder(file: str, kind: Kind) -> Path:
    package = Path(file).resolve().parent
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / _IN_CHECKOUT.get(kind, kind)


def example(name: str) -> Path:
    """The scenario file, or folder of them, that comes with rankscope under that name; InputError lists the names."""
    found = {path.stem: path for path in sorted(data_folder("scenarios").glob("*")) if not path.name.startswith(".")}
    if name not in found:
        raise InputError(Problem(f"example {name}", f"is none of: {', '.join(found)}"))
    return found[name]
