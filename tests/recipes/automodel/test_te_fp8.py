"""`backend.te_fp8` in Automodel's recipes: products in 8 bits, and the backends on which they depend."""

from __future__ import annotations

from pathlib import Path

import pytest

from automodel_recipe import imported, refusal
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.conversion.converting import convert

RECIPE = """\
recipe: BenchmarkingRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 4}
benchmark: {peak_tflops: 5000, num_nodes: 2}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    _target_: transformers.AutoConfig.from_pretrained
    pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
  backend:
    _target_: nemo_automodel.components.models.common.BackendConfig
    linear: te
    experts: te
    dispatcher: hybridep
    te_fp8: {_target_: nemo_automodel.components.models.common.utils.TEFp8Config, recipe: mxfp8}
distributed: {strategy: fsdp2, ep_size: 8, activation_checkpointing: true}
dataset: {_target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset, seq_len: 4096}
optimizer: {_target_: torch.optim.Adam}
"""
SCENARIO = """\
name: mine
model: Qwen/Qwen3-30B-A3B
framework: automodel
topology: gb200-nvl72
mesh: {dp_shard: 8, ep: 8}
training:
  seq_len: 4096
  micro_batch_size: 4
  global_batch_size: 64
  recompute: full
  precision: {compute: fp8}
  optimizer: {name: adam}
framework_options: {te_fp8: mxfp8, backend.linear: te, backend.experts: te, dispatcher: hybridep}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_block_is_the_scenario_that_a_person_would_write() -> None:
    found = imported(RECIPE, gpus=None)
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(SCENARIO, "mine.yaml"))


def test_a_peak_in_8_bits_names_the_machine_and_its_nodes_of_four() -> None:
    found = imported(RECIPE, gpus=None)
    assert found.values["topology"] == "gb200-nvl72"
    assert found.values["mesh"]["dp_shard"] == 8
    assert found.questions == ()


def test_mixed_precision_in_bf16_is_that_of_other_operators() -> None:
    text = RECIPE.replace("ep_size: 8,", "ep_size: 8, mp_policy: {param_dtype: bfloat16},")
    assert imported(text, gpus=None).values["training"]["precision"] == {"compute": "fp8"}
    assert "products in 8 bits beside operators in float16" in refusal(text.replace("bfloat16", "float16"), gpus=None)


def test_it_is_written_back() -> None:
    made = convert(parse_scenario(parse_document(SCENARIO, "mine.yaml")), "automodel")
    Path("back.yaml").write_text(made.text, encoding="utf-8")
    back = imported(Path("back.yaml").read_text(encoding="utf-8"), gpus=8, topology="gb200-nvl72")
    assert back.values["training"]["precision"] == {"compute": "fp8"}
    assert back.values["framework_options"] == {
        "te_fp8": "mxfp8", "backend.linear": "te", "backend.experts": "te", "dispatcher": "hybridep"}


@pytest.mark.parametrize(("old", "new", "told"), [
    ("recipe: mxfp8", "recipe: delayed", "a recipe of TransformerEngine delayed"),
    ("{_target_: nemo_automodel.components.models.common.utils.TEFp8Config, recipe: mxfp8}", "true", "no mapping"),
    ("linear: te", "linear: quack", "linear by quack"),
    ("experts: te", "experts: torch_mm_mxfp8", "products of experts by torch_mm_mxfp8")])
def test_what_is_refused_by_name(old: str, new: str, told: str) -> None:
    assert told in refusal(RECIPE.replace(old, new), gpus=None)
