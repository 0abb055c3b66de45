"""Recipes of Megatron-Bridge become the scenarios that a person would write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from recipes.looked_into import messages, value
from simcore.errors import InputError
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.bridge.named import launch_of, present_name, recipes
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

NANO = "nemotron_3_nano_pretrain_8gpu_h100_bf16_config"
FSDP = "ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads_params"
WRITTEN = f"""\
name: {NANO}
framework: megatron
framework_version: main 2026-08-22
topology: dgx-h100
model: {{config: nemotron-3-nano-30b-a3b}}
mesh: {{dp_shard: 8, ep: 8, etp: 1}}
training:
  seq_len: 4096
  micro_batch_size: 1
  global_batch_size: 1024
  sequence_parallel: false
  recompute: [moe, layernorm]
  loss: megatron
  precision: {{main_grads: bf16, grad_reduce: bf16}}
  optimizer: {{name: adam}}
framework_options:
  moe_token_dispatcher_type: flex
  moe_flex_dispatcher_backend: hybridep
  moe_router_dtype: fp32
  cuda_graph_impl: transformer_engine
  cuda_graph_scope: [attn, mamba]
  attention_backend: fused
  use_fused_weighted_squared_relu: true
  apply_rope_fusion: true
  bucket_size: 134217728
environment: {{expandable_segments: true}}
"""


def imported_file(folder: Path, text: str) -> str:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return str(folder / "run.sh")


def imported(folder: Path, text: str, gpus: int | None = None, topology: str = "", name: str = "run.sh") -> Imported:
    (folder / name).write_text(text, encoding="utf-8")
    return import_recipe([str(folder / name)], Answers.of_options(gpus, None, topology))


def test_a_recipe_by_name_is_the_scenario_that_a_person_would_write(tmp_path: Path) -> None:
    found = imported(tmp_path, f"torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe {NANO} \\\n"
                               "  dataset.seq_length=4096\n")
    found.expect_complete()
    scenario, written = parse_scenario(found.document()), parse_scenario(parse_document(WRITTEN, "written.yaml"))
    model = {"config": "nemotron-3-nano-30b-a3b", "overrides": {}}
    assert {**scenario.normalised(), "model": model} == {**written.normalised(), "model": model}
    assert check(scenario).problems == ()


def test_a_provider_by_its_sizes_is_the_published_model(tmp_path: Path) -> None:
    overrides = value(imported(tmp_path, NANO), "model.overrides")
    published = __import__("json").loads((Path(__file__).parents[3] / "simcore" / "models" / "presets" / (
        "nemotron-3-nano-30b-a3b.json")).read_text(encoding="utf-8"))
    assert {name: published[name] for name in overrides if name in published} == {
        name: size for name, size in overrides.items() if name in published}
    assert len(overrides) > 12


def test_an_override_has_its_line_and_the_rest_the_name(tmp_path: Path) -> None:
    found = imported(tmp_path, f"run {NANO} \\\n model.tensor_model_parallel_size=2 \\\n"
                               " model.sequence_parallel=true\n")
    origins = {".".join(map(str, path)): str(origin) for path, origin in found.origins.items()}
    assert "run.sh:2 " in origins["mesh.tp"]
    assert f"run.sh:1 {NANO}" in origins["training.micro_batch_size"]
    assert value(found, "mesh") == {"tp": 2, "ep": 8, "etp": 1, "dp_shard": 4}


@pytest.mark.parametrize(("override", "key", "expected"), [
    ("model.cross_entropy_fusion_impl=te", "training.loss", "te"),
    ("mixed_precision=bf16_with_mxfp8_mixed", "framework_options.fp8_recipe", "mxfp8"),
    ("mixed_precision=bf16_with_fp8_current_scaling_mixed", "framework_options.num_layers_at_end_in_bf16", 1),
    ("mixed_precision.grad_reduce_in_fp32=true", "training.precision.main_grads", "fp32"),
    ("ddp.use_megatron_fsdp=true", "framework", "megatron_fsdp"),
    ("ddp.overlap_grad_reduce=false", "framework_options.overlap_grad_reduce", None),
    ("comm_overlap.overlap_grad_reduce=false", "framework_options.bucket_size", None),
    ("comm_overlap.overlap_grad_reduce=false", "framework_options.overlap_grad_reduce", False),
    ("ddp.use_distributed_optimizer=false", "framework_options.use_distributed_optimizer", None),
    ("ddp.use_distributed_optimizer=false", "framework_options.bucket_size", None),
    ("ddp.bucket_size=1000", "framework_options.bucket_size", 134217728),
    ("comm_overlap.bucket_size=1000", "framework_options.bucket_size", 1000),
    ("ddp.bucket_size=1000 comm_overlap.bucket_size=5 ddp.use_distributed_optimizer=false",
     "framework_options.bucket_size", 1000),
    ("ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads_params",
     "framework_options.bucket_size", 134217728),
    ("ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads_params comm_overlap=null",
     "framework_options.bucket_size", None),
    ("ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads_params comm_overlap=null "
     "ddp.overlap_grad_reduce=false", "framework_options.bucket_size", 2**40),
    ("ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads_params comm_overlap=null "
     "ddp.num_buckets=48", "framework_options.num_buckets", 48),
    ("ddp.use_distributed_optimizer=false optimizer.use_distributed_optimizer=false",
     "framework_options.use_distributed_optimizer", False),
    ("model.recompute_granularity=full model.recompute_method=uniform model.recompute_num_layers=1",
     "training.recompute", "full"),
    ("optimizer.use_precision_aware_optimizer=true", "framework_options.use_precision_aware_optimizer", True),
    ("model.moe_token_dispatcher_type=alltoall", "framework_options.moe_flex_dispatcher_backend", None),
    ("model.cuda_graph_impl=none", "framework_options.cuda_graph_impl", None),
    ("ddp.nccl_ub=true", "framework_options.nccl_ub", True),
    ("ddp.num_buckets=7", "framework_options.num_buckets", 7),
    ("optimizer.log_num_zeros_in_grad=true", "framework_options.log_num_zeros_in_grad", True),
    (f"{FSDP} mixed_precision.grad_reduce_in_fp32=true", "training.precision.main_grads", "bf16"),
    (f"{FSDP} ddp.megatron_fsdp_main_grads_dtype=fp32", "training.precision.main_grads", "fp32"),
    (f"{FSDP} ddp.megatron_fsdp_main_grads_dtype=fp32", "training.precision.grad_reduce", "fp32"),
    (f"{FSDP} ddp.megatron_fsdp_grad_comm_dtype=fp32", "training.precision.grad_reduce", "fp32"),
    (f"{FSDP} ddp.megatron_fsdp_grad_comm_dtype=fp32", "training.precision.main_grads", "bf16"),
    (f"{FSDP} ddp.fsdp_double_buffer=true", "framework_options.fsdp_double_buffer", True),
    ("ddp.fsdp_double_buffer=true", "framework_options.fsdp_double_buffer", None),
    (f"{FSDP} ddp.fsdp_all_gather_in_start_param_sync=false", "framework_options.fsdp_all_gather_in_start_param_sync",
     False),
    ("env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", "environment", None),
    ("env_vars.CUBLAS_WORKSPACE_CONFIG=:4096:8", "environment.cublas_workspace_config", ":4096:8"),
])
def test_a_key_is_read_as_bridge_means_it(tmp_path: Path, override: str, key: str, expected: Any) -> None:
    found = imported(tmp_path, f"{NANO} {override}")
    assert value(found, key) == expected, messages(found)


@pytest.mark.parametrize(("override", "told"), [
    ("ddp.megatron_fsdp_main_params_dtype=bf16", "masters in another format than fp32"),
    ("ddp.megatron_fsdp_version=2", "the second implementation of Megatron-FSDP"),
    ("ddp.fsdp_db_use_persist_buf_on_alloc_fail=true", "persistent buffers"),
    ("ddp.megatron_fsdp_max_pool_double_buffer=true", "shared buffers of the largest size"),
    ("ddp.megatron_fsdp_enable_fine_grained_param_gather=true", "module by module")])
def test_what_of_megatron_fsdps_buffers_is_refused(tmp_path: Path, override: str, told: str) -> None:
    """It has no effect without Megatron-FSDP."""
    assert any(told in problem.message for problem in imported(tmp_path, f"{NANO} {FSDP} {override}").refused)
    assert not imported(tmp_path, f"{NANO} {override}").refused


@pytest.mark.parametrize(("override", "why"), [
    ("ddp.grad_reduce_in_fp32=false", "mixed_precision wins"),
    (f"{FSDP} mixed_precision.grad_reduce_in_fp32=true", "Megatron-FSDP reads formats of its own")])
def test_an_override_that_another_key_wins_over_is_listed(tmp_path: Path, override: str, why: str) -> None:
    key = override.rsplit(maxsplit=1)[-1].partition("=")[0]
    assert [why in one.why for one in imported(tmp_path, f"{NANO} {override}").left if one.key == key] == [True]


@pytest.mark.parametrize(("override", "refused"), [
    ("", True), ("ddp.megatron_fsdp_main_grads_dtype=fp32", False),
    ("optimizer.use_precision_aware_optimizer=true", False)])
def test_gradients_that_a_graph_keeps_in_another_format_are_refused(tmp_path: Path, override: str,
                                                                    refused: bool) -> None:
    """Megatron-LM d98e8a64 megatron_fsdp/param_and_grad_buffer.py, zero_grad: a cast copy stays beside the buffer."""
    text = f"{NANO} {FSDP} ddp.megatron_fsdp_cuda_graph_mode=true {override}"
    found = imported(tmp_path, text).refused
    assert any("megatron_fsdp_cuda_graph_mode" in one.message for one in found) == refused
    assert not imported(tmp_path, f"{NANO} ddp.megatron_fsdp_cuda_graph_mode=true").refused


def test_experts_are_not_split_by_width_unless_asked(tmp_path: Path) -> None:
    text = RUN_CONFIG.replace("  tensor_model_parallel_size: 2\n", "  tensor_model_parallel_size: 2\n"
                              "  num_moe_experts: 8\n  moe_router_topk: 2\n  expert_model_parallel_size: 4\n")
    found = imported(tmp_path, text, 8, "dgx-h100", "run_config.yaml")
    assert value(found, "mesh.etp") == 1
    assert value(imported(tmp_path, text.replace("expert_model_parallel_size: 4", "expert_model_parallel_size: 1"), 8,
                          "dgx-h100", "run_config.yaml"), "mesh.etp") is None


def test_adapters_and_packs_are_read(tmp_path: Path) -> None:
    found = imported(tmp_path, "llama3_8b_peft_1gpu_h100_bf16_config")
    assert value(found, "training.method") == "lora"
    assert value(found, "training.lengths") == "packed"
    assert value(found, "model") == "meta-llama/Meta-Llama-3-8B"
    assert value(found, "topology") == "dgx-h100"
    older = imported(tmp_path, "llama3_8b_peft_config")
    assert {**older.values, "name": ""} == {**found.values, "name": ""}


@pytest.mark.parametrize(("text", "told"), [
    (f"{NANO} model.no_such_key=1", "unknown key 'model.no_such_key'"),
    (f"{NANO} optimizer.exp_avg_sq_dtype=bf16 optimizer.exp_avg_dtype=fp16", "moments of two formats"),
    (f"{NANO} model.activation_func=silu", "silu in a hybrid"),
    (f"{NANO} model.recompute_granularity=full", "recompute_method must be block or uniform"),
    (f"{NANO} model.recompute_granularity=full model.recompute_method=block", "recompute_num_layers must be at least"),
    (f"{NANO} mixed_precision=odd_mixed", "mixed_precision odd_mixed"),
    (f"{NANO} model.pipeline_model_parallel_size=3", "no multiple of"),
    ("nemotron_3_5_lightning_peft_config", "number of GPUs"),
])
def test_what_cannot_be_said_is_named(tmp_path: Path, text: str, told: str) -> None:
    assert told in messages(imported(tmp_path, text))


@pytest.mark.parametrize(("text", "told"), [
    (f"{NANO} model.seq_length=$LENGTH", "its value depends on $LENGTH"),
    (f"{NANO} $(cat args.txt)", "$(cat args.txt): what it says depends on the output of a command"),
    (f"{NANO}\n{NANO}", "expected one command with the name of a recipe, got 2"),
    (f"{NANO} model.seq_length='!!python/object/apply:os.system [ls]'", "tag"),
])
def test_a_launch_that_is_not_clear_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        launch_of(text, "run.sh")


RUN_CONFIG = """\
_target_: megatron.bridge.training.config.ConfigContainer
train: {_target_: TrainingConfig, micro_batch_size: 1, global_batch_size: 32, train_iters: 10}
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider
  num_layers: 16
  hidden_size: 2048
  ffn_hidden_size: 8192
  num_attention_heads: 32
  num_query_groups: 8
  kv_channels: 64
  max_position_embeddings: 131072
  vocab_size: 128256
  should_pad_vocab: false
  share_embeddings_and_output_weights: false
  activation_func: {_call_: false, _target_: torch.nn.functional.silu}
  gated_linear_unit: true
  add_bias_linear: false
  add_qkv_bias: false
  normalization: RMSNorm
  position_embedding_type: rope
  attention_dropout: 0.0
  hidden_dropout: 0.0
  tensor_model_parallel_size: 2
  sequence_parallel: true
  seq_length: 4096
  rotary_percent: 1.0
  bf16: true
  use_cpu_initialization: false
  cross_entropy_loss_fusion: true
  cross_entropy_fusion_impl: te
  apply_rope_fusion: true
