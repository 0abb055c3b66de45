"""Models of Automodel's recipes that are written out, and dispatchers of other names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from automodel_recipe import imported, refusal
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.conversion.converting import convert
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


NAMED = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 8, local_batch_size: 4}
model: {_target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path: qwen3-8b}
distributed: {strategy: fsdp2}
dataset: {_target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset, seq_len: 256}
"""


def named(said: str) -> str:
    return NAMED.replace("qwen3-8b}", f"qwen3-8b, {said}}}")


def reasons(text: str) -> dict[str, str]:
    found = imported(text, **ANSWERS)
    found.expect_complete()
    return {one.key: f"{one.kind}: {one.why}" for one in found.left}


def test_the_format_of_parameters_is_that_of_the_first_key_that_automodel_reads() -> None:
    """Automodel 0.7.0 _transformers/auto_model.py:752 and 892, _transformers/model_init.py:1256 and 1392."""
    def params(text: str) -> Any:
        found = imported(text, **ANSWERS)
        found.expect_complete()
        said = found.values.get("training", {}).get("precision", {}).get("params")
        return None if said is None else str(said)

    assert params(named("dtype: float32")) == "fp32"
    assert params(named("dtype: float32, torch_dtype: bf16")) == "fp32"
    assert params(named("torch_dtype: auto, config: {torch_dtype: float32}")) == "fp32"
    assert params(named("torch_dtype: bf16, config: {torch_dtype: float32}")) == "bf16"
    assert "goes before it" in reasons(named("torch_dtype: bf16, config: {dtype: float32}"))["model.config.dtype"]
    assert "goes before it" in reasons(named("torch_dtype: bf16, dtype: float32"))["model.torch_dtype"]
    made = RECIPE.replace("    vocab_size", "    torch_dtype: float32\n    vocab_size")
    assert params(made) is None
    assert "from_config sets it to model.torch_dtype, bf16 without one" in reasons(made)["model.config.torch_dtype"]
    wrong = imported(named("config: {dtype: bananas}"), **ANSWERS)
    assert "model.config.dtype: expected a format of torch" in str(wrong.wrong[0])


def test_fields_of_the_configuration_are_overrides_or_have_their_reason() -> None:
    fields = imported(named("num_hidden_layers: 2, config: {intermediate_size: 1024, rope_theta: 9.0}"), **ANSWERS)
    fields.expect_complete()
    assert fields.values["model"]["overrides"] == {"num_hidden_layers": 2, "intermediate_size": 1024}
    assert {one.key: one.kind for one in fields.left}["model.config.rope_theta"] == "no effect"
    dropped = imported(named("force_hf: true, config: {num_hidden_layers: 2}"), **ANSWERS)
    assert dropped.values["model"] == "qwen3-8b"
    assert "transformers' from_pretrained gets the name alone" in str(dropped.left)
    several = named("attention_dropout: 0.1")
    assert "model.attention_dropout: attention with dropout" in refusal(several, **ANSWERS)


def test_kernels_of_sdpa_are_an_option() -> None:
    one = imported(named("attn_implementation: sdpa, sdpa_method: [flash_attention]"), **ANSWERS)
    assert one.values["framework_options"]["sdpa_backend"] == "flash"
    idle = reasons(named("attn_implementation: sdpa, use_sdpa_patching: false, sdpa_method: [math]"))
    assert idle["model.sdpa_method"] == "no effect: use_sdpa_patching is off"


def test_attention_that_automodel_adds_is_told() -> None:
    for name in ("ffpa", "te"):
        assert f"not yet: model.attn_implementation: attention by {name} (0.7.0 " in refusal(
            named(f"attn_implementation: {name}"), **ANSWERS)


def test_settings_of_experts_mean_nothing_in_a_dense_model() -> None:
    """Automodel 0.7.0 components/models/llama/model.py reads attn, rms_norm, linear and rope alone."""
    for model, why in (("llama-3-8b", "the model has no experts"), ("qwen3-30b-a3b", "not as a loop over experts")):
        found = imported(DENSE.replace("llama-3-8b", model), **ANSWERS)
        assert [why in one.why for one in found.left if one.key == "model.backend.experts"] == [True], model


