"""Conditions: what they accept, what they decide, and one line for everything else."""

from __future__ import annotations

import pytest

from simcore.errors import InputError
from simcore.search.condition import condition


def test_names_are_keys_and_results() -> None:
    one = condition("mesh.tp <= 8 and not peak_gib > 70 or framework in ('fsdp2', 'megatron')")
    assert one.names == ("mesh.tp", "peak_gib", "framework")
    assert one.needs_memory
    assert not one.needs_time
    assert condition("step_s < 3").needs_time
    assert not condition("mesh.ep == 4").needs_memory


@pytest.mark.parametrize(("text", "values", "holds"), [
    ("mesh.tp * mesh.ep == 8", {"mesh.tp": 2, "mesh.ep": 4}, True),
    ("mesh.tp * mesh.ep == 8", {"mesh.tp": 2, "mesh.ep": 2}, False),
    ("1 <= mesh.tp < 4", {"mesh.tp": 4}, False),
    ("mesh.dp_shard % 2 == 0", {"mesh.dp_shard": 6}, True),
    ("training.recompute == 'full'", {"training.recompute": "full"}, True),
])
def test_a_condition_decides(text: str, values: dict[str, object], holds: bool) -> None:
    assert condition(text).holds(values) is holds


@pytest.mark.parametrize("text", [
    "", "mesh.tp <=", "__import__('os').system('true')", "mesh.tp.__class__()", "[x for x in mesh]", "lambda: 1",
    "1 < 2", "mesh['tp'] == 1", "mesh.tp ** 9 ** 9 ** 9 > 1", "f'{mesh}' == 1", "mesh.tp := 1", "(" * 500, "a " * 5000,
])
def test_everything_else_is_one_problem(text: str) -> None:
    with pytest.raises(InputError) as refused:
        condition(text)
    assert len(refused.value.problems) == 1
    assert "\n" not in str(refused.value)


def test_values_that_cannot_be_compared_are_one_problem() -> None:
    with pytest.raises(InputError, match="cannot be decided"):
        condition("framework < 3").holds({"framework": "fsdp2"})
    with pytest.raises(InputError, match="cannot be decided"):
        condition("1 / mesh.tp > 1").holds({"mesh.tp": 0})
