"""Results of a batch under way: written as they come, in complete lines, and readable after any interruption.

Results in order go to `results.jsonl.part`, which is renamed to `results.jsonl` when the last one is in it. A result
that comes before its turn is kept in `ahead`, with its index, until then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from simcore.inputs.bounds import MAX_LINE
from simcore.inputs.paths import writing

__all__ = ["PART", "RESULTS", "Part", "whole_lines"]

RESULTS: Final = "results.jsonl"
PART: Final = "results.jsonl.part"


def whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Lines from byte `start` on, with their ends, without an incomplete last line; ends at a line that is too long."""
    with path.open("rb") as file:
        file.seek(start)
        while (line := file.readline(MAX_LINE)).endswith(b"\n"):
            yield line


class _Lines:
    """A file that grows by complete lines: a partially written line is removed."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        with writing(path):
            self.file = path.open("r+b" if size else "w+b", buffering=0)
            self.file.truncate(size)

    def add(self, line: bytes) -> None:
        """Appends a line; InputError if it cannot be written, with the file as before."""
        try:
            with writing(self.path):
                self.file.seek(self.size)
                written = 0
                while written < len(line):
                    written += self.file.write(line[written:]) or 0
        except BaseException:
            with suppress(OSError):
                self.file.truncate(self.size)
            raise
        self.size += len(line)

    def empty(self) -> None:
        self.size = 0
        with writing(self.path):
            self.file.truncate(0)


class Part:
    """Both files, open for writing. `base`: size of the older results with which `path` begins."""

    def __init__(self, path: Path, ahead: Path, base: int, fits: Callable[[int, bytes], bool]) -> None:
        """Keeps lines while `fits(index, line)` is True for the result of that index; the rest is cut off."""
        self.early: dict[int, bytes] = {}
        self.num_lines, size = _in_order(path, base, fits)
        self._lines = _Lines(path, size)
        self._ahead = _Lines(ahead, self._read_early(ahead, fits) if ahead.exists() else 0)

    def _read_early(self, ahead: Path, fits: Callable[[int, bytes], bool]) -> int:
        size = 0
        for row in whole_lines(ahead):
            index_text, tab, line = row.partition(b"\t")
            if not (tab and index_text.isdigit() and fits(int(index_text), line)):
                break
            size += len(row)
            if int(index_text) >= self.num_lines:
                self.early[int(index_text)] = line
        return size

    def add(self, index: int, line: bytes) -> None:
        """Writes one result, with its line end; InputError if it cannot be written."""
        if index != self.num_lines:
            self._ahead.add(b"%d\t%s" % (index, line))
            self.early[index] = line
            return
        self._in_turn(line)
        self.catch_up()

    def catch_up(self) -> None:
        """Moves lines whose turn has come from `ahead`."""
        while (line := self.early.get(self.num_lines)) is not None:
            self._in_turn(line)
            del self.early[self.num_lines - 1]
        if not self.early and self._ahead.size:
            self._ahead.empty()

    def _in_turn(self, line: bytes) -> None:
        self._lines.add(line)
        self.num_lines += 1

    def copy_to(self, file: BinaryIO) -> None:
        """Writes all results, in order, with gaps for missing ones."""
        for line in whole_lines(self._lines.path):
            file.write(line)
        for _, line in sorted(self.early.items()):
            file.write(line)

    def sync(self) -> None:
        """Returns when everything is on the disk."""
        with writing(self._lines.path):
            os.fsync(self._lines.file.fileno())

    def close(self) -> None:
        """Closes the files, which stay."""
        for lines in (self._lines, self._ahead):
            lines.file.close()


def _in_order(path: Path, base: int, fits: Callable[[int, bytes], bool]) -> tuple[int, int]:
    """(number of lines after `base` that are results 0, 1, 2 ..., size of the file up to there)."""
    count, size = 0, base
    for line in whole_lines(path, base):
        if not fits(count, line):
            break
        count, size = count + 1, size + len(line)
    return count, size
