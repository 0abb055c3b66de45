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
from simcore.inputs.paths import is_file, writing

__all__ = ["PART", "RESULTS", "GrowingLines", "Part", "results_file", "whole_lines"]

RESULTS: Final = "results.jsonl"
PART: Final = "results.jsonl.part"


def results_file(path: Path) -> Path | None:
    """File of results that `path` names: itself (.json, .jsonl, .part), or that in a folder of `run -o`; else None."""
    file = next((path / name for name in (RESULTS, PART) if is_file(path / name)), path)
    return file if file.suffix in (".json", ".jsonl", ".part") else None


def whole_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    """Lines of a file from byte `start` on, each with its line end; an incomplete last line is left out.

    Ends before a line of more than `MAX_LINE` bytes.
    """
    with path.open("rb") as file:
        file.seek(start)
        while (line := file.readline(MAX_LINE)).endswith(b"\n"):
            yield line


class GrowingLines:
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
    """Results of one batch under way, in two files that are open for writing; one line is one result.

    `path` has results 0, 1, 2 ... in order, after `base` bytes of older batches; `ahead` has those that came too early,
    each after its index and a tab. `early`: results in `ahead` that still wait, by index: (first byte of the line after
    index and tab, its length); `num_lines`: number of this batch's results in `path`.
    """

    def __init__(self, path: Path, ahead: Path, base: int, fits: Callable[[int, bytes], bool]) -> None:
        """Keeps lines while `fits(index, line)` is True for the result of that index; the rest is cut off."""
        self.early: dict[int, tuple[int, int]] = {}
        self.num_lines, size = _in_order(path, base, fits)
        self._lines = GrowingLines(path, size)
        self._ahead = GrowingLines(ahead, self._read_early(ahead, fits) if ahead.exists() else 0)

    def _read_early(self, ahead: Path, fits: Callable[[int, bytes], bool]) -> int:
        size = 0
        for row in whole_lines(ahead):
            index_text, tab, line = row.partition(b"\t")
            if not (tab and index_text.isdigit() and fits(int(index_text), line)):
                break
            size += len(row)
            if int(index_text) >= self.num_lines:
                self.early[int(index_text)] = size - len(line), len(line)
        return size

    def add(self, index: int, line: bytes) -> None:
        """Writes `line`, the result of scenario `index` with its line end, to `path` or, if early, to `ahead`.

        It is early if results with lower indices are missing; those that waited for this one are moved by `catch_up`.
        InputError if it cannot be written.
        """
        if index != self.num_lines:
            self._ahead.add(b"%d\t%s" % (index, line))
            self.early[index] = self._ahead.size - len(line), len(line)
            return
        self._in_turn(line)

    def catch_up(self) -> None:
        """Moves results that are next in order from `ahead` to `path`; empties `ahead` when none is left."""
        while (place := self.early.get(self.num_lines)) is not None:
            self._in_turn(self._waiting(place))
            del self.early[self.num_lines - 1]
        if not self.early and self._ahead.size:
            self._ahead.empty()

    def _in_turn(self, line: bytes) -> None:
        self._lines.add(line)
        self.num_lines += 1

    def _waiting(self, place: tuple[int, int]) -> bytes:
        """Line in `ahead`; InputError if it cannot be read any more."""
        start, length = place
        with writing(self._ahead.path):
            self._ahead.file.seek(start)
            line = b""
            while len(line) < length and (more := self._ahead.file.read(length - len(line))):
                line += more
        return line

    def copy_to(self, file: BinaryIO) -> None:
        """Writes all results so far into `file`: the lines of `path`, older batches first, then `early` by index."""
        for line in whole_lines(self._lines.path):
            file.write(line)
        for _, place in sorted(self.early.items()):
            file.write(self._waiting(place))

    def sync(self) -> None:
        """Waits until the results in `path` are on the disk (fsync); InputError if the disk fails."""
        with writing(self._lines.path):
            os.fsync(self._lines.file.fileno())

    def close(self) -> None:
        """Closes both files, which stay on the disk."""
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
