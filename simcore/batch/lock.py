"""A lock on a folder, so that one process at a time writes to it; the system releases it when its holder ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from simcore.errors import InputError, Problem
from simcore.inputs.paths import writing

__all__ = ["locked"]


@contextmanager
def locked(file: Path, folder: Path) -> Iterator[Callable[[], bool]]:
    """Context that holds an exclusive lock on `file`; one process at a time, where the file system has locks.

    InputError, which names `folder`, if another process holds it; InputError also if `file` cannot be written. The file
    stays. Yields a function that returns True while the lock is valid: it is not once the file was removed.
    """
    with writing(file):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if not _taken(opened):
            message = f"another run{_holder(opened)} is writing to this folder: wait for it, or name another folder"
            raise InputError(Problem(str(folder), message))
        with writing(file):
            os.ftruncate(opened, 0)
            os.pwrite(opened, f"{os.getpid()}\n".encode(), 0) if sys.platform != "win32" else 0
        yield lambda: _is_there(opened, file)
    finally:
        os.close(opened)


def _taken(opened: int) -> bool:
    """True if the lock is ours, also on a file system without locks, where nothing could be written otherwise."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(opened, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _is_there(opened: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened), file.stat())
    except OSError:
        return False


def _holder(opened: int) -> str:
    text = os.read(opened, 20).decode("ascii", errors="replace").strip()
    return f" (process {text})" if text.isdigit() else ""
