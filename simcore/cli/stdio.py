"""Standard output and error that may be closed, full, no longer read, or unable to represent our signs.

The exit code is that of the work: output that cannot be written is dropped, and the first error is kept, so that no
caller has to check for errors. Signs that a terminal or pipe lacks, because its encoding is not UTF-8, become ASCII.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, Final, TextIO

from simcore.cli.sheets.levels import LEVELS

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["lost", "open_streams", "replace_signs"]

"""Eight heights of a block, the lowest first."""

_ASCII: Final = dict(zip(LEVELS, "_.:-=+*#", strict=True)) | {
    "\u2593": "+", "\u2591": ".", "\u2502": "|", "\u2500": "-", "\u251c": "|", "\u2514": "`", "\u2501": "-",
    "\u00d7": "x", "\u2013": "-", "\u2212": "-", "\u2026": "...", "\u2018": "'", "\u2019": "'", "\u201c": '"',
    "\u201d": '"', "\u00b7": "-"}
"""Look-alike of each sign that our output has."""


class _Kept(FileIO):
    """A descriptor that accepts everything; `error`: its first error, after which it drops all output."""

    error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        while self.error is None:
            try:
                written: int | None = super().write(data)
            except OSError as error:
                self.error = error
            else:
                if written is not None:
                    return written
                select.select([], [self], [])  # the other end made it non-blocking, and it is full for now
        return size


def open_streams() -> None:
    """Replaces the standard streams by ones that never raise an error, whether closed or full.

    Closed ones go to the null device; output that cannot be written is dropped, and `lost` tells of it afterwards.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, which is this one
            os.set_inheritable(number, True)  # noqa: FBT003 - workers must not get another file as their output
    sys.stdout = _kept(sys.stdout, 1)
    sys.stderr = _kept(sys.stderr, 2)


def _kept(stream: TextIO | None, number: int) -> TextIO:
    if stream is None:  # it was closed when Python started
        return TextIOWrapper(BufferedWriter(_Kept(number, "wb", closefd=False)), encoding="utf-8")
    if sys.platform == "win32" or not isinstance(stream, TextIOWrapper) or _number(stream) != number:
        return stream
    stream.flush()
    buffer = BufferedWriter(_Kept(number, "wb", closefd=False))
    return TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, newline="\n",
                         line_buffering=stream.line_buffering, write_through=stream.write_through)


def _number(stream: TextIO) -> int:
    try:
        return stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return -1


def lost(stream: TextIO) -> str:
    """Flushes a stream; returns the reason why output was lost, empty if none was.

    A reader that closed the pipe (`| head`) counts as no loss.
    """
    stream.flush()
    raw = stream.buffer.raw if isinstance(stream, TextIOWrapper) and isinstance(stream.buffer, BufferedWriter) else None
    error = raw.error if isinstance(raw, _Kept) else None
    return "" if error is None or error.errno == errno.EPIPE else str(error.strerror)


def replace_signs(*streams: object) -> None:
    """Makes text streams print ASCII for signs that their encoding lacks.

    Our own signs get a look-alike, all others a question mark. Objects that are not text streams are left alone.
    """
    codecs.register_error("rankscope", _replaced)
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="rankscope")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(sign, "?") for sign in error.object[error.start : error.end]), error.end
