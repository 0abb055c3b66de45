"""Every scenario that a format can say is imported as it was; of every other one the keys are refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from checkout import ROOT
from fuzz.drawing import drawn_layout, parsed
from recipes.round_trip import read_back
from simcore.errors import RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.loading import read
from simcore.inputs.scenario import Scenario
from simcore.recipes.conversion.converting import convert
from simcore.recipes.converted import Converted
from simcore.recipes.registry import format_named, known_formats
from simcore.recipes.settled import as_text, given_keys
from simcore.results.frame import flat
from simcore.results.settings import settings_of
from simcore.simulate import check, place

DRAWN: Final = 24
WRITTEN: Final = [one.name for one in known_formats() if one.writer is not None]
ALIKE: Final[Mapping[str, tuple[set[str], ...]]] = {
    "training.optimizer.name": ({"adam", "adamw"},),  # Megatron's adam decays as AdamW does
}
"""Values that mean the same under the frameworks whose formats say one for the other."""
OF_NO_RUN: Final = ("name", "limits.", "model", "sweep", "search")
DIFFERENT: Final = "not yet: "
USUAL: Final[Mapping[str, Any]] = {
    **{f"framework_options.{name}": True for name in ("masked_softmax_fusion", "gradient_accumulation_fusion",
                                                      "moe_grouped_gemm", "moe_permute_fusion")},
    **{f"framework_options.{name}": False for name in ("deterministic_mode", "tp_comm_overlap", "delay_wgrad_compute",
                                                       "fake_balanced_gate", "create_attention_mask",
                                                       "overlap_moe_expert_parallel_comm",
                                                       "use_transformer_engine_op_fuser", "nccl_ub",
                                                       "defer_embedding_wgrad_compute", "log_num_zeros_in_grad")},
}
"""Values of options that are those without the option."""


@cache
def shipped() -> tuple[Scenario, ...]:
    """First scenario of every file."""
    files = sorted((ROOT / "scenarios").glob("*/*.yaml"))
    return tuple(next(entry.scenario for entry in read([file]) if entry.scenario) for file in files)


@cache
def drawn() -> tuple[Scenario, ...]:
    found: list[Scenario] = []
    for seed in range(DRAWN):
        tree: Any = drawn_layout(Random(seed))
        try:
            found.append(parsed(tree))
        except RankscopeError:
            continue
    return tuple(found)


def of(name: str, scenarios: tuple[Scenario, ...]) -> Iterator[tuple[Scenario, Converted]]:
    """Scenarios of the format's frameworks with their recipes, but those that the framework itself refuses."""
    writer = format_named(name, name).writer
    assert writer is not None
    for scenario in scenarios:
        if scenario.framework in writer.frameworks and scenario.workload == "train" and check(scenario).status == "ok":
            yield scenario, convert(scenario, name)


def expect_said(asked: Scenario, made: Converted) -> None:
    """The recipe is refused by name, or is read as a scenario with the same values and the same ranks at rest."""
    for problem in made.refused:
        assert problem.message.startswith((DIFFERENT, "the recipe is not read back: ")), problem
        assert problem.where
    if made.refused:
        return
    back = read_back(made, asked)
    listed = {one.key for one in made.left}
    built = {"implementation": prepare(back)[0].graph.implementation}
    effective = built | {key: value.text for key, value in settings_of(check(back)).items()} | {
        key: as_text(value) for key, value in flat(back.normalised()) if value is not None and value != "auto"}
    for key, value in flat(asked.normalised()):
        is_said = any(key.startswith(said) for said in given_keys(asked.document)) and not key.startswith(OF_NO_RUN)
        if is_said and key not in listed and value not in (None, "auto") and USUAL.get(key, "") != value:
            pair = {effective.get(key, "nothing"), as_text(value)}
            assert len(pair) == 1 or pair in ALIKE.get(key, ()), f"{asked.name}: {key}: {pair}"
    one, other = place(asked), place(back)
    assert [rank.at_rest for rank in one.ranks] == [rank.at_rest for rank in other.ranks], asked.name


@pytest.mark.parametrize("name", WRITTEN)
def test_shipped_scenarios(name: str) -> None:
    found = list(of(name, shipped()))
    for asked, made in found:
        expect_said(asked, made)
    assert any(not made.refused for _, made in found) or name in ("bridge", "torchtitan")


@pytest.mark.parametrize("name", WRITTEN)
def test_drawn_scenarios(name: str) -> None:
    for asked, made in of(name, drawn()):
        expect_said(asked, made)


def test_a_key_that_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of this test tells, if a writer forgets a key and the own one does not look."""
    del tmp_path
    from simcore.recipes.outline import Outline
    from simcore.recipes.settled import Settled

    put = Outline.put
    monkeypatch.setattr(Settled, "differing", lambda *rest: ())
    monkeypatch.setattr(Outline, "put", lambda self, key, *rest, **more: None if "reshard" in key else put(
        self, key, *rest, **more))
    asked = next(one for one in shipped() if one.framework_options.get("moe.reshard_after_forward"))
    made = convert(asked, "automodel")
    assert not made.refused
    with pytest.raises(AssertionError):
        expect_said(asked, made)
