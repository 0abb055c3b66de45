"""Models of Automodel's recipes that are written out, and dispatchers of other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automodel_recipe import imported, refusal
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check

RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 8, local_batch_size: 4}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    _target_: transformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig
    architectures: [Qwen3MoeForCausalLM]
    vocab_size: 1024
    hidden_size: 256
    intermediate_size: 512
    moe_intermediate_size: 128
    num_hidden_layers: 2
    num_attention_heads: 8
    num_key_value_heads: 4
    num_experts: 4
    num_experts_per_tok: 2
    router_aux_loss_coef: 0.0
    rms_norm_eps: 1.0e-6
  backend: {dispatcher: uccl_ep, experts: torch_mm}
distributed: {strategy: fsdp2, ep_size: 2}
dataset: {_target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset, seq_len: 256}
"""
ANSWERS: dict[str, Any] = {"gpus": 2, "topology": "dgx-h100"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_configuration_that_is_written_out_changes_a_preset_of_its_class() -> None:
    found = imported(RECIPE, **ANSWERS)
    found.expect_complete()
    model = found.values["model"]
    assert model["config"] == "qwen3-30b-a3b"
    assert model["overrides"] | {"head_dim": 32, "norm_topk_prob": False, "num_experts": 4} == model["overrides"]
    assert {one.key for one in found.left if one.kind == "not modelled"} >= {"model.config.router_aux_loss_coef"}
    assert check(parse_scenario(found.document())).problems == ()


def test_one_without_all_sizes_is_refused() -> None:
    assert "the recipe leaves open: model" in refusal(RECIPE.replace("    vocab_size: 1024\n", ""), **ANSWERS)


def test_uccl_is_counted_as_deepep_and_says_so() -> None:
    found = imported(RECIPE, **ANSWERS)
    assert found.values["framework_options"]["dispatcher"] == "deepep"
    assert "its transport is not told apart" in str(found.origins["framework_options", "dispatcher"])


@pytest.mark.parametrize(("said", "kind"), [
    ("rope_fusion: true", "no effect"), ("gate_precision: fp32", "not modelled")])
def test_what_the_backend_config_switches_off_has_no_effect(said: str, kind: str) -> None:
    """Automodel 0.7.0 components/models/common/utils.py:603: rope_fusion is off for all models."""
    found = imported(RECIPE.replace("dispatcher: uccl_ep", said), **ANSWERS)
    assert [one.kind for one in found.left if one.key == f"model.backend.{said.partition(':')[0]}"] == [kind]
