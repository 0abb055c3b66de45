"""Reader of pickles of plain data that runs no code: dictionaries, lists, text, numbers, pairs of numbers.

Python's own unpickler calls functions that a pickle names. Here every opcode is checked first: those that look up, call
or build objects are refused by name, and so are those that would take more memory than the file's size allows. Then an
unpickler without any global names reads the data.

[Note: tuples]
A tuple may be a key, and a key is hashed with all that it contains, every time. A small file can have a tuple whose
hash takes forever, or which is nested deeper than the interpreter's stack. So a tuple may have up to three numbers and
nothing else; those of a snapshot are pairs (of a pool).
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Final, NoReturn

from simcore.errors import InputError, Problem

__all__ = ["MAX_OPCODES", "is_pickle", "unpickled"]

MAX_OPCODES: Final = 50_000_000
"""Opcodes of one file. A snapshot of PyTorch takes some 40 for an event; trainers keep 100,000 events (Megatron-LM main
of 2026-08-22 `training/utils/utils.py`) to a million (torchtitan b5bcd76c `tools/profiler.py`)."""

MAX_CONTAINERS: Final = 4_000_000
"""Lists and dictionaries, which take far more memory than their opcode: one for an event, and those of its frames."""

MAX_DEPTH: Final = 64
"""Containers that are open at once; a snapshot has nine."""

MAX_DIGITS: Final = 16
"""Bytes of a whole number; addresses take eight."""

_PROTOCOLS: Final = range(2, 6)
_PLAIN: Final = frozenset({
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "BINUNICODE8",
    "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK",
    "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "POP", "POP_MARK", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE",
    "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_NUMBERS: Final = ("BINFLOAT", "BININT", "BININT1", "BININT2", "LONG1", "NEWFALSE", "NEWTRUE", "NONE")
_TUPLES: Final = {"TUPLE": MAX_OPCODES, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
"""Numbers that must precede a tuple opcode; for tuples of any length more than a file can have."""

_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_FIXED: Final = {"BINFLOAT": 8, "BINGET": 1, "BININT": 4, "BININT1": 1, "BININT2": 2, "BINPUT": 1, "FRAME": 8,
                 "LONG_BINGET": 4, "LONG_BINPUT": 4, "PROTO": 1}
_PREFIXED: Final = {"BINUNICODE": 4, "BINUNICODE8": 8, "LONG1": 1, "SHORT_BINUNICODE": 1}
"""Bytes of an argument, or of the length of the argument, by opcode."""
_CLOSING: Final = ("APPENDS", "DICT", "LIST", "POP_MARK", "SETITEMS", "TUPLE")

_MADE: Final = ("EMPTY_DICT", "EMPTY_LIST", "DICT", "LIST")
_TELLING: Final = {*_PREFIXED, *_CLOSING, *_MADE, *_TUPLES, "MARK", "LONG_BINPUT", "BINPUT", "PROTO", "STOP"}


_LONG: Final = ord(pickle.LONG1)


def _skipped(name: str) -> int:
    return _FIXED.get(name, 0) if name in _PLAIN - _TELLING else -1


_SKIP: Final = tuple(_skipped(_NAMES.get(code, "")) for code in range(256))
"""Bytes after each opcode that can be skipped; -1 for opcodes that must be checked."""


def is_pickle(content: bytes) -> bool:
    """Tells whether the content begins like a pickle of protocol 2 or later."""
    return content[:1] == b"\x80"


def unpickled(content: bytes, where: str) -> object:
    """Value of a pickle of plain data: dicts, lists, text, numbers, tuples of up to three numbers.

    InputError, which names `where`, if it is damaged, too large, or contains anything else.
    """
    _Look(content, where).through()
    try:
        return _Nothing(io.BytesIO(content)).load()
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file can make an unpickler raise anything
        raise InputError(Problem(where, f"cannot be unpickled, it is damaged: {error}")) from None


class _Nothing(pickle.Unpickler):
    """Unpickler that looks up no class, no function and no persistent object."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(Problem("pickle", f"asks for {module}.{name}: nothing that a pickle names is looked up"))

    def persistent_load(self, pid: object) -> NoReturn:
        raise InputError(Problem("pickle", "asks for an object outside it: nothing that a pickle names is looked up"))


class _Look:
    """One pass over opcodes, without building any object."""

    def __init__(self, content: bytes, where: str) -> None:
        self.content, self.where = content, where
        self.depth = self.made = self.since = 0

    def through(self) -> None:
        """Checks all opcodes; InputError for the first one that is refused."""
        content, at, end, skip, count = self.content, 0, len(self.content), _SKIP, 0
        while at < end:
            code = content[at]
            count += 1
            at += 1
            if (behind := skip[code]) >= 0:
                at += behind
            elif (at := self._one(code, at, count)) < 0:
                return
            elif code != _LONG:
                self.since = at
        self._refuse(f"ends in the middle, after {len(self.content):,} bytes: it is truncated")

    def _one(self, code: int, at: int, count: int) -> int:
        """Position of the next opcode; -1 after the last."""
        name = _NAMES.get(code, "")
        if name not in _PLAIN:
            self._refuse(f"has opcode {name or hex(code)} at byte {at - 1:,}, which is no plain data; a memory"
                         " snapshot needs none that looks up or calls anything, so nothing of the file was run")
        if count > MAX_OPCODES:
            self._refuse(f"has more than {MAX_OPCODES:,} opcodes")
        if name == "STOP":
            return -1
        if name in _PREFIXED:
            return self._text_or_number(name, at)
        if name == "PROTO" and at < len(self.content) and self.content[at] not in _PROTOCOLS:
            self._refuse(f"is of pickle protocol {self.content[at]}, expected 2 to 5")
        if name in ("BINPUT", "LONG_BINPUT") and self._number(at, _FIXED[name]) > count:
            self._refuse(f"keeps more than it has, at byte {at - 1:,}: it is damaged")
        if name in _TUPLES and self._numbers_before(at - 1) < _TUPLES[name]:
            self._refuse(f"has a tuple at byte {at - 1:,} that is not of one to three numbers; a memory snapshot has"
                         " no other")
        self._open_or_close(name)
        return at + _FIXED.get(name, 0)

    def _text_or_number(self, name: str, at: int) -> int:
        width = _PREFIXED[name]
        length = self._number(at, width)
        if name == "LONG1" and length > MAX_DIGITS:
            self._refuse(f"has a number of {length} bytes at byte {at - 1:,}, expected at most {MAX_DIGITS}")
        return at + width + length

    def _numbers_before(self, end: int) -> int:
        """Number of consecutive numbers directly before `end`, since the last opcode that is not a number."""
        at, count = self.since, 0
        while at < end:
            name = _NAMES[self.content[at]]
            count = count + 1 if name in _NUMBERS else 0
            at += 1 + (1 + self.content[at + 1] if name == "LONG1" else _FIXED.get(name, 0))
        return count

    def _open_or_close(self, name: str) -> None:
        if name == "MARK":
            self.depth += 1
        elif name in _CLOSING:
            self.depth -= 1
        if self.depth > MAX_DEPTH:
            self._refuse(f"is nested more than {MAX_DEPTH} deep")
        if self.depth < 0:
            self._refuse("closes what it did not open: it is damaged")
        self.made += name in _MADE
        if self.made > MAX_CONTAINERS:
            self._refuse(f"has more than {MAX_CONTAINERS:,} lists and dictionaries")

    def _number(self, at: int, width: int) -> int:
        return int.from_bytes(self.content[at:at + width], "little")

    def _refuse(self, message: str) -> NoReturn:
        raise InputError(Problem(self.where, message))
