"""Two answers about one rank: what agrees, and the first thing that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simcore.errors import InputError
from simcore.verify.compare import compared
from simcore.verify.sides.found import Call, Found, Tensor, found_of

CALLS = (Call("all_gather", "fwd", 8, "bf16", 64), Call("reduce_scatter", "bwd", 8, "fp32", 128))
SAME = Found((Tensor("a", 4, "bf16"), Tensor("b", 2, "fp32")), CALLS, {"peak": 1000}, {"ep": (0, 1)}, {})


def differences(theirs: Found) -> dict[str, str]:
    return {line.subject: line.difference for line in compared(SAME, theirs, {}) if line.difference}


def test_equal_answers_agree() -> None:
    found = compared(SAME, SAME, {})
    assert [(line.subject, line.num_compared, line.difference) for line in found] == [
        ("placement", 2, ""), ("groups", 1, ""), ("collectives", 2, ""), ("peak", 1, "")]


@pytest.mark.parametrize(("changed", "told"), [
    ({"tensors": (Tensor("a", 4, "bf16"), Tensor("b", 3, "fp32"))}, "b: rankscope 2 elements of fp32, the framework 3"),
    ({"tensors": SAME.tensors[:1]}, "b: rankscope 2 elements of fp32, the framework no such tensor"),
    ({"tensors": (*SAME.tensors, Tensor("c", 1, "fp32"))}, "c: rankscope no such tensor, the framework 1 elements"),
    ({"calls": CALLS[::-1]}, "call 1: rankscope all_gather of 64 bytes bf16 over 8 ranks in"),
    ({"calls": CALLS[:1]}, "call 2: rankscope reduce_scatter of 128 bytes"),
    ({"groups": {"ep": (0, 2)}}, "ep: rankscope ranks [0, 1], the framework ranks [0, 2]"),
    ({"sizes": {"peak": 800}}, "rankscope 1,000, the framework 800 (+25.00%)"),
    ({"sizes": {"peak": 1000, "end": 3}}, "rankscope nothing, the framework 3 (-)")])
def test_the_first_difference_is_told(changed: dict[str, Any], told: str) -> None:
    (difference,) = differences(replace(SAME, **changed)).values()
    assert difference.startswith(told)


def test_what_is_not_compared_has_its_reason() -> None:
    other = replace(SAME, calls=None, sizes={"peak": 1})
    found = {line.subject: line for line in compared(SAME, other, {"peak": "kernels differ", "end": "no step"})}
    assert found["collectives"].skipped == "no step is run"
    assert (found["peak"].skipped, found["peak"].difference) == ("kernels differ", "")
    assert found["end"].skipped == "no step"


@pytest.mark.parametrize("told", [{}, {"tensors": [["a", 1]], "versions": {}}, {"tensors": [], "versions": []},
                                  {"tensors": [["a", "x", "bf16"]], "versions": {}}])
def test_an_answer_that_cannot_be_read_is_an_error_of_one_line(told: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="gave no answer that can be read"):
        found_of(told)