DENSE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 8, local_batch_size: 4}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: llama-3-8b
  backend: {dispatcher: torch, experts: torch}
distributed: {strategy: fsdp2}
dataset: {_target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset, seq_len: 256}
"""


def test_keys_of_another_strategy_are_not_called_misspelt() -> None:
    """Automodel 0.7.0 components/distributed/config.py MegatronFSDPConfig."""
    text = DENSE.replace("{strategy: fsdp2}", "{strategy: megatron_fsdp, zero_dp_strategy: 3, nccl_ub: true}")
    found = imported(text, **ANSWERS)
    assert [one.message for one in (*found.wrong, *found.refused)] == [
        "not yet: distributed.strategy: strategy megatron_fsdp of Automodel"]


def test_predicted_tokens_are_those_of_the_configuration_or_of_the_recipe() -> None:
    """0.7.0 models/nemotron_v3/mtp.py: Super's configuration has a module, Nano's none, Ultra's number is not known."""
    text = DENSE.replace("llama-3-8b", "nemotron-3-super-120b-a12b")
    further = "  num_nextn_predict_layers: 2\n  mtp_use_repeated_layer: true\n  backend:"
    for recipe, wanted in (
            (text, {"mtp_num_layers": 1}),
            (text.replace("  backend:", "  num_nextn_predict_layers: 0\n  backend:"), None),
            (text.replace("super-120b-a12b", "nano-30b-a3b"), None),
            (text.replace("  backend:", further), {"mtp_num_layers": 2, "mtp_use_repeated_layer": True}),
            (text.replace("super-120b-a12b", "nano-30b-a3b").replace("  backend:", further),
             {"mtp_num_layers": 2, "mtp_hybrid_override_pattern": "*E", "mtp_use_repeated_layer": True})):
        found = imported(recipe, **ANSWERS)
        assert not found.refused
        named = found.values["model"]
        assert (None if isinstance(named, str) else named["overrides"]) == wanted
    for changed, said in (
            (text.replace("super-120b-a12b", "ultra-550b-a55b"), "without their number"),
            (text.replace("  backend:", "  num_nextn_predict_layers: 2\n  backend:"), "by several modules"),
            (text.replace("  backend:", further.replace("2", "1")), "may be repeated"),
            (DENSE.replace("  backend:", further), "other layers than its own Nemotron-H")):
        (refused,) = imported(changed, **ANSWERS).refused
        assert said in refused.message


def test_a_recipe_of_a_model_with_such_modules_says_their_number() -> None:
    """Left out, the layers of Qwen 3.5 would train the module of its configuration."""
    for overrides, depth in (({}, 0), ({"mtp_num_layers": 1}, 1)):
        said = {"name": "q", "model": {"config": "qwen3.5-9b-text", "overrides": overrides}, "framework": "automodel",
                "topology": "dgx-h100", "mesh": {"dp_shard": 8}, "training": {"seq_len": 2048}}
        made = convert(parse_scenario(parse_document(json.dumps(said), "q.json")), "automodel")
        made.expect_complete()
        assert f"  num_nextn_predict_layers: {depth}\n" in made.text


def test_compiled_attention_is_counted_as_eager_where_layers_are_replayed() -> None:
    """0.7.0 models/{deepseek_v3,qwen3_moe}/layers.py; kept between the passes it would be less than is counted."""
    text = DENSE.replace("llama-3-8b", "deepseek-v3")
    compiled = text.replace("backend: {", "backend: {compile_attn: true, attn: sdpa, ")
    replayed = compiled.replace("{strategy: fsdp2", "{strategy: fsdp2, ep_size: 8, activation_checkpointing: true")
    for recipe, kind in ((replayed, "not modelled"), (replayed.replace("attn: sdpa", "attn: te"), "no effect"),
                         (replayed.replace("deepseek-v3", "llama-3-8b"), "no effect")):
        found = imported(recipe, **ANSWERS)
        assert [one.kind for one in found.left if one.key == "model.backend.compile_attn"] == [kind]
        assert not [one for one in found.refused if "compile" in one.message]
    refused = imported(replayed.replace("checkpointing: true", "checkpointing: false"), **ANSWERS).refused
    assert "what attention by torch.compile keeps" in " ".join(one.message for one in refused)
