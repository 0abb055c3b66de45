"""What the file system says of a path, and every file that is written whole or not at all.

Asking never raises: a path that is too long, or in a folder that may not be searched, names nothing that can be used.
"""

from __future__ import annotations

import glob
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from simcore.errors import InputError, Problem

__all__ = ["escaped", "exists", "is_dir", "is_file", "is_text", "remove_unfinished", "stamp", "unusable", "whole",
           "write_whole", "writing"]

_STREAMS: Final = ("/dev/fd/", "/dev/stdout", "/dev/stderr", "/proc/")
"""Names of open streams: those are written to, never replaced, also where a regular file is behind them."""

_LONG_NAME: Final = 200


def is_text(name: str) -> bool:
    """Whether a name from the command line or a folder is text; Python keeps other bytes as lone surrogates."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def escaped(name: str) -> str:
    """A name that is no text as text, for a message."""
    return name.encode("utf-8", "backslashreplace").decode()


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether the path names anything; False where that cannot be told."""
    return _mode(path) is not None


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Whether the path is a folder, links followed; False where that cannot be told."""
    return stat.S_ISDIR(_mode(path) or 0)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether the path is a regular file, links followed; False where that cannot be told."""
    return stat.S_ISREG(_mode(path) or 0)


def stamp(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """What changes with a file's contents: when it was written, its size, its number; zeros where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path is made for each call of a simulation
    except (OSError, ValueError):
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def unusable(path: Path) -> str:
    """Why nothing can be there, such as a name that is too long; empty where something is, or could be."""
    try:
        path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or "unknown reason"
    return ""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the file system says into an InputError about `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(Problem(str(path), f"cannot be written: {error.strerror}")) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """All of `content` (text as UTF-8) in a file, or nothing: see `whole`."""
    with whole(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Gives a file beside `path`, which is on the disk and takes the place of `path` when the block ends.

    Where the block or the disk fails, an older file at `path` stays as it was, and no other is left. OSError. A pipe or
    a device is written to as it is; a link stays, and what it leads to is replaced.
    """
    mode = _mode(path)
    if mode is not None and (not stat.S_ISREG(mode) or str(path.absolute()).startswith(_STREAMS)):
        with path.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    beside = target.with_name(f"{_unfinished(target)}{secrets.token_hex(8)}.tmp")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            beside.chmod(stat.S_IMODE(mode))
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _settle(target.parent)


def remove_unfinished(path: Path) -> None:
    """Takes away what a process that was killed inside `whole(path)` left; no other may be writing it."""
    with suppress(OSError):
        for left in path.parent.glob(glob.escape(_unfinished(path)) + "[0-9a-f]" * 16 + ".tmp"):
            left.unlink(missing_ok=True)


def _unfinished(path: Path) -> str:
    """How the name of a file begins that is to become `path`; names have at most 255 bytes."""
    return f".{path.name}." if len(os.fsencode(path.name)) < _LONG_NAME else "."


def _settle(folder: Path) -> None:
    """Puts names of a folder on the disk, where the system knows how to: without it a power cut may bring old ones."""
    if sys.platform == "win32":
        return
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
