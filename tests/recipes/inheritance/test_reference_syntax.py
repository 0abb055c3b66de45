"""Texts become parts: plain text, paths, and calls with their words."""

from __future__ import annotations

import pytest

from simcore.recipes.inheritance.reference_syntax import Call, Path, parts_of


def test_plain_text_is_one_part() -> None:
    assert parts_of("plain } $ text, 'quoted'") == ("plain } $ text, 'quoted'",)
    assert parts_of("") == ("",)


def test_paths_and_text_around_them() -> None:
    assert parts_of("a-${b.c}-${ .d }") == ("a-", Path(("b.c",)), "-", Path((".d",)))


def test_a_call_has_words_without_the_blanks_around_them() -> None:
    assert parts_of("${mul: ${a}, 2 }") == (Call("mul", ((Path(("a",)),), ("2",))),)
    assert parts_of("${oc.select:'a, b',x y}") == (Call("oc.select", (("a, b",), ("x y",))),)


def test_a_path_may_have_a_reference_in_it() -> None:
    assert parts_of("${a.${b}}") == (Path(("a.", Path(("b",)))),)


@pytest.mark.parametrize("text", ["${a", "${mul:1,2", "${mul:'1,2}", "${" * 40])
def test_what_does_not_end_is_no_reference(text: str) -> None:
    with pytest.raises(ValueError, match=r"closing brace|does not end|in one another"):
        parts_of(text)
