"""Reading a configuration strictly: the first name that is given, in range, of the right type."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from simcore.models.config import Config

CONFIG = Config({"heads": 8, "old_heads": 4, "zero": 0, "yes": True, "text": "8", "none": None,
                 "huge": 2**41}, "x.yaml:3")


def test_the_first_name_that_is_given_counts() -> None:
    assert CONFIG.integer("heads", "old_heads") == 8
    assert CONFIG.integer("none", "missing", "old_heads") == 4


def test_defaults_are_for_what_is_missing() -> None:
    assert CONFIG.integer("missing", default=3) == 3
    assert CONFIG.boolean("missing", default=True) is True
    assert CONFIG.boolean("yes", default=False) is True


@pytest.mark.parametrize("name", ["zero", "yes", "text", "huge"])
def test_a_value_out_of_range_or_type_names_its_field_and_place(name: str) -> None:
    with pytest.raises(InputError) as refused:
        CONFIG.integer(name, default=1)
    (problem,) = refused.value.problems
    assert problem.where == "x.yaml:3"
    assert f"{name}: expected an integer from 1 to 65,536" in problem.message


def test_least() -> None:
    assert CONFIG.integer("zero", least=0) == 0
    with pytest.raises(InputError):
        CONFIG.integer("heads", least=9)


def test_what_is_needed_and_missing_is_named() -> None:
    with pytest.raises(InputError, match="a or b: expected an integer, found nothing"):
        CONFIG.integer("a", "b")


def test_booleans_are_not_numbers() -> None:
    with pytest.raises(InputError, match="expected true or false, got 8"):
        CONFIG.boolean("heads", default=False)
