"""Rows of a table put a key into the scenario, leave it out with its reason, or refuse it; none does nothing."""

from __future__ import annotations

import pytest

from simcore.inputs.document import parse_document
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.imported import Imported
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Limit, Off, On, Says, Unmodelled, read_rows

ROWS = (
    Says("size", "mesh.tp"), Says("loss", "training.loss", "text", {"cut_ce": "cut"}, {"plain": "the default"}, "loss"),
    Says("names", "training.frozen", "words"), Off("fast", "haste"), On("safe", "risk"),
    Unmodelled(("noise",), "none is added"), Idle(("log.*",), "logging"),
    Limit("norm", "a value", "clipped in any case", "it must be a number"),
)


def read(text: str) -> Imported:
    reader, draft = Reader(parse_document(text, "mine.yaml")), Draft("toy", "mine.yaml", Answers())
    read_rows(reader, draft, ROWS)
    return draft.imported([reader])


@pytest.mark.parametrize(("text", "values"), [
    ("size: 2", {"mesh": {"tp": 2}}), ("loss: cut_ce", {"training": {"loss": "cut"}}),
    ("names: wte", {"training": {"frozen": ["wte"]}}), ("{}", {})])
def test_a_key_says_what_a_key_of_the_scenario_says(text: str, values: object) -> None:
    assert read(text).values == values


@pytest.mark.parametrize(("text", "kind", "why"), [
    ("loss: plain", "no effect", "the default"), ("fast: false", "no effect", "the default"),
    ("safe: true", "no effect", "the default"),
    ("norm: 0.1", "no effect", "a value"), ("norm: -1", "not modelled", "clipped in any case"),
    ("norm: '0.0'", "not modelled", "clipped in any case"),
    ("noise: 0.5", "not modelled", "none is added"), ("log: {dir: x}", "no effect", "logging")])
def test_what_gives_nothing_is_listed_with_the_reason(text: str, kind: str, why: str) -> None:
    assert [(one.kind, one.why) for one in read(text).left] == [(kind, why)]


@pytest.mark.parametrize(("text", "message"), [
    ("loss: best", "mine.yaml:1: not yet: loss: loss best"), ("fast: true", "mine.yaml:1: not yet: fast: haste"),
    ("safe: false", "mine.yaml:1: not yet: safe: risk")])
def test_another_word_is_refused(text: str, message: str) -> None:
    assert [str(problem) for problem in read(text).refused] == [message]


def test_a_key_of_no_row_is_unknown() -> None:
    assert len(read("sise: 2").unknown) == 1


def test_a_limit_that_is_null_is_wrong_where_upstream_compares_it() -> None:
    assert [str(problem) for problem in read("norm: null").wrong] == ["mine.yaml:1: norm null: it must be a number"]
