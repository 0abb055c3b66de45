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
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.rl.trl.amounts import amounts_of
from simcore.simulate import check

TRUTH: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/trl_grpo/steps-trl-1.16.0.json").read_text(
    encoding="utf-8"))["steps"]


def scenario_of(case: dict[str, Any]) -> Scenario:
    recipe = {**RECIPE, "bf16": True, "num_generations": 2, "max_completion_length": 64,
              "per_device_train_batch_size": case["batch"], "gradient_accumulation_steps": case["accumulated"],
              "steps_per_generation": case["per_generation"], "num_iterations": case["iterations"],
              "beta": case["beta"], "use_vllm": case["vllm"], "use_peft": case["lora"],
              "lora_target_modules": ["q_proj", "v_proj"], "vllm_max_model_length": 128,
              "vllm_importance_sampling_correction": case["correction"]}
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
        for name, made in (("score", not rl.on_policy_ratio), ("refer", rl.reference != "none")):
            yield from [f"{name} {micro}"] * passes * made
        for _ in range(passes * rl.epochs):
            yield f"train {micro}"
            trained += micro
            if trained % amounts.batch == 0:
                yield "step"


@pytest.mark.parametrize("number", range(len(TRUTH)))
def test_a_step_is_that_of_the_trainer(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = scenario_of(TRUTH[number])
    assert check(scenario).problems == ()
    assert list(events(scenario)) == TRUTH[number]["steps"]
