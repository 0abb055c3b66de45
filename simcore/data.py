"""Where the data that comes with rankscope lies: the topologies and the example scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from simcore.errors import InputError, Problem

__all__ = ["Kind", "data_folder", "example"]

Kind = Literal["topologies", "scenarios"]


def data_folder(kind: Kind) -> Path:
    """The folder of that kind, inside the installed package or at the top of a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / kind


def example(name: str) -> Path:
    """The scenario file, or folder of them, that comes with rankscope under that name; InputError lists the names."""
    found = {path.stem: path for path in sorted(data_folder("scenarios").glob("*")) if not path.name.startswith(".")}
    if name not in found:
        raise InputError(Problem(f"example {name}", f"is none of: {', '.join(found)}"))
    return found[name]
