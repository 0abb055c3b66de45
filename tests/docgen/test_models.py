"""The page of models says what the presets say, and a preset says where it is from."""

from __future__ import annotations

from functools import lru_cache

import pytest

import small
from checkout import ROOT
from simcore.docgen.models import graph_of, presets
from simcore.models.graph import build, known_presets, model_config
from simcore.models.registry import known_families
from simcore.simulate import simulate

MADE_UP = ("llama-tiny", "nemotron-3-tiny")
PAGE = ROOT / "docs" / "models.md"


@lru_cache
def page() -> str:
    return presets()


def row(name: str) -> list[str]:
    found = next(line for line in page().splitlines() if line.startswith(f"| `{name}` |"))
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_the_page_is_made_from_the_presets() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m simcore.docgen.models > docs/models.md"


@pytest.mark.parametrize("name", known_presets())
def test_every_preset_says_where_it_is_from_or_that_it_is_assumed(name: str) -> None:
    fields = model_config(name, None, "test")
    assert ("assumed" in fields) + ("_name_or_path" in fields) == (name not in MADE_UP)
    assert row(name)[2] == f"{graph_of(name).count():,}"


def test_every_family_is_told_and_has_a_preset() -> None:
    told = page().partition("`model_type` is one of:\n")[2].partition("\n\n")[0]
    assert told.replace("\n", " ") == ", ".join(f"`{family}`" for family in known_families()) + "."
    assert {model_config(name, None, "test")["model_type"] for name in known_presets()} == set(known_families())


def test_an_assumed_shape_is_an_assumption_of_the_report() -> None:
    model = {"config": "nemotron-dense-100b", "overrides": {"num_hidden_layers": 1}}
    report = simulate(small.scenario("fsdp2", {"dp_shard": 64}, model=model))
    [told] = [assumption for assumption in report.assumptions if assumption.what == "model"]
    assert (told.kind, told.value) == ("assumed", "a shape that was never published")
    assert build(model_config("nemotron-dense-100b", None, "test"), "hf").count() == 99_925_534_720
    assert not [assumption for assumption in simulate(small.scenario("fsdp2", {"dp_shard": 2},
                                                                     model="llama-3.2-1b")).assumptions
                if assumption.what == "model"]


def test_other_names_are_on_the_page() -> None:
    _, _, names = page().partition("## Other names")
    assert "| `llama-3.1-70b` | `meta-llama/Llama-3.1-70B-Instruct`, " in names
    assert "`meta-llama/Llama-3.3-70B-Instruct`" in names
    assert "| `llama-tiny` |" not in names
