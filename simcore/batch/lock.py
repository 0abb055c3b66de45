"""A folder that one process at a time writes to. The system gives the lock back however its holder ends."""

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
    """Holds the lock `file`, which stays; InputError when another process has it, or it cannot be written.

    Gives a function that says whether the lock still counts: it does not once somebody has removed the file.
    """
    with writing(file):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if not _taken(opened):
            told = f"another run{_holder(opened)} is writing to this folder: wait for it, or name another folder"
            raise InputError(Problem(str(folder), told))
        with writing(file):
            os.ftruncate(opened, 0)
            os.pwrite(opened, f"{os.getpid()}\n".encode(), 0) if sys.platform != "win32" else 0
        yield lambda: _is_there(opened, file)
    finally:
        os.close(opened)


def _taken(opened: int) -> bool:
    """Whether the lock is ours; true too on a file system that has no locks, or else nothing could be written there."""
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
    told = os.read(opened, 20).decode("ascii", errors="replace").strip()
    return f" (process {told})" if told.isdigit() else ""
