"""Lines of a log without colours, and the prefixes that launchers put before them.

Input: text as it was written to a terminal or file, of any size that the reader of files lets through. Output: lines,
cut at line feeds and at carriage returns (a progress bar writes over its line), without escape sequences.

Prefixes: srun --label `3: `; torch.distributed.run `[default3]:` and, for exceptions since torch 2.3, `[rank3]:`; Ray
`(WorkerDict pid=12, ip=..)`; vLLM `(VllmWorker rank=3 pid=12)`, `(EngineCore_DP0 pid=12) ERROR 10-25 13:08:43
[core.py:708] `. Only `[rank3]:` names a rank of the job: srun's number is that of a node if a launcher runs under it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["LONGEST", "lines_with", "plain_lines", "plain_text", "without_prefix"]

LONGEST: Final = 100_000
"""Characters of a line; longer ones are no line of a log and are left out."""
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[ -/]?[@-~]|[@-Z\\-_])")
_PREFIX: Final = re.compile(
    r"\s{0,8}(?:\[(?P<rank>rank|Rank )(?P<number>\d{1,7})\]:?|\[default\d{1,7}\]:|\d{1,7}: "
    r"|\(\w{1,60} (?:rank=\d{1,7} )?pid=\d{1,9}[^()\n]{0,100}\)"
    r"|(?:ERROR|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]{1,60}:\d+\]) ?")


def plain_text(text: str) -> str:
    """Text without escape sequences."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def lines_with(text: str, words: Sequence[str]) -> list[str]:
    """Lines of a text without escape sequences that have one of the words; longer ones than `LONGEST` are left out.

    A text of many megabytes is searched for each word as a whole first, which is much faster than line by line.
    """
    present = [word for word in words if word in text]
    if not present:
        return []
    return [line for line in plain_lines(text) if any(word in line for word in present)]


def plain_lines(text: str) -> Iterator[str]:
    """Yields lines without escape sequences and ends; those longer than `LONGEST` characters are left out."""
    for line in plain_text(text).splitlines():
        if line and len(line) <= LONGEST:
            yield line


def without_prefix(line: str) -> tuple[str, int | None, str]:
    """(prefixes, the rank that they name or None, rest of the line)."""
    rank, end = None, 0
    while match := _PREFIX.match(line, end):
        if match["rank"]:
            rank = int(match["number"])
        end = match.end()
    return line[:end].strip(), rank, line[end:]
