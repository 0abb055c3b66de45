"""Blocks `fp8` and `compile` of Automodel's recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automodel_recipe import imported, refusal
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.conversion.converting import convert

RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 32, local_batch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
distributed: {strategy: fsdp2, dp_size: none, mp_policy: {param_dtype: bfloat16}}
compile: {enabled: true, mode: default, dynamic: false}
fp8:
  enabled: true
  recipe_name: tensorwise
  enable_fsdp_float8_all_gather: true
  precompute_float8_dynamic_scale_for_fsdp: true
  force_recompute_fp8_weight_in_bwd: true
  filter_fqns: ["lm_head"]
  emulate: false
dataset: {_target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset, seq_len: 4096}
optimizer: {_target_: torch.optim.Adam}
"""
SCENARIO = """\
name: mine
model: meta-llama/Llama-3.1-8B
framework: automodel
topology: dgx-h100
mesh: {dp_shard: 16}
training:
  seq_len: 4096
  micro_batch_size: 1
  global_batch_size: 32
  precision: {compute: fp8}
  optimizer: {name: adam}
framework_options: {fp8_all_gather: true}
"""
ANSWERS: dict[str, Any] = {"gpus": 16, "topology": "dgx-h100"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_block_is_the_scenario_that_a_person_would_write() -> None:
    found = imported(RECIPE, **ANSWERS)
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(SCENARIO, "mine.yaml"))


def test_fsdp2_does_not_read_whether_the_model_is_compiled() -> None:
    told = {one.key: one.why for one in imported(RECIPE, **ANSWERS).left if one.key.startswith("compile")}
    assert set(told) == {"compile.enabled", "compile.mode", "compile.dynamic"}
    assert all("compile_model is called for other strategies alone" in why for why in told.values())


def test_a_block_that_is_switched_off_says_nothing() -> None:
    found = imported(RECIPE.replace("  enabled: true\n  recipe", "  enabled: false\n  recipe"), **ANSWERS)
    found.expect_complete()
    assert found.values["training"]["precision"] == {"compute": "bf16"}
    assert "framework_options" not in found.values


def test_it_is_written_back() -> None:
    made = convert(parse_scenario(parse_document(SCENARIO, "mine.yaml")), "automodel")
    back = imported(made.text, **ANSWERS)
    back.expect_complete()
    assert parse_scenario(back.document()).training.precision.compute == "fp8"
    assert back.values["framework_options"] == {"fp8_all_gather": True}


@pytest.mark.parametrize(("old", "new", "told"), [
    ('["lm_head"]', "[]", "of other layers than all but lm_head"),
    ('  filter_fqns: ["lm_head"]\n', "", "of other layers than all but lm_head"),
    ('["lm_head"]', '["lm_head", "o_proj"]', "of other layers than all but lm_head"),
    ("recipe_name: tensorwise", "recipe_name: rowwise", "products in 8 bits with scales rowwise"),
    ("emulate: false", "emulate: true", "products in 8 bits that are emulated")])
def test_what_is_refused_by_name(old: str, new: str, told: str) -> None:
    assert told in refusal(RECIPE.replace(old, new), **ANSWERS)
