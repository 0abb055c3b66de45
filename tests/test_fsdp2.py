"""`fully_shard`'s own reading of `reshard_after_forward` (torch 2.13 `_fsdp_init.py`)."""

from __future__ import annotations

import pytest

import small
from simcore.report import Report
from simcore.simulate import simulate


def _ran(reshard: object, mesh: dict[str, int] | None = None) -> Report:
    report = simulate(small.scenario("fsdp2", mesh or {"dp_shard": 8}, options={"reshard_after_forward": reshard}))
    assert report.status == "ok", report.problems
    return report


def _gathered(report: Report, phase: str, expert: bool) -> int:
    axis = "expert_dp" if expert else "dp_shard_cp"
    return sum(t.payload_bytes for t in report.ranks[0].traffic
               if t.collective == "all_gather" and t.phase == phase and t.axis.split("/")[0] == axis)


@pytest.mark.parametrize(("number", "same"), [(1, False), (8, True)])
def test_a_group_of_one_or_of_all_is_a_flag(number: int, same: bool) -> None:
    assert _ran(number).ranks == _ran(same).ranks


def test_a_number_that_is_no_factor_is_refused() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 8}, options={"reshard_after_forward": 3}))
    assert report.status == "illegal"
    assert "should be a factor of 8, not 3" in report.problems[0].message


@pytest.mark.parametrize("expert", [False, True])
def test_a_smaller_group_gathers_the_same_bytes_again(expert: bool) -> None:
    report = _ran(2, {"dp_shard": 8, "ep": 2})
    assert _gathered(report, "backward", expert) == _gathered(report, "forward", expert) > 0
