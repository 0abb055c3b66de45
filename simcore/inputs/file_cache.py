"""A cache of values read from files, each valid until one of its files changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Generic, TypeVar

from simcore.inputs.paths import Stamp, stamp

__all__ = ["FileCache"]

T = TypeVar("T")
_MOST: Final = 64


class FileCache(Generic[T]):
    """Cache of the values of files, by path: each file is read once, and again after a change.

    A change is that it, or a file that its value depends on, was written, moved or removed.
    """

    def __init__(self, read: Callable[[Path], tuple[T, Iterable[Path]]]) -> None:
        """Takes `read`, which returns the value of a path and the other files that the value depends on."""
        self._read = read
        self._kept: dict[str, tuple[T, dict[str, Stamp]]] = {}

    def __call__(self, path: Path) -> T:
        """Value of the file as it is now. Raises what `read` raises."""
        key = os.path.abspath(path)  # noqa: PTH100 - a relative path means another file in another folder
        kept = self._kept.get(key)
        if kept is not None and all(stamp(file) == before for file, before in kept[1].items()):
            return kept[0]
        before = stamp(key)
        value, files = self._read(path)
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[key] = value, {key: before, **{str(file.absolute()): stamp(file) for file in files}}
        return value
