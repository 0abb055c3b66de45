"""Runs cases one after the other, each in a forked child, so that the slow imports happen once.

A probe reads one case per line (JSON) from standard input, or takes cases as arguments, and prints one row per line.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def isolated(measure: Callable[[Row], Row], case: Row) -> Row:
    """``measure(case)`` in a child process; a raised exception becomes ``{"case", "error"}``.

    A broken environment is no refusal: it becomes ``{"case", "failed"}`` and never a row.
    """
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        try:
            out = measure(case)
        except (ImportError, AttributeError, NameError):  # the environment or the probe is at fault
            traceback.print_exc()
            out = {"case": case, "failed": traceback.format_exc().splitlines()[-1]}
        except Exception as e:  # noqa: BLE001  (the refusal is the result)
            traceback.print_exc()
            out = {"case": case, "error": f"{type(e).__name__}: {e}".splitlines()[0]}
        with os.fdopen(w, "w") as f:
            json.dump(out, f)
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if text else {"case": case, "failed": f"child ended with status {status}"}


def serve(measure: Callable[[Row], Row], to_row: Callable[[Row], Row]) -> None:
    lines = sys.argv[1:] or sys.stdin
    for line in lines:
        if line.strip():
            raw = isolated(measure, json.loads(line))
            tag, out = ("FAILED", raw) if "failed" in raw else ("ROW", to_row(raw))
            print(tag, json.dumps(out), flush=True)
