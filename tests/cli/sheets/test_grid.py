"""Names and texts cut into lines."""

from __future__ import annotations

import pytest

from simcore.cli.sheets.grid import cut, folded, is_foldable, wrapped

NAME = "nano-lora[mesh.ep=4,training.micro_batch_size=2]"


@pytest.mark.parametrize("limit", [14, 16, 20, 24, 60])
def test_a_name_loses_nothing_and_is_cut_at_its_signs(limit: int) -> None:
    lines = list(folded(NAME, limit))
    assert "".join(line.strip() for line in lines) == NAME
    assert max(map(len, lines)) <= limit
    assert all(line[-1] in "-,[=/_." for line in lines[:-1])
    assert is_foldable(NAME, limit)


def test_a_comma_comes_before_a_dot() -> None:
    assert list(folded(NAME, 34)) == ["nano-lora[mesh.ep=4,", "  training.micro_batch_size=2]"]


def test_a_name_without_signs_is_cut_where_it_must_be() -> None:
    assert list(folded("x" * 20, 10)) == ["x" * 10, "  " + "x" * 8, "  xx"]
    assert not is_foldable("x" * 20, 10)


def test_texts_break_between_words() -> None:
    text = "  444 not yet: fsdp2 with tensor parallelism"
    assert wrapped(text, 24, "    ") == ["  444 not yet: fsdp2", "    with tensor", "    parallelism"]
    assert wrapped(text, 80, "    ") == [text]
    assert wrapped("", 10) == [""]
    assert "".join(line.strip() for line in wrapped(f"of {NAME}", 16, "    ")) == f"of {NAME}"


def test_columns_are_split_before_they_would_exceed_the_width() -> None:
    assert cut(10, [5, 5, 5], 24) == [range(2), range(2, 3)]
    assert cut(10, [5, 5, 5], 31) == [range(3)]
    assert cut(10, [50, 5], 24) == [range(1), range(1, 2)]
    assert cut(10, [], 24) == [range(0)]
