"""The process that simulates: questions from a pipe, one after the other, with the engine's caches warm."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from simcore.errors import Problem, RankscopeError
from simcore.executors.interrupts import deaf
from simcore.executors.processes import end_with_parent
from simcore.inputs.document import confine
from simcore.inputs.shipped import data_folder
from simcore.studio.question import Question, folder_of

__all__ = ["answered", "behind_others", "enclosed", "problems_json", "serve"]


def serve(pipe: Connection, *, warm: bool) -> None:
    """Main function of a worker process: answers (kind, fields) of a pipe until it closes.

    `warm`: it simulates a small job first; one that does not computes what may wait, behind other processes.
    """
    deaf()
    end_with_parent()
    if not warm:
        behind_others()
    gc.set_threshold(100_000, 20, 50)  # recordings end by reference counts: seldom walk the caches
    with tempfile.TemporaryDirectory(prefix="rankscope-studio-") as made, suppress(EOFError, OSError):
        root = Path(made).resolve()
        _confine(root)
        if warm:
            _warm()
        while True:
            kind, fields = pipe.recv()
            pipe.send(answered(kind, fields, root))


def answered(kind: str, fields: Mapping[str, Any], root: Path) -> tuple[str, bytes]:
    """("ok", answer) of a question, or ("refused", its problems as JSON). `root`: folder for dropped files."""
    from simcore.studio.answers import ANSWERS

    try:
        question = Question.of(fields)
        os.chdir(folder_of(question.files, root))
        return "ok", ANSWERS[kind](question)
    except RankscopeError as error:
        return "refused", problems_json(error.problems)
    except RecursionError:
        return "refused", problems_json([Problem("", "nested too deep")])
    except Exception as error:  # noqa: BLE001 - a bug of ours costs one question, not the worker
        return "refused", problems_json([Problem("", f"bug in rankscope: {type(error).__name__}: {error}")])


def behind_others() -> None:
    """Lets other processes go first, so that the page is drawn at once while dozens of simulations run."""
    with suppress(AttributeError, OSError):  # not on every system
        os.nice(5)


def enclosed(question: Question, root: Path) -> None:
    """Puts this process into a folder under `root` with the dropped files; it reads no files but those and ours."""
    _confine(root)
    os.chdir(folder_of(question.files, root))


def _confine(root: Path) -> None:
    confine(root, *(data_folder(kind) for kind in ("topologies", "scenarios", "measured")))


def problems_json(problems: Any) -> bytes:
    """JSON list of problems: place, message and rule of each."""
    return json.dumps([{"where": one.where, "message": one.message, "rule": one.rule} for one in problems]).encode()


def _warm() -> None:
    """Imports the engine and simulates a small job, so that the first question finds them."""
    from simcore.studio.answers import warm

    with suppress(Exception):
        warm()
