"""A search in a process of its own: what it has found so far, a line of JSON at a time, until it ends or is stopped."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem, RankscopeError
from simcore.executors.interrupts import deaf, withheld
from simcore.executors.processes import end_with_parent
from simcore.results.found import FoundLayout
from simcore.search.judge import Candidate, Sized
from simcore.search.missed import Missed
from simcore.studio.question import Question, names_of, space_of_question
from simcore.studio.worker import behind_others, enclosed, problems_json

__all__ = ["Ready", "Searching"]

_SHOWN: Final = 300
"""Layouts of a line at most: the first of the ranking, and the Pareto set."""
_PAUSE_S: Final = 0.2
"""Seconds between two lines about progress."""


class Ready:
    """A process that has loaded what a search needs and waits for one, so that it begins at once."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._waiting: tuple[Connection, BaseProcess] | None = None
        self._is_over = False

    def start(self) -> None:
        """Starts a process, unless one waits."""
        with self._changed:
            if self._waiting is None and not self._is_over:
                self._waiting = _started()

    def take(self) -> tuple[Connection, BaseProcess]:
        """The process that waits, with the pipe to it; a new one where none does."""
        with self._changed:
            taken, self._waiting = self._waiting, None
        return taken if taken and taken[1].is_alive() else _started()

    def close(self) -> None:
        """Ends the process that waits; no other is started."""
        with self._changed:
            self._is_over = True
            if self._waiting is not None:
                self._waiting[1].kill()
                self._waiting[1].join()
                self._waiting[0].close()
                self._waiting = None


def _started() -> tuple[Connection, BaseProcess]:
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_search, args=(its,), daemon=True)
    with withheld():
        process.start()
    its.close()
    return ours, process


class Searching:
    """A search in its own process. `begin` starts it, `next` gives what it finds, `stop` ends it for good.

    `ready`: gives the process.
    """

    def __init__(self, fields: Mapping[str, Any], ready: Ready | None = None) -> None:
        self._fields, self._ready = fields, ready or Ready()
        self._changed = threading.Lock()
        self._is_over = False
        self._pipe: Connection | None = None
        self._process: BaseProcess | None = None

    def begin(self) -> None:
        """Starts the process, unless the search was stopped before."""
        with self._changed:
            if self._is_over:
                return
            self._pipe, self._process = self._ready.take()
            with suppress(OSError):  # it died: `next` ends the search
                self._pipe.send(self._fields)

    def next(self) -> bytes | None:
        """Waits for the next line, JSON without its end; None when the search is over."""
        with suppress(EOFError, OSError):
            if self._pipe is not None:
                line: bytes = self._pipe.recv_bytes()
                return line
        return None

    def stop(self) -> None:
        """Ends the search, if it has not ended."""
        with self._changed:
            self._is_over = True
            if self._process is not None and self._pipe is not None:
                self._process.kill()
                self._process.join()
                self._pipe.close()


def _search(pipe: Connection) -> None:
    """Main function of the process of a search, whose fields come through the pipe."""
    deaf()
    end_with_parent()
    behind_others()
    import simcore.studio.fewest  # noqa: F401 - what the other kind of search needs is among it

    with suppress(EOFError, OSError):
        _do(pipe, pipe.recv())


def _do(pipe: Connection, fields: Mapping[str, Any]) -> None:
    """Sends the lines of a search."""
    with tempfile.TemporaryDirectory(prefix="rankscope-studio-") as made, suppress(OSError):
        try:
            question = Question.of(fields)
            enclosed(question, Path(made).resolve())
            (_fewest if question.rest.get("fewest") else _found)(pipe, question)
        except RankscopeError as error:
            pipe.send_bytes(b'{"problems": %b}' % problems_json(error.problems))
        except Exception as error:  # noqa: BLE001 - a bug of ours costs the search, not the studio
            told = [Problem("", f"bug in rankscope: {type(error).__name__}: {error}")]
            pipe.send_bytes(b'{"problems": %b}' % problems_json(told))


def _found(pipe: Connection, question: Question) -> None:
    """Sends progress and ranked layouts as they come, then the answer."""
    from simcore.search.objective import OBJECTIVES
    from simcore.search.search import Search, search
    from simcore.search.watch import Watch

    asked = question.rest
    objectives = names_of(asked, "objectives", ("tokens", "peak"))
    for name in objectives:
        if name not in OBJECTIVES:
            raise InputError(Problem("objectives", f"expected {', '.join(OBJECTIVES)}"))
    space, missed, told_at = space_of_question(question), Missed(), [0.0]

    def told(stage: str, done: int, all_of: int, found: int) -> None:
        if done == all_of or time.monotonic() - told_at[0] > _PAUSE_S:
            told_at[0] = time.monotonic()
            pipe.send_bytes(_line(stage=stage, done=done, all_of=all_of, fits=found, **missed.said()))

    def sized(candidate: Candidate, memory: Sized) -> None:
        best = memory.tokens / (memory.least_s * memory.num_gpus) if memory.least_s else None
        pipe.send_bytes(_line(fitting={"keys": dict(candidate), "peak_bytes": memory.peak_bytes,
                                       "num_gpus": memory.num_gpus, "tokens_per_s_per_gpu_at_most": best}))

    result = search(Search(space, tuple(OBJECTIVES[name] for name in objectives)), told,
                    watch=Watch(sized, lambda layouts: pipe.send_bytes(_line(layouts=_shown(layouts))), missed.add))
    refused = [row.model_dump() for row in result.refused[:12]]
    pipe.send_bytes(_line(layouts=_shown(result.ranked), counts=result.counts.model_dump(), refused=refused,
                          over=True, **missed.said()))


def _fewest(pipe: Connection, question: Question) -> None:
    """Sends the fewest GPUs that a layout of each framework surely fits on, as they are found."""
    from simcore.studio.fewest import fewest

    fewest(question, lambda row: pipe.send_bytes(_line(**row)))


def _shown(layouts: Sequence[FoundLayout]) -> list[dict[str, Any]]:
    kept = [one for place, one in enumerate(layouts) if one.is_pareto or place < _SHOWN]
    return [one.model_dump() for one in kept]


def _line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
