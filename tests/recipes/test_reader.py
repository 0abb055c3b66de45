"""The reader hands out values of the kind that is asked for, and knows those that nothing has asked for."""

from __future__ import annotations

import pytest

from simcore.inputs.document import parse_document
from simcore.recipes.reader import Reader

TEXT = """\
size: 8
written: "8"
half: 2.5
none: none
empty:
on: true
words: [a, b]
one: a
block:
  inner: 1
  other: {deep: x}
list:
- {name: a, size: 2}
- {name: b}
"""


def reader() -> Reader:
    return Reader(parse_document(TEXT, "mine.yaml"), frozenset({"none"}))


def test_a_value_knows_its_key_and_its_line() -> None:
    taken = reader().integer("block.inner")
    assert taken is not None
    assert (taken.value, taken.key, taken.where) == (1, "block.inner", "mine.yaml:10")


@pytest.mark.parametrize(("kind", "key", "value"), [
    ("integer", "size", 8), ("integer", "written", 8), ("number", "half", 2.5), ("flag", "on", True),
    ("text", "one", "a"), ("words", "one", ["a"]), ("words", "words", ["a", "b"])])
def test_values_are_read_as_the_kind_that_is_asked_for(kind: str, key: str, value: object) -> None:
    assert getattr(reader(), kind)(key).value == value


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("Off", False), ("'true'", True), ("no", False),
                                            ("1", True), ("0", False)])
def test_words_of_yaml_1_1_are_truths(word: str, value: bool) -> None:
    taken = Reader(parse_document(f"switch: {word}", "mine.yaml")).flag("switch")
    assert taken is not None
    assert taken.value is value


@pytest.mark.parametrize(("kind", "key", "expected"), [
    ("integer", "half", "a whole number, got 2.5"), ("integer", "on", "a whole number, got true"),
    ("flag", "size", "true or false, got 8"), ("text", "size", "text, got 8"),
    ("words", "size", "text, or a list of texts, got 8"), ("integer", "block", "a whole number")])
def test_a_value_of_another_kind_is_a_problem_at_its_line(kind: str, key: str, expected: str) -> None:
    asked = reader()
    assert getattr(asked, kind)(key) is None
    [problem] = asked.problems
    assert f"{key}: expected {expected}" in str(problem)
    assert asked.handed_out() == []


@pytest.mark.parametrize("key", ["missing", "none", "empty", "size.below", "block.missing.deeper"])
def test_what_the_recipe_does_not_say_is_none(key: str) -> None:
    asked = reader()
    assert asked.take(key) is None
    assert not asked.has(key)
    assert asked.problems == []


def test_what_nothing_has_asked_for_is_untouched() -> None:
    asked = reader()
    for name in ("size", "written", "half", "none", "empty", "on", "words", "one"):
        asked.take(name)
    assert [one.key for one in asked.untouched()] == [
        "block.inner", "block.other.deep", "list.0.name", "list.0.size", "list.1.name"]


def test_a_block_that_is_taken_is_taken_whole() -> None:
    asked = reader()
    assert asked.take("block") is not None
    assert not [one.key for one in asked.untouched() if one.key.startswith("block")]


def test_patterns_take_what_is_left() -> None:
    asked = reader()
    asked.take("block.inner")
    assert [one.key for one in asked.matching("block.*", "si?e")] == ["size", "block.other.deep"]
    assert asked.matching("block.*") == []


def test_looking_takes_nothing() -> None:
    asked = reader()
    assert asked.has("size")
    assert asked.is_mapping("block")
    assert asked.names("block") == ("inner", "other")
    assert asked.names()[:2] == ("size", "written")
    assert asked.untouched() == asked.all()


def test_the_document_is_walked_once_however_many_tables_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"key{number}: 1\n" for number in range(200)) + "block: {a: 1, b: 2}\n"
    asked, walks, whole = Reader(parse_document(text, "mine.yaml")), iter(range(1)), Reader.all
    monkeypatch.setattr(Reader, "all", lambda self: whole(self) if next(walks) == 0 else None)
    found = [one.key for number in range(200) for one in asked.matching(f"key{number}", f"none{number}*")]
    assert asked.integer("block.a") is not None
    assert len(found) == 200
    assert [one.key for one in asked.untouched()] == ["block.b"]
