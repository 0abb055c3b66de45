"""Standard output and error that may be closed, full, or no longer read: the exit code is that of the work.

Output that cannot be written is dropped, and the first error is kept, so that no caller has to check for errors.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["lost", "open_streams"]


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