optimizer: {optimizer: adam, use_distributed_optimizer: true}
ddp: {grad_reduce_in_fp32: true, use_distributed_optimizer: true, overlap_grad_reduce: true, overlap_param_gather: true}
mixed_precision: {bf16: true, grad_reduce_in_fp32: true}
"""


def test_the_configuration_that_a_run_writes_is_read_by_its_sizes(tmp_path: Path) -> None:
    found = imported(tmp_path, RUN_CONFIG, 8, "dgx-h100", "run_config.yaml")
    assert messages(found) == ""
    assert value(found, "model.config") == "gpt2"
    assert value(found, "model.overrides.n_inner") == 8192
    assert value(found, "model.overrides.num_query_groups") == 8
    assert value(found, "model.overrides.vocab_size") == 128256
    assert value(found, "mesh") == {"tp": 2, "dp_shard": 4}
    assert check(parse_scenario(found.document())).problems == ()


def test_providers_of_one_family_are_its_preset_with_their_sizes(tmp_path: Path) -> None:
    olmoe, gemma = (imported(tmp_path, name) for name in (
        "olmoe_7b_sft_8gpu_h100_bf16_config",
        "gemma3_1b_pretrain_1gpu_h100_bf16_config model.num_layers=12 model.window_size=256"))
    assert messages(olmoe) == messages(gemma) == ""
    assert value(olmoe, "model.config") == "olmoe-1b-7b"
    assert value(gemma, "model.config") == "gemma-3-1b"
    sizes = value(gemma, "model.overrides")
    assert {name: sizes[name] for name in ("num_hidden_layers", "sliding_window", "head_dim")} == {
        "num_hidden_layers": 12, "sliding_window": 256, "head_dim": 256}
    for found in (olmoe, gemma):
        assert check(parse_scenario(found.document())).problems == ()


def test_a_provider_with_layers_of_its_own_is_no_gpt(tmp_path: Path) -> None:
    name = "wan_14b_pretrain_8gpu_h100_bf16_config"
    found = import_recipe([imported_file(tmp_path, name)], Answers.of_options(None, None, ""), loose=True)
    assert "model._target_: the provider" in messages(found)
    assert "model" not in found.values
    assert found.unknown == ()


def test_fp8_weights_without_the_distributed_optimizer_are_no_rule_of_bridge(tmp_path: Path) -> None:
    """Served if whole parameters are dealt (dist_muon); otherwise they are refused."""
    found = imported(tmp_path, "kimi_k2_pretrain_1024gpu_h100_fp8cs_config")
    assert messages(found) == ""
    assert value(found, "framework_options.fp8_param_gather") is True
    assert value(found, "framework_options.use_layer_wise_param_layout") is False
    cut = "llama3_70b_pretrain_64gpu_h100_fp8cs_config ddp.use_distributed_optimizer=false " \
          "optimizer.use_distributed_optimizer=false mixed_precision.fp8_param_gather=true"
    assert "not yet: mixed_precision.fp8_param_gather" in messages(imported(tmp_path, cut))


def test_recipes_of_single_linears_are_those_of_the_file_that_the_recipe_loads(tmp_path: Path) -> None:
    """`perf_recipes/nemotronh/te_quant.cfg`, in its order; no weights in 4 bits unless asked for."""
    found = imported(tmp_path, "nemotron_3_super_pretrain_64gpu_gb200_nvfp4_config")
    assert messages(found) == ""
    options = value(found, "framework_options")
    assert list(options["quant_recipe"].items()) == [
        ("*.linear_qkv", "bf16"), ("*.linear_proj", "bf16"), ("*mlp.fc[12]_latent_proj", "bf16"), ("mtp.*", "bf16"),
        ("*mixer.out_proj", "mxfp8")]
    assert options["fp4_param_gather"] is False


def test_a_paged_stash_is_read_where_it_is_on(tmp_path: Path) -> None:
    launch = "qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config"
    options = value(imported(tmp_path, launch), "framework_options")
    assert {name: one for name, one in options.items() if "stash" in name or "capacity" in name} == {
        "moe_expert_rank_capacity_factor": 1.5, "moe_paged_stash": True, "moe_paged_stash_buffer_size_factor_cuda": 1.2,
        "moe_paged_stash_buffer_size_factor_cpu": 1.0}
    found = imported(tmp_path, f"{launch} model.moe_paged_stash=false model.moe_paged_stash_page_size=32")
    options = value(found, "framework_options")
    assert [name for name in options if "stash" in name] == []
    assert any("moe_paged_stash_page_size" in one.key for one in found.left)


def test_a_router_in_bf16_is_one_without_a_format(tmp_path: Path) -> None:
    launch = "deepseek_v3_pretrain_1024gpu_h100_bf16_config"
    assert value(imported(tmp_path, launch), "framework_options").get("moe_router_dtype") is None
    found = imported(tmp_path, f"{launch} model.moe_router_dtype=bf16")
    assert value(found, "framework_options").get("moe_router_dtype") is None
    assert messages(found) == ""


def test_modules_of_multi_token_prediction_are_the_configurations_unless_told(tmp_path: Path) -> None:
    """models/conversion/model_bridge.py:497: num_nextn_predict_layers of GLM-4.5-Air is 1, which no key says."""
    name = "glm45_air_106b_sft_32gpu_h100_bf16_config"
    assert value(imported(tmp_path, name), "model.overrides.mtp_num_layers") == 1
    assert value(imported(tmp_path, f"{name} model.mtp_num_layers=null"), "model") == "zai-org/GLM-4.5-Air"


def test_a_provider_without_sizes_asks_for_them_and_takes_names_of_functions(tmp_path: Path) -> None:
    """recipes/gpt/h100/vanilla_gpt.py: its docstring's overrides; core is four times as wide, gated or not."""
    bare = imported(tmp_path, "vanilla_gpt_pretrain_config", 8, "dgx-h100")
    assert any("the recipe has no sizes of its own" in problem.message for problem in bare.wrong)
    sizes = "model.num_layers=2 model.hidden_size=256 model.num_attention_heads=4 model.add_bias_linear=false"
    made = imported(tmp_path, f"vanilla_gpt_pretrain_config {sizes} model.activation_func=silu "
                              "model.gated_linear_unit=true", 8, "dgx-h100")
    found = [value(made, f"model.overrides.{key}") for key in ("n_inner", "n_positions", "swiglu")]
    assert found == [1024, 1024, True]


