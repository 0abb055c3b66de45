"""The order of a step, and rows of its passes, as the real GRPOTrainer has them (truth/probe_trl_grpo.py --steps).

A recipe goes the whole way: what the importer reads, and what the step counts, must be what the trainer does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from recipes.trl.test_recipe import RECIPE, imported
from simcore.frameworks.trl_releases import release_of
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.rl.trl.amounts import amounts_of
from simcore.simulate import check

TRUTH: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/trl_grpo/steps-trl-1.16.0.json").read_text(
    encoding="utf-8"))["steps"]
OLDER: dict[str, Any] = {path.stem.rpartition("-")[2]: json.loads(path.read_text(encoding="utf-8"))["steps"]
                         for path in sorted((ROOT / "tests/truth/trl_grpo").glob("steps-trl-0.*.json"))}
NAMES: dict[str, dict[str, Any]] = {
    "0.18.0": {"dataset_prompt_column": "problem"},
    "0.24.0": {"vllm_importance_sampling_correction": False}}
"""Arguments by which a recipe is of a release, beside `max_prompt_length`."""


def scenario_of(case: dict[str, Any], **said: Any) -> Scenario:
    recipe = {**RECIPE, "bf16": True, "num_generations": 2, "max_completion_length": 64,
              "per_device_train_batch_size": case["batch"], "gradient_accumulation_steps": case["accumulated"],
              "steps_per_generation": case["per_generation"], "num_iterations": case["iterations"],
              "beta": case["beta"], "use_vllm": case["vllm"], "use_peft": case["lora"],
              "lora_target_modules": ["q_proj", "v_proj"], **said}
    found = imported(recipe, gpus=1)
    values = {**found.values, "topology": "dgx-h100"}
    return parse_scenario(parse_document(json.dumps(values), "mine.yaml"))


def events(scenario: Scenario) -> Iterator[str]:
    """Events of a step, by its amounts and blocks."""
    rl, generation = scenario.rl, scenario.generation
    assert rl is not None
    assert generation is not None
    amounts, micro = amounts_of(scenario, rl), scenario.training.micro_batch_size
    passes, trained = amounts.per_rank // micro, 0
    if generation.engine == "vllm":
        yield "sync"
    for _ in range(amounts.cycles):
        yield f"generate {amounts.per_rank}"
        refers, within = rl.reference != "none", release_of(rl.version).refers_within
        for name, made in (("score", not rl.on_policy_ratio), ("refer", refers and not within)):
            yield from [f"{name} {micro}"] * passes * made
        for _ in range(passes * rl.epochs):
            yield from (f"train {micro}", *[f"refer {micro}"] * (refers and within))
            trained += micro
            if trained % amounts.batch == 0:
                yield "step"


@pytest.mark.parametrize("number", range(len(TRUTH)))
def test_a_step_is_that_of_the_trainer(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = scenario_of(TRUTH[number], vllm_max_model_length=128,
                           vllm_importance_sampling_correction=TRUTH[number]["correction"])
    assert check(scenario).problems == ()
    assert list(events(scenario)) == TRUTH[number]["steps"]


@pytest.mark.parametrize("version", OLDER)
def test_a_step_of_an_older_release_is_that_of_its_trainer(
        version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.18 passes through the reference model behind the policy in each microbatch (probe_trl_grpo_older.py)."""
    monkeypatch.chdir(tmp_path)
    for case in OLDER[version]:
        scenario = scenario_of(case, max_prompt_length=64, vllm_mode="colocate", **NAMES[version])
        assert (scenario.rl and scenario.rl.version, check(scenario).problems) == (version, ())
        assert list(events(scenario)) == case["steps"], case
