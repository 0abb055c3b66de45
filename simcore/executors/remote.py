"""One chunk on a worker of a cluster: what is sent to it, computed there, and sent back.

[Note: on a worker of a cluster]
Tasks and answers travel as bytes that this module packs, so that what cannot be packed is noticed on the side where it
is, in the same words under every library. A worker has to have the same code of rankscope, and the folder in which the
command was started, because scenarios may name files by relative paths: results are then the same bytes as those of
processes of this machine. A worker with threads computes one chunk at a time, because a process has one working folder.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.executors.engine import engine
from simcore.executors.executor import Done, Result, Unsent, computed

__all__ = ["Packer", "result_of", "served"]

_ALONE: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Unfit:
    """Answer of a worker that cannot give the same answers as others. `why`: for the user."""

    why: str


class Packer:
    """Packs chunks of one run; `work` answers one task."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work, self._engine, self._folder = work, engine(), os.getcwd()  # noqa: PTH109 - a text to send

    def packed(self, chunk: int, tasks: Sequence[Any]) -> bytes | Unsent:
        """A chunk as bytes for `served`, or why it cannot be sent."""
        try:
            return pickle.dumps((self._engine, self._folder, pickle.dumps((self._work, tasks))))
        except Exception as error:  # noqa: BLE001 - whatever pickling says
            return Unsent(chunk, f"{type(error).__name__}: {error}")


def served(packed: bytes) -> bytes:
    """Answer of a worker to one packed chunk, for `result_of`; runs on the worker."""
    version, folder, chunk = pickle.loads(packed)  # noqa: S301 - from the driver of this cluster
    here = socket.gethostname()
    if version != engine():
        return pickle.dumps(_Unfit(f"the worker on {here} has another version of rankscope"))
    with _ALONE:
        before = os.getcwd()  # noqa: PTH109
        try:
            os.chdir(folder)
        except OSError:
            return pickle.dumps(_Unfit(f"the worker on {here} has no folder {folder}, where this command was started"))
        try:
            work, tasks = pickle.loads(chunk)  # noqa: S301
            answer = computed(work, tasks)
        finally:
            os.chdir(before)
    try:
        return pickle.dumps(answer)
    except Exception as error:  # noqa: BLE001 - whatever pickling says
        return pickle.dumps(f"{type(error).__name__}: {error}")


def result_of(chunk: int, sent: bytes, place: str) -> Result[Any]:
    """Result of a chunk from what `served` returned. InputError, at `place`, if the worker is unfit."""
    answer = pickle.loads(sent)  # noqa: S301 - from a worker of this cluster
    if isinstance(answer, _Unfit):
        raise InputError(Problem(place, answer.why))
    return Unsent(chunk, answer) if isinstance(answer, str) else Done(chunk, *answer)