def test_a_gpu_that_is_not_known_is_asked_for_and_never_taken_as_another(tmp_path: Path) -> None:
    name = "gpt_oss_20b_pretrain_8gpu_vr200_fp8mx_config"
    (question,) = imported(tmp_path, name).questions
    assert question.key == "topology"
    assert "the recipe's name says vr200, which is not known here" in question.text
    told = [one.why for one in imported(tmp_path, name, topology="gb300-nvl72").left if one.key == "topology"]
    assert told == ["the recipe's name says vr200, which is not known here: numbers are those of gb300-nvl72"]
    assert not [one for one in imported(tmp_path, NANO).left if one.key == "topology"]


def test_virtual_stages_and_a_layout_agree(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 transformer_config.py:2280: 16 chunks on 4 stages are not 2 on each."""
    name = "deepseek_v3_pretrain_256gpu_gb200_fp8mx_partial_cg_dev_config"
    (problem,) = imported(tmp_path, name).wrong
    assert problem.message.startswith("virtual_pipeline_model_parallel_size conflicts with")
    assert not imported(tmp_path, f"{name} model.virtual_pipeline_model_parallel_size=4").wrong
    assert not imported(tmp_path, f"{name} model.virtual_pipeline_model_parallel_size=null").wrong


def test_multi_token_prediction_has_the_format_of_the_layers(tmp_path: Path) -> None:
    """Nothing in Megatron-LM d98e8a64 or Bridge 067f987d reads keep_mtp_spec_in_bf16."""
    found = imported(tmp_path, "nemotron_3_ultra_pretrain_256gpu_gb300_fp8mx_config")
    assert value(found, "training.precision.compute") == "fp8"
    assert "keep_mtp_spec_in_bf16" not in value(found, "framework_options")
    assert [one.kind for one in found.left if one.key.endswith("keep_mtp_spec_in_bf16")] == ["no effect"]


def test_the_page_tells_how_many_recipes_there_are() -> None:
    count = len({present_name(name) for name in recipes()})
    assert f"{count} recipes (and older names of them)" in (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
