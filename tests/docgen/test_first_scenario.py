"""The file that `rankscope init` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.docgen.first_scenario import expect_readable, starter_text
from simcore.errors import InputError
from simcore.inputs.document import parse_document
from simcore.inputs.loading import load
from simcore.inputs.scenario import Scenario, scenario_schema


def loaded(tmp_path: Path, *names: str) -> Scenario:
    path = tmp_path / "scenario.yaml"
    path.write_text(starter_text(*names), encoding="utf-8")
    (scenario,) = load(path)
    return scenario


def test_it_loads_as_it_is(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, "first", "nemotron-3-nano-30b-a3b", "automodel", "dgx-h100")
    assert (scenario.name, scenario.framework, scenario.topology) == ("first", "automodel", "dgx-h100")
    assert scenario.model == "nemotron-3-nano-30b-a3b"
    assert scenario.world_size == 8


def test_what_nothing_can_read_is_not_written() -> None:
    expect_readable(starter_text("a", "llama-tiny", "fsdp2", "dgx-h100"), "a.yaml")
    for names in (("a", "nope", "fsdp2", "dgx-h100"), ("a", "llama-tiny", "fsdp2", "a\nb: c")):
        with pytest.raises(InputError):
            expect_readable(starter_text(*names), "a.yaml")


def test_editors_find_the_schema() -> None:
    first = starter_text("a", "b", "c", "d").splitlines()[0]
    assert first == "# yaml-language-server: $schema=scenario.schema.json"


def test_every_line_with_a_value_has_a_comment() -> None:
    lines = [line for line in starter_text("a", "b", "c", "d").splitlines() if line and not line.endswith("training:")]
    assert all("# " in line for line in lines)


def test_what_it_writes_are_the_defaults(tmp_path: Path) -> None:
    """But for a node of ranks and recomputation, so that a first run fits."""
    scenario = loaded(tmp_path, "a", "b", "c", "d")
    bare = {"name": "a", "model": "b", "framework": "c", "topology": "d", "mesh": {"dp_shard": 8},
            "training": {"seq_len": 4096, "recompute": "full"}}
    assert scenario.normalised() == Scenario.model_validate(bare).normalised()


def test_main_keys_are_there() -> None:
    written = parse_document(starter_text("a", "b", "c", "d"), "f").data
    rare = {"rl", "teacher", "generation", "evaluation", "search", "sweep"}  # other workloads, phases; many at once
    assert set(written) == set(scenario_schema()["properties"]) - rare


ODD = ["true", "null", "1.5", "a: b", "# x", "it's \"odd\"", "../m/config.json", "{x}", "é 模型", "-"]


@pytest.mark.parametrize("odd", ODD)
def test_any_name_is_kept(tmp_path: Path, odd: str) -> None:
    scenario = loaded(tmp_path, odd, odd, odd, odd)
    assert {scenario.name, scenario.model, scenario.framework, scenario.topology} == {odd}
