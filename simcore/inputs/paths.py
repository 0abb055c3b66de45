"""Questions to the file system about a path, and files that are written completely or not at all.

Asking never raises: a path that is too long, or in a folder that may not be searched, is treated as absent.
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
from typing import BinaryIO, Final, NamedTuple

from simcore.errors import InputError, Problem

__all__ = ["Stamp", "escaped", "exists", "is_dir", "is_file", "is_text", "remove_unfinished", "stamp", "unusable",
           "whole", "write_whole", "writing"]

_STREAMS: Final = ("/dev/fd/", "/dev/stdout", "/dev/stderr", "/proc/")
"""Names of open streams: they are written to, never replaced, even if a regular file is behind them."""

_LONG_NAME: Final = 200


def is_text(name: str) -> bool:
    """True if a file name is text; False if it has other bytes, which Python keeps as lone surrogates."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def escaped(name: str) -> str:
    """Printable form of a file name that is not text (`is_text`), for a message."""
    return name.encode("utf-8", "backslashreplace").decode()


def exists(path: str | os.PathLike[str]) -> bool:
    """True if the path exists; False also where the file system does not answer."""
    return _mode(path) is not None


def is_dir(path: str | os.PathLike[str]) -> bool:
    """True if the path is a folder, links followed; False also where the file system does not answer."""
    return stat.S_ISDIR(_mode(path) or 0)


def is_file(path: str | os.PathLike[str]) -> bool:
    """True if the path is a regular file, links followed; False also where the file system does not answer."""
    return stat.S_ISREG(_mode(path) or 0)


class Stamp(NamedTuple):
    """Properties of a file that change when it is written: time in ns, size in bytes, inode number."""

    written_ns: int
    size: int
    inode: int


def stamp(path: str | os.PathLike[str]) -> Stamp:
    """Stamp of the file at `path`, to be compared with a later one; all zeros if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a path is made for each call of a simulation
    except (OSError, ValueError):
        return Stamp(0, 0, 0)
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None


def unusable(path: Path) -> str:
    """Reason why no file can be at `path`, such as a name that is too long.

    "" if one is or could be there.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or "unknown reason"
    return ""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context in which an error of the file system (OSError) becomes an InputError about `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(Problem(str(path), f"cannot be written: {error.strerror}")) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes all of `content` (text as UTF-8) to `path`, or leaves an older file unchanged (`whole`)."""
    with whole(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Context that gives a temporary binary file, which replaces `path` when the block ends.

    It lies in the same folder and is synced to disk first. If the block or the disk fails (OSError), an older file at
    `path` stays unchanged and the temporary file is removed. A pipe or a device is written to directly; a link stays,
    and its target is replaced.
    """
    mode = _mode(path)
    if mode is not None and (not stat.S_ISREG(mode) or str(path.absolute()).startswith(_STREAMS)):
        with path.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f"{_unfinished(target)}{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _settle(target.parent)


def remove_unfinished(path: Path) -> None:
    """Removes temporary files that a killed process left in `whole(path)`; no such process may be running."""
    with suppress(OSError):
        for left in path.parent.glob(glob.escape(_unfinished(path)) + "[0-9a-f]" * 16 + ".tmp"):
            left.unlink(missing_ok=True)


def _unfinished(path: Path) -> str:
    """First part of the name of a temporary file that is to become `path`; names have at most 255 bytes."""
    return f".{path.name}." if len(os.fsencode(path.name)) < _LONG_NAME else "."


def _settle(folder: Path) -> None:
    """Syncs the entries of a folder to disk where the system can: without it a power cut may bring old ones back."""
    if sys.platform == "win32":
        return
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
