"""Digest of the code and data of this package, so that a worker of another version is noticed before it answers."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

import simcore
from simcore.inputs.shipped import data_folder

__all__ = ["engine"]


@lru_cache(maxsize=1)
def engine() -> str:
    """Hexadecimal SHA-256 of the package's files without those of figures: a changed checkout is another version."""
    digest = hashlib.sha256()
    package = Path(simcore.__file__).resolve().parent
    for root in (package, data_folder("topologies")):
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for path in (Path(folder, name) for name in sorted(files) if name.endswith((".py", ".json", ".yaml"))):
                digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
