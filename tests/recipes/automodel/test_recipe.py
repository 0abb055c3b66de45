"""Recipes of Automodel become the scenarios that a person would write, and each of their keys is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from automodel_recipe import ANSWERED, RECIPE, changed, imported, refusal
from simcore.errors import IllegalLayout
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe
from simcore.recipes.recipe_file import read_files
from simcore.recipes.registry import format_of
from simcore.simulate import check


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SCENARIO = """\
name: mine
model: qwen3-8b
framework: automodel
topology: dgx-h100
mesh: {dp_replicate: 2, dp_shard: 8}
training:
  method: lora
  seq_len: 1024
  micro_batch_size: 3
  global_batch_size: 48
  recompute: full
  loss: masked
  precision: {params: bf16}
  optimizer: {name: adamw, implementation: for_loop}
  lora: {rank: 24, alpha: 48, dropout: 0.1, target_modules: ["*_proj"]}
framework_options: {defer_fsdp_grad_sync: false}
"""
def test_a_recipe_is_the_scenario_that_a_person_would_write() -> None:
    found = imported(RECIPE)
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(SCENARIO, "mine.yaml"))


def test_it_is_recognised_by_its_content() -> None:
    Path("a").write_text(RECIPE, encoding="utf-8")
    Path("b").write_text(SCENARIO, encoding="utf-8")
    assert [found and found[0].name for found in map(format_of, ([one] for one in read_files(["a", "b"])))] == [
        "automodel", None]


def test_every_key_is_used_or_left_out_with_a_reason() -> None:
    found = imported(RECIPE)
    assert {one.key: one.why for one in found.left if one.kind == "not modelled"} == {}
    assert {one.key for one in found.left} == {
        "seed", "step_scheduler.max_steps", "distributed.dp_size", "dataset.dataset_name", "dataloader._target_",
        "dataloader.shuffle", "optimizer.lr"}
    assert all(one.why for one in found.left)


def test_what_it_leaves_open_is_asked_at_once() -> None:
    found = imported(RECIPE, gpus=None)
    assert {one.key for one in found.questions} == {"topology", "mesh.dp_shard", "training.seq_len"}
    assert imported(RECIPE, **ANSWERED).questions == ()


def test_origins_name_line_and_key() -> None:
    origins = {".".join(map(str, path)): str(origin) for path, origin in imported(RECIPE).origins.items()}
    assert origins["training.lora.rank"] == "mine.yaml:10 peft.dim"
    assert origins["mesh.dp_shard"].startswith("--gpus 16: GPUs over the other degrees: 16 / (pp_size 1 x")
    assert origins["training.seq_len"] == "--seq-len 1024"


def test_a_refusal_of_the_framework_names_the_recipes_line() -> None:
    found = imported(changed("  dp_replicate_size: 2\n", "  dp_replicate_size: 16\n"))
    report = check(parse_scenario(found.document()))
    assert [problem.where for problem in report.problems] == ["mine.yaml:17"]


@pytest.mark.parametrize(("old", "new", "message"), [
    ("  tp_size: 1", "  tp_size: 1\n  tensor_size: 2", "mine.yaml:19: unknown key 'distributed.tensor_size'"),
    ("seed: 7", "seed: 7\nqat: {enabled: true}", "mine.yaml:3: not yet: qat.enabled"),
    ("local_batch_size", "local_batchsize", "mine.yaml:3: unknown key 'step_scheduler.local_batchsize'"),
    ("shuffle: true", "shuffled: true", "mine.yaml:23: unknown key 'dataloader.shuffled'"),
    ("seed: 7", "seed: 7\ncheckpoint: {enable: false}", "mine.yaml:3: unknown key 'checkpoint.enable'"),
    ("seed: 7", "seed: 7\nlr_scheduler: {lr_decay: cosine}", "mine.yaml:3: unknown key 'lr_scheduler.lr_decay'"),
    ("TrainFinetuneRecipeForNextTokenPrediction", "TrainBiEncoderRecipe", "mine.yaml:1: not yet: recipe"),
    ("strategy: fsdp2", "strategy: ddp", "mine.yaml:15: not yet: distributed.strategy"),
    ("tp_size: 1", "tp_size: two", "mine.yaml:18: distributed.tp_size: expected a whole number, got 'two'"),
    ("torch.optim.AdamW", "os.system", "mine.yaml:24: not yet: optimizer._target_: optimizer os.system"),
    ("dp_size: none", "dp_size: 4", "--gpus 16: the recipe is for 4 GPUs: distributed.dp_size is 4 (mine.yaml:16)"),
    ("tp_size: 1", "tp_size: 3", "--gpus 16: 16 GPUs are no multiple of"),
])
def test_what_cannot_be_followed_is_an_error_at_its_line(old: str, new: str, message: str) -> None:
    assert message in refusal(changed(old, new))


@pytest.mark.parametrize(("old", "new", "key", "value"), [
    ("optimizer:", "packed_sequence: {packed_sequence_size: 2048}\noptimizer:", "seq_len", 2048),
    ("optimizer:", "quantization: {load_in_4bit: true}\noptimizer:", "method", "qlora"),
    ("fp32_upcast: false", "fp32_upcast: true", "loss", "masked_fp32"),
    ("activation_checkpointing: true", "activation_checkpointing: false", "recompute", "none"),
])
def test_keys_mean_what_upstream_does(old: str, new: str, key: str, value: object) -> None:
    assert imported(changed(old, new), gpus=16, topology="dgx-h100").values["training"][key] == value


def test_a_stated_degree_of_data_gives_the_number_of_gpus() -> None:
    found = imported(changed("dp_size: none", "dp_size: 4"), seq_len=64, topology="dgx-h100")
    assert found.values["mesh"] == {"tp": 1, "dp_replicate": 2, "dp_shard": 2}


def test_a_second_file_is_never_left_aside() -> None:
    Path("mine.yaml").write_text(RECIPE, encoding="utf-8")
    Path("config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    found = import_recipe(["config.json", "mine.yaml"], Answers.of_options(**ANSWERED))
    assert [problem.where for problem in found.wrong] == ["config.json"]


def test_a_benchmark_names_its_machine_and_its_nodes() -> None:
    found = imported(changed("seed: 7", "benchmark: {peak_tflops: 989, num_nodes: 4}"), seq_len=64)
    assert found.values["topology"] == "dgx-h100"
    assert found.origins["topology",].kind == "inferred"
    assert found.values["mesh"]["dp_shard"] * found.values["mesh"]["dp_replicate"] == 32
    assert imported(changed("seed: 7", "benchmark: {peak_tflops: 989, num_nodes: 1}"), seq_len=64).questions
    other = imported(changed("seed: 7", "benchmark: {num_nodes: 4}"), seq_len=64, topology="gb200-nvl72")
    assert other.values["mesh"]["dp_shard"] * other.values["mesh"]["dp_replicate"] == 16


def test_its_own_tests_give_a_hint_and_decide_where_they_say_all() -> None:
    [question] = imported(changed("seed: 7", "ci: {nodes: 2}"), seq_len=64, topology="dgx-h100").questions
    assert question.text == "number of GPUs (Automodel's own tests use 2 nodes)"
    found = imported(changed("seed: 7", "ci: {nodes: 2, nproc_per_node: 2}"), seq_len=64, topology="dgx-h100")
    assert found.values["mesh"]["dp_shard"] == 2


@pytest.mark.parametrize(("model", "loss"), [("nemotron-3-nano-30b-a3b", "masked_fp32"), ("qwen3-8b", "cut")])
def test_stages_without_hidden_states_get_another_loss(model: str, loss: str) -> None:
    text = changed("masked_ce.MaskedCrossEntropy, fp32_upcast: false", "linear_ce.FusedLinearCrossEntropy")
    stages = changed("  tp_size: 1\n", "  pp_size: 2\n", changed("qwen3-8b", model, text))
    assert imported(stages).values["training"]["loss"] == loss
    assert imported(changed("qwen3-8b", model, text)).values["training"]["loss"] == "cut"


@pytest.mark.parametrize(("targets", "scaled"), [('"*_proj"', False), ('["*"]', True), ('["*experts"]', True)])
def test_ranks_of_experts_are_scaled_only_where_experts_are_adapted(targets: str, *, scaled: bool) -> None:
    text = changed('target_modules: "*_proj"', f"target_modules: {targets}\n  moe_rank_scaling: true")
    assert ("moe_rank_scaling" in imported(text).values.get("framework_options", {})) is scaled


def test_adapters_by_operators_are_an_option_of_the_framework() -> None:
    found = imported(changed("  alpha: 48", "  alpha: 48\n  use_memory_efficient_lora: false"))
    assert found.values["framework_options"]["use_memory_efficient_lora"] is False
    dora = imported(changed("  alpha: 48", "  alpha: 48\n  use_memory_efficient_lora: false\n  use_dora: true"))
    assert "use_memory_efficient_lora" not in dora.values["framework_options"]
    dora.expect_complete()


FIELDS = ("_target_: transformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig, vocab_size: 1000, "
          "hidden_size: 256, intermediate_size: 512, num_hidden_layers: 2, num_attention_heads: 4, "
          "num_key_value_heads: 2, num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 64, rope_theta: 9.0")


def test_a_model_may_be_a_class_with_all_of_its_fields() -> None:
    """The class leaves the size of a head to the model: the hidden size over the heads."""
    given = f"config: {{{FIELDS}, norm_topk_prob: false}}"
    found = imported(changed("pretrained_model_name_or_path: qwen3-8b", given))
    found.expect_complete()
    model = found.values["model"]
    assert model["config"] == "qwen3-30b-a3b"
    assert (model["overrides"]["head_dim"], model["overrides"]["norm_topk_prob"]) == (64, False)
    assert "rope_theta" not in model["overrides"]


def test_a_class_without_one_of_its_sizes_is_asked_for() -> None:
    sizes = FIELDS.replace("vocab_size: 1000, ", "")
    given = changed("pretrained_model_name_or_path: qwen3-8b", f"config: {{{sizes}}}")
    assert "the recipe leaves open: model" in refusal(given)


@pytest.mark.parametrize("block", ["peft", "packed_sequence", "compile", "fp8", "quantization", "qat", "lr_scheduler",
                                   "clip_grad_norm", "wandb", "checkpoint", "validation_dataset"])
def test_a_block_that_is_null_is_off(block: str) -> None:
    text = RECIPE
    if block == "peft":
        start = text.index("peft:")
        text = text[:start] + text[text.index("distributed:"):]
    found = imported(f"{text}{block}: null\n")
    found.expect_complete()
    assert found.values["training"].get("method", "full") == ("full" if block == "peft" else "lora")


@pytest.mark.parametrize(("cap", "kind"), [("0.0", "no effect"), ("30.0", "not modelled")])
def test_logits_that_a_loss_bounds_are_told(cap: str, kind: str) -> None:
    """Automodel 36044ad3 components/loss/linear_ce.py:133."""
    found = imported(changed("masked_ce.MaskedCrossEntropy, fp32_upcast: false",
                             f"linear_ce.FusedLinearCrossEntropy, logit_softcapping: {cap}"))
    found.expect_complete()
    assert [one.kind for one in found.left if one.key == "loss_fn.logit_softcapping"] == [kind]


@pytest.mark.parametrize(("key", "told"), [
    ("cuda_graph: true", "layers in CUDA graphs"), ("fake_gate_noise: 0.1", "not modelled"),
    ("enable_deepep: true", "no effect"), ("fake_gate_noise: 0.0", "no effect")])
def test_fields_of_a_backend_are_not_called_misspelt(key: str, told: str) -> None:
    """Automodel 36044ad3 components/models/common/utils.py BackendConfig."""
    found = imported(changed("pretrained_model_name_or_path: qwen3-8b",
                             f"pretrained_model_name_or_path: qwen3-30b-a3b\n  backend: {{{key}}}"))
    name = f"model.backend.{key.partition(':')[0]}"
    assert [str(one) for one in found.refused if told in str(one)] or \
        [one.kind for one in found.left if one.key == name] == [told]


def test_skypilot_says_the_gpus() -> None:
    """Automodel 0.7.0 components/launcher/skypilot/config.py."""
    text = RECIPE + "skypilot: {cloud: gcp, accelerators: 'H100:8', num_nodes: 2}\n"
    found = imported(text, seq_len=1024, topology="dgx-h100")
    assert not found.questions
    assert found.values["mesh"]["dp_shard"] == 8
    other = imported(text)
    assert "--gpus 16 says how many GPUs there are" in {one.why for one in other.left}


def test_torchs_adafactor_is_refused_over_dtensors() -> None:
    """torch 2.13 optim/_adafactor.py: squares in place a norm whose parts are on other ranks."""
    found = imported(changed("torch.optim.AdamW", "torch.optim.Adafactor"), **ANSWERED)
    found.expect_complete()
    with pytest.raises(IllegalLayout, match="adafactor over DTensors"):
        prepare(parse_scenario(found.document()))
