"""The command line in this process, and what is expected of whatever it says."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from fuzz.case import Findings, Input
from fuzz.invariants import hold
from simcore.cli import app as cli
from simcore.inputs.shipped import data_folder
from simcore.results.report import Report

__all__ = ["LINES", "Said", "expect_answers", "judge", "say"]

LINES: Final = "file and line"
"""Asked of refusals where whatever is wrong stands in a file of keys."""
_SAYS: Final = ("rankscope: ",)
"""Beginnings of lines on standard error."""
_HELP: Final = ("Usage: ", "Error: ")
"""Beginning of the answer to wrong arguments, which has several lines."""
_NO_NUMBER: Final = re.compile(r"(?<![\w./'\"-])-?(?:nan|inf|infinity)(?![\w./'\"-])", re.IGNORECASE)
_NEGATIVE: Final = re.compile(r"(?<![\w-])(?<!left )(?<!left  )-[0-9][0-9.,]* ?[KMGTP]i?B\b")
_LINE: Final = re.compile(r"rankscope: (?P<file>.+?\.(?:yaml|json|jsonl)):[0-9]+: ")
_WHOLE: Final = re.compile(r"rankscope: (?P<file>.+?): (?:no such file|no file matches|explains one scenario"
                           r"|expected (?:at most [0-9,]+ bytes|a file|a regular file)|cannot be (?:read|written))")
"""Messages about a file and not about a line of it."""
_ARGUMENT: Final = re.compile(r"rankscope: argument [0-9]+: expected text")
_OPTION: Final = re.compile(r"rankscope: (?P<option>--[a-z-]+)[ :]")
_MORE: Final = re.compile(r"rankscope: (?:and [0-9,]+ more$|argument [0-9]+: expected text)")
_OF_NUMBERS: Final = re.compile(r"(?<![a-z])(?:nan|inf|infinity)(?![a-z])", re.IGNORECASE)
_OF_NEGATIVES: Final = re.compile(r"(?<![\w])-[0-9.]")
_SUBTRACT: Final = ("read", "compare")
"""Commands that print differences, which may be negative bytes."""


class Said(NamedTuple):
    """An exit code, and what came on the two streams."""

    code: object
    out: str
    err: str


def say(arguments: Sequence[str]) -> Said:
    """`rankscope` with arguments, in this process; tracebacks of bugs are shown."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)
                for errors in ("strict", "backslashreplace"))  # as Python opens them
    code: object = None
    with (patch.object(sys, "argv", ["rankscope", *arguments]), patch.dict(os.environ, RANKSCOPE_DEBUG="1"),
          redirect_stdout(out), redirect_stderr(err)):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    told = [stream.buffer.getvalue().decode() for stream in (out, err) if isinstance(stream.buffer, io.BytesIO)]
    return Said(code, *told)


def judge(given: Input, found: Findings) -> None:
    """Says the words of an input, and expects an answer or a refusal."""
    said = say(given.arguments)
    found.count(f"exit {said.code}")
    expect_answers(given, said, found)


def expect_answers(given: Input, said: Said, found: Findings) -> None:
    """Checks the invariants of every call."""
    if said.code == 3:
        found.expect(f"no bug: {_where(said.err)}", holds=False, told=_last(said.err))
        return
    found.expect("exit code 0, 1 or 2", said.code in (0, 1, 2), f"exit {said.code}: {said.err[-300:]}")
    found.expect("no traceback", "Traceback" not in said.err, said.err[-300:])
    found.expect("standard error is short", len(said.err) < 40_000, f"{len(said.err)} characters")
    is_help = said.code == 2 and said.err.lstrip().startswith(_HELP)
    for line in filter(None, said.err.split("\n")):
        found.expect("a message is a line that says whose it is", line.startswith(_SAYS) or is_help, line[:200])
        text = line.lstrip("\t") if is_help else line  # usage lists choices behind tabs
        found.expect("a message has no control characters", text.isprintable(), repr(line[:200]))
    if said.code == 2:
        _expect_message(given, said, found)
    if "--json" in given.arguments and said.out.startswith("["):
        _expect_results(said.out, found, whole="--rank" not in given.arguments)
    elif said.code in (0, 1):
        _expect_numbers(given, said.out, found)


def _expect_numbers(given: Input, out: str, found: Findings) -> None:
    """Numbers of a text are numbers, and bytes are there or not; words of the input may be repeated."""
    texts = [*given.arguments, *(given.content(name).decode(errors="replace") for name in given.files)]
    told = (("no number is infinite or none", _NO_NUMBER, _OF_NUMBERS),
            ("no bytes are negative", _NEGATIVE, _OF_NEGATIVES))
    for what, pattern, repeated in told:
        subtracts = pattern is _NEGATIVE and given.arguments and given.arguments[0] in _SUBTRACT
        if subtracts or any(map(repeated.search, texts)):
            continue
        match = pattern.search(out)
        found.expect(what, match is None, _around(out, match))


def _expect_message(given: Input, said: Said, found: Findings) -> None:
    lines = [line for line in said.err.split("\n") if line]
    found.expect("a refusal says why", lines or said.out, "nothing")
    for line in lines if LINES in given.checks else ():
        found.expect("a refusal has file and line", _is_placed(line, given), line[:200])


def _is_placed(line: str, given: Input) -> bool:
    """True if the line names a line of an existing file, a file, or an option of the call."""
    if match := _OPTION.match(line):
        return match["option"] in given.arguments
    if match := _LINE.match(line):
        return _is_known(match["file"], given)
    if match := _WHOLE.match(line):
        name = match["file"]  # a file that is not there is named by another
        named = any(Path(name).name.encode() in given.content(other) for other in given.files)
        return named or name in given.arguments or _is_known(name, given)
    return bool(_MORE.match(line))


def _is_known(name: str, given: Input) -> bool:
    """A file of the input, or one that comes with rankscope."""
    return os.path.normpath(name) in given.files or Path(name).is_relative_to(data_folder("topologies").parent)


def _expect_results(out: str, found: Findings, *, whole: bool) -> None:
    """Standard JSON, of which results hold what answers hold."""
    try:
        rows = json.loads(out, parse_constant=_refuse)
    except ValueError as error:
        found.expect("JSON is standard JSON", holds=False, told=f"{error}: {out[:100]}")
        return
    for row in rows:
        if isinstance(row, dict) and "schema_version" in row and row.get("status") == "ok":
            hold(Report.model_validate_json(json.dumps(row)), found, whole=whole)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} in JSON")


def _around(text: str, match: re.Match[str] | None) -> str:
    return "" if match is None else text[max(0, match.start() - 60):match.end() + 20].replace("\n", " | ")


def _where(err: str) -> str:
    """The innermost function of ours in a traceback."""
    frames = re.findall(r'File "[^"]*/(?:simcore|viz)/([^"]+)", line \d+, in (\S+)', err)
    kinds = re.findall(r"^(\w+(?:Error|Exception|Overflow|Exit|Iteration)\w*)", err, re.MULTILINE)
    place = " ".join(frames[-1]) if frames else "?"
    return f"{kinds[-1] if kinds else ''} at {place}"


def _last(err: str) -> str:
    told = [line for line in err.splitlines() if "bug in rankscope" in line or "Error" in line]
    return (told or err.splitlines() or [""])[-1][:300]
