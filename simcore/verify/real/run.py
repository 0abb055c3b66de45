"""Asks a framework what it does with one case: JSON on standard input, one line of JSON on standard output.

Runs as a script of the environment that has the framework; rankscope itself is not there. Input: `side`, a module of
this folder with a function `found`, and `case`, its argument. Output: what it found; or `error`, the framework's own
words; or `failed`, where the environment lacks something. What frameworks print goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import traceback
import types
from pathlib import Path
from typing import Any


def answer(side: str, case: dict[str, Any]) -> dict[str, Any]:
    """Findings of the side, or the last line of its error."""
    try:
        return importlib.import_module(f"real.{side}").found(case)
    except (ImportError, AttributeError, NameError) as error:  # of the environment: no refusal of a layout
        traceback.print_exc()
        return {"failed": told(error)}
    except Exception as error:  # noqa: BLE001  (the framework's own words are the answer)
        traceback.print_exc()
        return {"error": told(error)}


def told(error: Exception) -> str:
    """Kind and first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def main() -> None:
    package = types.ModuleType("real")
    package.__path__ = [str(Path(__file__).resolve().parent)]
    sys.modules["real"] = package
    asked = json.loads(sys.stdin.read())
    with contextlib.redirect_stdout(sys.stderr):
        found = answer(asked["side"], asked["case"])
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
