"""Settings in which results differ: those that scenarios set, and those that frameworks chose."""

from __future__ import annotations

from typing import Any

import pytest

import small
from fakes import illegal
from simcore.results.report import Assumption, Report
from simcore.results.settings import asked_differently, differing_defaults, settings_of
from simcore.simulate import check

EP = {"dp_shard": 4, "ep": 2}


def checked(framework: str, mesh: dict[str, int], **given: Any) -> Report:
    return check(small.scenario(framework, mesh, **given))


def told(*reports: Report) -> dict[str, tuple[str, ...]]:
    return {row.key: row.values for row in differing_defaults(reports)}


def asked(*reports: Report) -> dict[str, tuple[str, ...]]:
    return {row.key: row.values for row in asked_differently(reports)}


def test_a_default_of_the_framework_is_a_setting() -> None:
    settings = settings_of(checked("megatron", EP))
    assert settings["training.precision.params"] == ("bf16", True)
    assert settings["training.recompute"] == ("none", False)
    assert "training.loss" in settings


def test_three_frameworks_differ_by_default() -> None:
    found = told(*(checked(name, EP) for name in ("megatron", "automodel", "fsdp2")))
    assert found["dispatcher"] == ("alltoall", "deepep", "alltoall")
    assert found["training.precision.params"] == ("bf16", "bf16", "fp32")
    assert found["training.loss"] == ("megatron", "masked_fp32", "hf")
    assert next(iter(found)) == "dispatcher"
    assert list(found)[-2:] == ["checkpoint.load", "checkpoint.save"]


def test_dispatchers_of_different_names_are_one_setting() -> None:
    flex = checked("megatron", EP, options={"moe_token_dispatcher_type": "flex"})
    automodel = checked("automodel", EP)
    assert settings_of(flex)["dispatcher"] == ("deepep", False)
    assert settings_of(automodel)["dispatcher"] == ("deepep", True)
    assert "dispatcher" not in told(flex, automodel)
    assert "framework_options.moe_token_dispatcher_type" not in told(flex, automodel) | asked(flex, automodel)


def test_without_expert_parallelism_there_is_no_dispatcher() -> None:
    assert "dispatcher" not in settings_of(checked("megatron", {"dp_shard": 4}))


def test_etp_left_out_is_that_of_the_framework() -> None:
    wide = checked("megatron", {"tp": 2, "dp_shard": 2, "ep": 2})
    assert settings_of(wide)["mesh.etp"] == ("2", True)
    assert told(wide, checked("automodel", EP))["mesh.etp"] == ("2", "1")
    assert settings_of(checked("megatron", {"tp": 2, "dp_shard": 2, "ep": 2, "etp": 1}))["mesh.etp"] == ("1", False)


@pytest.mark.parametrize(("params", "moments"), [("bf16", "bf16"), ("fp32", "fp32")])
def test_moments_as_stored_have_the_format_of_parameters(params: str, moments: str) -> None:
    found = settings_of(checked("fsdp2", {"dp_shard": 4}, precision={"params": params}))
    assert found["training.optimizer.moments"] == (moments, True)


def test_what_both_set_is_asked_and_no_default() -> None:
    full, none = (checked("fsdp2", {"dp_shard": 4}, recompute=mode) for mode in ("full", "none"))
    assert told(full, none) == {}
    assert asked(full, none) == {"training.recompute": ("full", "none")}


def test_a_text_has_a_dash_for_what_is_missing() -> None:
    rows = asked_differently((checked("automodel", EP, options={"defer_fsdp_grad_sync": False}), checked("fsdp2", EP)))
    assert "defer_fsdp_grad_sync false | -" in map(str, rows)


def test_results_without_a_known_framework_are_compared_too() -> None:
    odd = illegal("a").model_copy(update={"scenario": {"framework": ["x"], "mesh": {"ep": 4}, "training": 7}})
    row = Assumption(what="training.loss", value="x", kind="default", source="")
    assert asked(odd, illegal("b"))["framework"] == ('["x"]', "fsdp2")
    assert told(odd, illegal("b").model_copy(update={"assumptions": (row,)})) == {}


def test_what_a_scenario_sets_is_no_default() -> None:
    report = checked("fsdp2", {"dp_shard": 4}, loss="cut")
    row = Assumption(what="training.loss", value="hf", kind="default", source="")
    assert settings_of(report.model_copy(update={"assumptions": (row,)}))["training.loss"] == ("cut", False)
