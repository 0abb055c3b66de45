"""A script of `real/` in another environment: JSON in, JSON out, within a time."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem

__all__ = ["ask", "last_words"]

_SCRIPT: Final = Path(__file__).parent / "real" / "run.py"
_THREADS: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Torch's threads sleep until there is work: on cores that others use too, spinning ones take them from each other."""


def ask(python: Path, side: str, case: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Returns what a side's script answers to a case.

    InputError if it does not start, takes more than `timeout` seconds, fails, or if its environment lacks something. A
    refusal by the framework is an answer, with the key `error`.
    """
    asked = json.dumps({"side": side, "case": case})
    try:  # -I: nothing of this process's environment is imported there
        done = subprocess.run([str(python), "-I", str(_SCRIPT)], input=asked, capture_output=True,  # noqa: S603
                              env=_THREADS | os.environ, text=True, encoding="utf-8", errors="replace",
                              timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(Problem("--timeout", f"the framework's side took more than {timeout:g} s; give it more, or "
                                 "build fewer --layers")) from None
    except OSError as error:
        raise InputError(Problem(str(python), f"cannot be run: {error.strerror}")) from None
    told = _answer(done.stdout)
    if told is None:
        raise InputError(Problem(str(python), f"the framework's side ended with exit code {done.returncode}: "
                                 f"{last_words(done.stderr)}"))
    if "failed" in told:
        raise InputError(Problem(str(python), f"the environment lacks something: {told['failed']}"))
    return told


def _answer(text: str) -> dict[str, Any] | None:
    """The last line of the output as a JSON object; None if it is none."""
    lines = text.strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def last_words(text: str) -> str:
    """The last line of a process's errors that says anything, at most 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
