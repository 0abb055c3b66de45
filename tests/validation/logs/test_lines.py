"""Lines of a log: what is taken out of them, and the prefixes of launchers."""

from __future__ import annotations

import pytest

from simcore.validation.logs.lines import LONGEST, plain_lines, without_prefix


def test_colours_carriage_returns_and_line_ends() -> None:
    assert list(plain_lines("a\x1b[1;31mb\x1b[0m\r 50%|#\r100%|##\r\nc\x1b(B\n\nd")) == [
        "ab", " 50%|#", "100%|##", "c\x1b(B", "d"]


def test_a_line_that_is_too_long_is_left_out() -> None:
    assert list(plain_lines(f"a\n{'x' * (LONGEST + 1)}\nb")) == ["a", "b"]


@pytest.mark.parametrize(("line", "prefix", "rank", "rest"), [
    ("[rank3]:   File", "[rank3]:", 3, "  File"), ("0: [rank7]: Traceback", "0: [rank7]:", 7, "Traceback"),
    ("12: text", "12:", None, "text"), ("[default5]:text", "[default5]:", None, "text"),
    ("(WorkerDict pid=12, ip=10.0.0.1) text", "(WorkerDict pid=12, ip=10.0.0.1)", None, "text"),
    ("(EngineCore_DP0 pid=1) ERROR 10-25 13:08:43 [core.py:708] text",
     "(EngineCore_DP0 pid=1) ERROR 10-25 13:08:43 [core.py:708]", None, "text"),
    ("[Rank 2] text", "[Rank 2]", 2, "text"), ("text 3: [rank1]:", "", None, "text 3: [rank1]:"),
    ("2026: a", "2026:", None, "a"), ("(x) y", "", None, "(x) y")])
def test_prefixes(line: str, prefix: str, rank: int | None, rest: str) -> None:
    assert without_prefix(line) == (prefix, rank, rest)
