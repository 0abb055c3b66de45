"""Outcomes that are on the disk, read when they are asked for: a batch of any size needs 8 bytes of memory for each."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

from simcore.batch.run import Outcome, outcome_of
from simcore.inputs.paths import writing
from simcore.results.report import Report

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry

__all__ = ["Kept", "Places"]

Places = Sequence[tuple[Path, Iterable[int]]]
"""Files with the first bytes of lines in them."""


class Kept(Sequence[Outcome]):
    """Outcomes of `entries` in lines of files, in the same order.

    `places`: the files and where the lines begin. The files stay open, so that they may be replaced meanwhile.
    InputError if one cannot be opened.
    """

    def __init__(self, entries: Sequence[Entry], places: Places) -> None:
        self._entries = entries
        self._starts, self._files = array("q"), list[tuple[int, int]]()
        for path, starts in places:
            with writing(path):
                opened = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            weakref.finalize(self, os.close, opened)
            self._starts.extend(starts)
            self._files.append((len(self._starts), opened))
        assert len(self._starts) == len(entries)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Outcome: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Outcome]: ...
    def __getitem__(self, at: int | slice) -> Outcome | Sequence[Outcome]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        return outcome_of(self._entries[at], Report.model_validate_json(self.line(at)))

    def __iter__(self) -> Iterator[Outcome]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as any sequence that is compared by its items

    def line(self, at: int) -> bytes:
        """Line of one outcome's report, as JSON, with its line end."""
        opened = next(file for end, file in self._files if at < end)
        return _line(opened, self._starts[at])


def _line(opened: int, start: int) -> bytes:
    """Line of an open file that begins at a byte."""
    found = b""
    while not found.endswith(b"\n"):
        os.lseek(opened, start + len(found), os.SEEK_SET)
        piece = os.read(opened, 1 << 15)
        if not piece:
            break
        found += piece[:piece.find(b"\n") + 1 or None]
    return found
