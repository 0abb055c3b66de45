"""Hashes of every shipped scenario's answers, a line a component: what must not change while code is moved.

    python tests/answer_hashes.py > before.txt
    python tests/answer_hashes.py --against before.txt

Answers of `run`, `place` and `explain` (peak, trainable, step) and of `validate`, all as JSON, through the command
itself, so that no name of a module matters. Paths of our own source files in sources and rules are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
EXPLAINED: Final = ("peak", "trainable", "step")
_OWN_FILE: Final = re.compile(r"simcore/[\w/]+\.py")


def command(*words: str) -> tuple[int, Any]:
    """Exit code and parsed standard output of `rankscope WORDS`; None for output that is no JSON."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = ["rankscope", *words]
    code: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            runpy.run_module("simcore", run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = argv
    try:
        return int(str(code or 0)), json.loads(out.getvalue())
    except ValueError:
        return int(str(code or 0)), None


def digest(value: object) -> str:
    """The first 64 bits of the SHA-256 of a value's JSON."""
    text = _OWN_FILE.sub("simcore", json.dumps(value, sort_keys=True))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lines() -> Iterator[str]:
    """`question: hash`, in the order of the files."""
    for file in sorted((ROOT / "scenarios").glob("*/*.yaml")):
        name = str(file.relative_to(ROOT))
        for verb in ("run", "place"):
            yield from _reports(verb, name)
        for what in EXPLAINED:
            code, steps = command("explain", name, what, "--json")
            yield f"explain {what} {name}: {code} {digest(steps)}"
    yield from _validated()


def _reports(verb: str, name: str) -> Iterator[str]:
    code, reports = command(verb, name, "--json")
    yield f"{verb} {name}: {code}"
    for report in reports or ():
        for part, value in report.items():
            yield f"{verb} {name} {report['name']} {part}: {digest(value)}"


def _validated() -> Iterator[str]:
    code, (answer,) = command("validate", "--json")
    yield f"validate: {code}"
    for part, value in answer.items():
        rows = value.items() if isinstance(value, dict) else [("", value)]
        yield from (f"validate {part} {key}: {digest(rows_of)}" for key, rows_of in rows)


def main() -> int:
    """Exit code 1 where an answer is another one than before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="FILE", help="hashes to compare with, in place of printing")
    given = parser.parse_args()
    found = dict(line.rsplit(": ", 1) for line in lines())
    if given.against is None:
        sys.stdout.writelines(f"{question}: {answer}\n" for question, answer in found.items())
        return 0
    before = dict(line.rsplit(": ", 1) for line in given.against.read_text(encoding="utf-8").splitlines())
    changed = [question for question in before | found if before.get(question) != found.get(question)]
    sys.stdout.writelines(f"changed: {question}\n" for question in changed)
    sys.stdout.write(f"{len(found):,} answers, {len(changed):,} changed\n")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
