"""The answer's own form: frozen, closed, through JSON and back."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import small
from fakes import rank, report
from simcore.results.report import AtRest, Report
from simcore.simulate import simulate


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_through_json_and_back(name: str) -> None:
    result = simulate(small.scenario(name, {"dp_shard": 2}), series=True)
    assert Report.model_validate_json(result.model_dump_json()) == result


def test_nothing_can_be_changed_or_added() -> None:
    made = report()
    with pytest.raises(ValidationError):
        made.name = "b"
    with pytest.raises(ValidationError):
        Report.model_validate({**made.model_dump(), "colour": "red"})


def test_the_peak_rank_is_the_fullest() -> None:
    made = report(ranks=(rank(40), rank(50, ranks=("4-7",)), rank(30)))
    assert made.peak_rank is not None
    assert made.peak_rank.ranks == ("4-7",)
    assert report(ranks=(rank(None),)).peak_rank is None


def test_at_rest_is_parameters_gradients_and_states() -> None:
    rank_report = rank(at_rest={"a": AtRest(params_bytes=1, grads_bytes=2, optimizer_bytes=4),
                                "b": AtRest(params_bytes=8)})
    assert rank_report.at_rest_bytes() == 15
