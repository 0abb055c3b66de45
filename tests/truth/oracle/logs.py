"""Files of event logs: cases measured one by one, written with a line a section."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def main(script: str, measure: Callable[[Case], dict[str, Any]], stored: Path | list[Case]) -> None:
    """Print one object, a key a case: those given as arguments, else those in `stored`, a file or the cases."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(json.loads(sys.argv[2]))))
        return
    known = json.loads(stored.read_text(encoding="utf-8")) if isinstance(stored, Path) else stored
    cases = [json.loads(text) for text in sys.argv[1:]] or known
    rows = {case["name"]: _apart(script, case) for case in cases}
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {_written(row)}" for name, row in rows.items()) + "\n}")


def _apart(script: str, case: Case) -> dict[str, Any]:
    """A case in a process of its own: FSDP2 and fake tensors leave traces."""
    asked = subprocess.run([sys.executable, script, "--one", json.dumps(case)], capture_output=True, text=True,
                           check=False)
    if asked.returncode:
        sys.exit(asked.stderr)
    return {"case": {k: v for k, v in case.items() if k != "name"}, **json.loads(asked.stdout.splitlines()[-1])}


def _written(row: dict[str, Any]) -> str:
    """Sections on a line each."""
    head = json.dumps({key: value for key, value in row.items() if key != "sections"})
    lines = ",\n".join(json.dumps(section, separators=(",", ":")) for section in row["sections"])
    return f'{head[:-1]}, "sections": [\n{lines}]}}'
