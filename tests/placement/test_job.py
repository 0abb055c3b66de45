"""Jobs: values that stand for auto, options that are closed, and refusals that name the scenario's line."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError, NotYet
from simcore.placement.job import Draft, Job

KNOWN = {"wrap": ("layers", "root"), "reshard": (None, True, False, int), "level": (str,)}


def job(**options: Any) -> Job:
    """A job with options of our own; the table has been made without them."""
    made = small.prepared("fsdp2")[0]
    return Job(small.scenario("fsdp2", options=options), made.graph, made.mesh)


def test_an_auto_is_noted_with_its_source() -> None:
    made = Draft(job())
    assert made.auto("training.loss", "auto", "hf", "upstream.py:3") == "hf"
    assert made.auto("training.x", "given", "hf", "upstream.py:4") == "given"
    assert made.defaults == (("training.loss", "hf", "upstream.py:3"),)


@pytest.mark.parametrize("options", [{"wrap": "root"}, {"reshard": None}, {"reshard": True}, {"reshard": 4},
                                     {"level": "a"}, {}])
def test_known_options_are_given_back(options: dict[str, Any]) -> None:
    assert job(**options).options(KNOWN) == options


@pytest.mark.parametrize(("options", "told"), [
    ({"warp": "root"}, "unknown option 'warp' of fsdp2 (did you mean 'wrap'?): it knows level, reshard, wrap"),
    ({"zzz": "root"}, "unknown option 'zzz' of fsdp2: it knows level, reshard, wrap"),
    ({"wrap": "all"}, "wrap: expected 'layers' or 'root', got 'all'"), ({"reshard": 0}, "or int (1 or more), got 0"),
    ({"reshard": "yes"}, "reshard: expected null or true or false or int, got 'yes'"),
    ({"level": 1}, "expected str, got 1")])
def test_other_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        job(**options).options(KNOWN)
    assert told in str(refused.value)


def test_a_number_is_no_boolean() -> None:
    with pytest.raises(InputError):
        job(flag=1).options({"flag": (True, False)})


def test_the_other_position_of_a_switch_is_not_modelled_yet() -> None:
    """A value that upstream takes is no wrong one; beside one that is, all are told as wrong input."""
    known: dict[str, tuple[Any, ...]] = {"flag": (True,), "level": (int,)}
    with pytest.raises(NotYet, match=r"not yet: flag: false \(served: true\)"):
        job(flag=False).options(known)
    with pytest.raises(InputError, match="level: expected int"):
        job(flag=False, level="a").options(known)


def test_all_wrong_options_are_shown_together() -> None:
    with pytest.raises(InputError) as refused:
        job(a=1, b=2).options({})
    assert len(refused.value.problems) == 2


def test_refusals_know_where_and_why() -> None:
    (problem,) = job().illegal("mesh.ep", "does not divide", "upstream.py:5").problems
    assert (problem.where, problem.rule) == ("small.json:1", "upstream.py:5")
    (later,) = job().not_yet("mesh.pp", "stages").problems
    assert later.message == "not yet: stages"
