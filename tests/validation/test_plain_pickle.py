"""A pickle of plain data is read; everything that could run, or take more than it should, is refused before."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import InputError
from simcore.validation import plain_pickle
from simcore.validation.plain_pickle import MAX_DEPTH, is_pickle, unpickled

PLAIN: dict[str, Any] = {
    "a": [1, -1, 2**40, 2**63, 0.5, None, True, False, "text" * 100, "\u2603"],
    "b": [(), (1,), (1, 2**40), (0.5, None, True)], "c": [{}, []], "long": list(range(5000))}
PLAIN["again"] = PLAIN["a"]


class Payload:
    """Would make a file if anybody ran it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"{sys.executable} -c \"open({str(self.path)!r}, 'w')\"",)


def refused(content: bytes) -> str:
    with pytest.raises(InputError) as caught:
        unpickled(content, "mem.pickle")
    (problem,) = caught.value.problems
    assert problem.where == "mem.pickle"
    return problem.message


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_comes_back(protocol: int) -> None:
    content = pickle.dumps(PLAIN, protocol=protocol)
    assert is_pickle(content)
    assert unpickled(content, "x") == PLAIN


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_calls_a_function_is_refused_and_calls_nothing(protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = refused(pickle.dumps({"segments": [Payload(made)]}, protocol=protocol))
    assert "no plain data" in text
    assert "nothing of the file was run" in text
    assert ("STACK_GLOBAL" if protocol > 3 else "GLOBAL") in text
    assert not made.exists()
    pickle.loads(pickle.dumps(Payload(made)))  # noqa: S301 - and it would have run
    assert made.exists()


def test_behind_the_look_at_opcodes_no_global_is_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plain_pickle._Look, "through", lambda self: None)
    made = tmp_path / "made"
    with pytest.raises(InputError, match=r"asks for (posix|nt)\.system"):
        unpickled(pickle.dumps(Payload(made)), "mem.pickle")
    with pytest.raises(InputError, match="asks for an object outside"):
        unpickled(b"\x80\x04K\x01Q.", "mem.pickle")
    assert not made.exists()


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", bytearray(b"x"), frozenset({1}), 1j, Path("x")])
def test_what_is_no_plain_data_is_refused(value: object) -> None:
    assert "no plain data" in refused(pickle.dumps([value]))


@pytest.mark.parametrize("end", [1, 2, 3, 10, 1000, -1])
def test_a_truncated_file_is_told(end: int) -> None:
    assert "truncated" in refused(pickle.dumps(PLAIN)[:end])


@pytest.mark.parametrize(("content", "told"), [
    (b"\x80\x09.", "protocol 9"), (b"\x80\x04.", "damaged"), (b"\x80\x04}]s.", "damaged"),
    (b"\x80\x04e.", "did not open"), (b"\x80\x04h\x05.", "damaged"),
    (b"\x80\x04r\xff\xff\xff\xff.", "keeps more than it has"),
    (b"\x80\x04\x8c\xffab.", "truncated"), (b"\x80\x04X\x02\x00\x00\x00\xff\xfe.", "damaged"),
    (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.", "truncated"), (b"\x80\x04\xff.", "0xff")])
def test_a_damaged_file_is_told(content: bytes, told: str) -> None:
    assert told in refused(content)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"more than {MAX_DEPTH} deep" in refused(b"\x80\x04" + b"(" * (MAX_DEPTH + 1) + b".")
    assert "a number of 26 bytes" in refused(pickle.dumps(2**200))
    monkeypatch.setattr(plain_pickle, "MAX_CONTAINERS", 10)
    assert "more than 10 lists and dictionaries" in refused(b"\x80\x04" + b"}" * 11 + b".")
    monkeypatch.setattr(plain_pickle, "MAX_OPCODES", 100)
    assert "more than 100 opcodes" in refused(b"\x80\x04" + b"N" * 100 + b".")


@pytest.mark.parametrize("key", [
    b")" + b"\x85" * 2_000_000, b"()\x94" + b"".join(b"0h%ch%c\x86\x94" % (n, n) for n in range(60)),
    b"(" + b"K\x01" * 4 + b"t", b"K\x01\x8c\x01a\x86", b"K\x01h\x00K\x01\x87", b"])K\x01\x86"])
def test_a_tuple_that_could_be_a_key_without_end_is_refused(key: bytes) -> None:
    assert "not of one to three numbers" in refused(b"\x80\x04}" + key + b"Ns.")


def test_nesting_without_marks_is_harmless() -> None:
    depth = 100_000
    value = unpickled(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".", "x")
    assert isinstance(value, list)


def test_text_is_no_pickle() -> None:
    assert not is_pickle(b"step: 1")
    assert not is_pickle(b"")
