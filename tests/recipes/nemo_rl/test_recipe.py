"""A recipe of NeMo RL is the scenario that a person would write; its traps are seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from samples_of_recipes import SAMPLES
from simcore.errors import InputError, NotYet
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

SCENARIOS: Final = Path(__file__).parents[3] / "scenarios"
H100: Final = {"topology": "dgx-h100"}
SFT: Final = """\
sft: {max_num_steps: 60, val_period: 10, val_batches: 8, val_global_batch_size: 32, val_micro_batch_size: 1}
policy:
  model_name: meta-llama/Llama-3.2-1B
  train_global_batch_size: 32
  train_micro_batch_size: 1
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg:
    _v2: true
    enabled: true
    activation_checkpointing: false
    tensor_parallel_size: 1
    context_parallel_size: 1
    dp_replicate_size: 1
    automodel_kwargs: {}
    lora_cfg: {enabled: false, target_modules: [], exclude_modules: [], match_all_linear: true, dim: 8, alpha: 32}
  dynamic_batching: {enabled: false}
  sequence_packing:
    enabled: false
    train_mb_tokens: "${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}"
  make_sequence_length_divisible_by: ${policy.dtensor_cfg.tensor_parallel_size}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5e-6, foreach: false, fused: false}}
  megatron_cfg: {enabled: false}
cluster: {gpus_per_node: 1, num_nodes: 1}
"""
GRPO: Final = """\
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16, val_period: 10, use_dynamic_sampling: false}
loss_fn: {reference_policy_kl_penalty: 0.01}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 512
  precision: bfloat16
  dtensor_cfg: {_v2: true, enabled: true, tensor_parallel_size: 1, context_parallel_size: 1, automodel_kwargs: {}}
  megatron_cfg:
    enabled: false
    activation_checkpointing: false
    tensor_model_parallel_size: 1
    expert_tensor_parallel_size: 1
    expert_model_parallel_size: 1
    pipeline_model_parallel_size: 1
    context_parallel_size: 1
    sequence_parallel: false
    freeze_moe_router: true
    moe_router_dtype: fp64
    moe_token_dispatcher_type: alltoall
    bias_activation_fusion: true
    peft: {enabled: false, target_modules: [], exclude_modules: [], dim: 8, alpha: 32, dropout: 0.0,
           dropout_position: post}
    optimizer: {optimizer: adam, use_distributed_optimizer: true, use_precision_aware_optimizer: true}
    distributed_data_parallel_config: {grad_reduce_in_fp32: false}
  dynamic_batching: {enabled: false}
  sequence_packing:
    enabled: true
    train_mb_tokens: "${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}"
    logprob_mb_tokens: "${mul:${policy.max_total_sequence_length}, ${policy.logprob_batch_size}}"
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5e-6}}
  generation:
    backend: vllm
    vllm_cfg: {precision: "${policy.precision}", tensor_parallel_size: 1, gpu_memory_utilization: 0.6,
               max_model_len: "${policy.max_total_sequence_length}"}
    colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}
cluster: {gpus_per_node: 1, num_nodes: 1}
"""
NANO: Final = "model_name: nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16"


def imported(folder: Path, base: str, text: str = "", gpus: int | None = None, topology: str = "dgx-h100",
             **settings: Any) -> Imported:
    """Import of a recipe with `base` as its parent."""
    (folder / "base.yaml").write_text(base, encoding="utf-8")
    (folder / "mine.yaml").write_text(f"defaults: base.yaml\n{text}", encoding="utf-8")
    answers = Answers.of_options(gpus, None, topology, settings)
    return import_recipe([str(folder / "mine.yaml")], answers).with_settings(settings)


def scenario(found: Imported) -> Scenario:
    found.expect_complete()
    return parse_scenario(found.document())


def as_shipped(found: Imported, name: str, **changed: object) -> None:
    """Asserts that an import is a shipped scenario, but for its name, its sweep, and keys of `changed`."""
    document = parse_document((SCENARIOS / name).read_text(encoding="utf-8"), name).without("sweep")
    document = document.with_value(("name",), "mine", "test")
    for key, value in changed.items():
        document = document.with_value(tuple(key.split("__")), value, "test")
    assert scenario(found).normalised() == parse_scenario(document).normalised()


def test_sft_of_nano_with_adapters_is_the_shipped_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, f"""\
policy:
  {NANO}
  train_global_batch_size: 16
  max_total_sequence_length: 2048
  dtensor_cfg:
    automodel_kwargs: {{force_hf: true}}
    lora_cfg: {{enabled: true, dim: 256, alpha: 512, exclude_modules: ['*out_proj*'], match_all_linear: false,
               use_triton: false}}
cluster: {{gpus_per_node: 8, num_nodes: 2}}
""")
    as_shipped(found, "nemo-rl-sft/nano-lora.yaml", checkpoint__merge="none",
               model="nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16")


def test_sft_of_nano_in_full_on_the_gpus_of_its_name_is_the_shipped_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, f"""\
policy:
  {NANO}
  train_global_batch_size: 16
  max_total_sequence_length: 2048
  hf_config_overrides: {{router_aux_loss_coef: 0.0}}
  dtensor_cfg: {{expert_parallel_size: 8, automodel_kwargs: {{backend: {{attn: te, enable_deepep: true}}}}}}
cluster: {{gpus_per_node: 8}}
""", gpus=16)
    as_shipped(found, "nemo-rl-sft/nano-full.yaml", framework_options={"attn": "te", "dispatcher": "deepep"},
               model="nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16")


def test_llama_runs_transformers_layers_though_nothing_says_so(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, """\
sft: {val_global_batch_size: 128, val_micro_batch_size: 2}
policy:
  model_name: llama-3-8b
  train_global_batch_size: 128
  max_total_sequence_length: 4096
  make_sequence_length_divisible_by: 2
  dtensor_cfg: {lora_cfg: {enabled: true, dim: 128, alpha: 128}}
cluster: {gpus_per_node: 8}
""")
    as_shipped(found, "nemo-rl-sft/llama-lora.yaml", checkpoint__merge="none")
    assert found.origins[("implementation",)].text.startswith("NeMo RL sets force_hf")


def test_dpo_counts_pairs_and_is_the_shipped_scenario(tmp_path: Path) -> None:
    base = SFT.replace("sft: {max_num_steps: 60,", "dpo: {reference_policy_kl_penalty: 0.05,")
    found = imported(tmp_path, base, f"""\
policy:
  {NANO}
  train_global_batch_size: 16
  max_total_sequence_length: 4096
  offload_optimizer_for_logprob: true
  dtensor_cfg: {{expert_parallel_size: 8, activation_checkpointing: true}}
cluster: {{gpus_per_node: 8}}
""")
    as_shipped(found, "nano-grpo/dpo-ep8.yaml", model="nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16")


def test_grpo_under_megatron_is_the_shipped_scenario(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, f"""\
grpo: {{num_prompts_per_step: 2, num_generations_per_prompt: 8}}
policy:
  {NANO}
  train_global_batch_size: 16
  train_micro_batch_size: 1
  max_total_sequence_length: 2048
  dtensor_cfg: {{enabled: false}}
  megatron_cfg:
    enabled: true
    bias_activation_fusion: false
    tensor_model_parallel_size: 2
    expert_model_parallel_size: 8
    sequence_parallel: true
    peft: {{enabled: true, dim: 128, alpha: 512, exclude_modules: ['*out_proj*']}}
  sequence_packing: {{enabled: false}}
  generation: {{vllm_cfg: {{tensor_parallel_size: 4, gpu_memory_utilization: 0.7}}}}
cluster: {{gpus_per_node: 8, num_nodes: 2}}
""")
    options = {"use_precision_aware_optimizer": True, "bias_activation_fusion": False, "moe_router_dtype": "fp32",
               "moe_token_dispatcher_type": "alltoall", "use_distributed_optimizer": True}
    as_shipped(found, "nano-grpo/megatron-lora-16gpu.yaml", framework_options=options,
               model="nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16", training__sequence_parallel=True,
               framework_version="main 2026-08-22")


def test_the_command_that_ray_starts_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SFT, encoding="utf-8")
    (tmp_path / "run.sh").write_text('COMMAND="uv run examples/run_sft.py --config mine.yaml cluster.num_nodes=1" \\\n'
                                     "CONTAINER=image sbatch --nodes=1 ray.sub\n", encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml"), str(tmp_path / "run.sh")],
                          Answers.of_options(8, None, "dgx-h100"))
    assert [one.key for one in found.left if one.key in ("COMMAND", "CONTAINER")] == ["CONTAINER"]
    assert [one.why for one in found.decides if one.key == "COMMAND"] == ["the command that NeMo RL's ray.sub starts"]


def under_megatron(model: str, **said: object) -> str:
    """Text of a recipe that trains `model` by Megatron, with further keys of `megatron_cfg`."""
    keys = "".join(f", {key}: {json.dumps(value)}" for key, value in said.items())
    return (f"policy: {{model_name: {model}, dtensor_cfg: {{enabled: false}}, megatron_cfg: {{enabled: true, "
            f"tensor_model_parallel_size: 2, pipeline_model_parallel_size: 4, expert_model_parallel_size: 1{keys}}}}}\n"
            "cluster: {gpus_per_node: 8}\n")


EXPERTS: Final[dict[str, object]] = {
    "moe_permute_fusion": False, "moe_router_dtype": "fp32", "moe_token_dispatcher_type": "alltoall",
    "freeze_moe_router": True, "moe_router_load_balancing_type": "aux_loss", "moe_router_bias_update_rate": 0.001,
    "empty_unused_memory_level": 1}


def test_options_of_experts_are_taken_over_without_expert_parallelism(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab models/megatron/setup.py, _apply_moe_config asks for no degree."""
    found = imported(tmp_path, SFT, under_megatron("Qwen/Qwen3-30B-A3B", **EXPERTS))
    options = scenario(found).framework_options
    assert {key: options[key] for key in list(EXPERTS)[:3]} == {
        "moe_permute_fusion": False, "moe_router_dtype": "fp32", "moe_token_dispatcher_type": "alltoall"}
    left = {one.key.rpartition(".")[2]: one.kind for one in found.left}
    assert [left[key] for key in list(EXPERTS)[3:]] == ["not modelled", "not modelled", "no effect", "not modelled"]


@pytest.mark.parametrize(("model", "kind"), [
    ("Qwen/Qwen3-30B-A3B", "no effect"), ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16", "not modelled")])
def test_a_router_without_a_format_computes_in_that_of_its_input(tmp_path: Path, model: str, kind: str) -> None:
    """NeMo RL 7ea279ab models/megatron/setup.py:901 sets None over Bridge's fp32."""
    found = imported(tmp_path, SFT, under_megatron(model, moe_router_dtype=None))
    assert [(one.kind, "format of their input" in one.why) for one in found.left if "router_dtype" in one.key] == [
        (kind, True)]


def test_a_dense_model_has_no_options_of_experts(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, under_megatron("meta-llama/Llama-3.2-1B", **EXPERTS))
    assert not any(key.startswith("moe") for key in scenario(found).framework_options)
    left = {one.key.rpartition(".")[2]: (one.kind, one.why) for one in found.left}
    assert {left[key] for key in list(EXPERTS)[:-1]} == {("no effect", "the model has no experts")}


def test_the_version_of_megatron_that_the_release_pins_is_told(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, under_megatron("meta-llama/Llama-3.2-1B"))
    assert scenario(found).framework_version == "main 2026-08-22"
    assert "NeMo RL 7ea279ab" in found.origins[("framework_version",)].text


def test_the_size_of_log_probabilities_that_are_not_fused_is_told(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab distributed/model_utils.py, DistributedLogprob: 12 bytes a token and row in place of 4."""
    found = imported(tmp_path, SFT, "policy: {dtensor_cfg: {enabled: false}, train_micro_batch_size: 2, "
                     "max_total_sequence_length: 2048, "
                     "megatron_cfg: {enabled: true, tensor_model_parallel_size: 2}}\n"
                     "cluster: {gpus_per_node: 8}\n")
    left = {one.key: (one.kind, one.why) for one in found.left}
    kind, why = left["policy.megatron_cfg.use_fused_linear_logprobs"]
    assert kind == "not modelled"
    assert "8 bytes x 4,096 tokens x rows of the vocabulary / 2 more than is counted" in why


_BY_MEGATRON = "dtensor_cfg: {enabled: false}, megatron_cfg: {enabled: true, defer_fp32_logits: true}"


@pytest.mark.parametrize("base", [GRPO, SFT])
def test_chunks_of_log_probabilities_are_those_of_passes_and_of_the_loss_by_megatron(tmp_path: Path, base: str) -> None:
    found = imported(tmp_path, base, f"policy: {{logprob_chunk_size: 1024, {_BY_MEGATRON}}}\n")
    assert found.values["training"]["logprob_chunk_size"] == 1024
    left = {one.key for one in found.left if one.kind == "not modelled"}
    assert not left & {f"policy.megatron_cfg.{name}" for name in ("defer_fp32_logits", "use_fused_linear_logprobs")}


def test_chunks_ask_for_logits_that_are_not_cast_as_a_whole(tmp_path: Path) -> None:
    cast = _BY_MEGATRON.replace("true}", "false}")
    found = imported(tmp_path, GRPO, f"policy: {{logprob_chunk_size: 1024, {cast}}}\n")
    assert "defer_fp32_logits must be True if logprob_chunk_size is set" in str(found.wrong[0])


@pytest.mark.parametrize(("base", "written"), [(GRPO, 1024), (SFT, None)])
def test_workers_of_dtensor_have_chunks_in_passes_alone(tmp_path: Path, base: str, written: int | None) -> None:
    found = imported(tmp_path, base, "policy: {logprob_chunk_size: 1024}\n")
    assert not found.refused
    assert found.values["training"].get("logprob_chunk_size") == written


def test_mamba_keeps_no_states_for_prefixes_by_default(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, "policy: {generation: {vllm_kwargs: {mamba_cache_mode: none}}}\n")
    assert not found.refused
    assert any(one.key == "policy.generation.vllm_kwargs.mamba_cache_mode" for one in found.left)


def test_a_chunk_has_a_token(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, "policy: {logprob_chunk_size: 0}\n")
    assert "policy.logprob_chunk_size: expected 1 or more, got 0" in str(found.wrong[0])


def test_the_older_worker_runs_transformers_layers(tmp_path: Path) -> None:
    for said in ("_v2: false", "_v2: null"):
        found = imported(tmp_path, GRPO, f"policy: {{model_name: Qwen/Qwen3-8B, dtensor_cfg: {{{said}}}}}\n")
        data = found.document().data
        assert (data["framework_version"], data["implementation"]) == ("NeMo RL 7ea279ab, _v2 false", "hf")
    packed = imported(tmp_path, GRPO, "policy: {dtensor_cfg: {_v2: false}, sequence_packing: {enabled: true}}\n")
    assert packed.document().data["framework_options"]["attn_implementation"] == "flash_attention_2"


def test_packs_are_sequences_of_full_length_and_read_by_flash_attention(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, "cluster: {gpus_per_node: 8}\n")
    read_ = scenario(found)
    assert read_.training.micro_batch_size == 4
    assert read_.rl is not None
    assert read_.rl.logprob_batch_size == 4
    assert read_.framework_options["attn_implementation"] == "flash_attention_2"
    assert any(one.key == "policy.sequence_packing.enabled" and one.kind == "not modelled" for one in found.left)


def test_packs_that_hold_no_whole_number_of_sequences_are_refused(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, "policy: {sequence_packing: {train_mb_tokens: 1000}}\n")
    assert "packs of 1000 tokens, no multiple of the 512 of a sequence" in str(found.refused[0])


def test_lengths_are_padded_to_what_divides(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, "policy: {max_total_sequence_length: 1000, make_sequence_length_divisible_by: 64}"
                                    "\n")
    assert scenario(found).training.seq_len == 1024


def test_an_engine_on_nodes_of_its_own_takes_them_from_the_cluster(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, """\
policy:
  generation:
    vllm_cfg: {tensor_parallel_size: 2}
    colocated: {enabled: false, resources: {gpus_per_node: 8, num_nodes: 1}}
cluster: {gpus_per_node: 8, num_nodes: 3}
""")
    read_ = scenario(found)
    assert read_.mesh.world_size == 16
    assert read_.generation is not None
    assert (read_.generation.colocated, read_.generation.engines, read_.generation.tp) == (False, 4, 2)


def test_asynchronous_grpo_is_read_with_what_upstream_asserts_of_it(tmp_path: Path) -> None:
    apart = """\
grpo: {async_grpo: {enabled: true, max_trajectory_age_steps: 2, in_flight_weight_updates: true}}
policy: {generation: {colocated: {enabled: false, resources: {gpus_per_node: 8, num_nodes: 1}}%s}}
cluster: {gpus_per_node: 8, num_nodes: 3}
"""
    wrong = [one.message for one in imported(tmp_path, GRPO, apart % "").wrong]
    assert [rule in message for rule, message in zip(("requires an async vLLM engine", "Importance sampling"), wrong,
                                                     strict=True)] == [True, True]
    other = imported(tmp_path, GRPO, apart % ", backend: trtllm").wrong
    assert ["async vLLM engine" in one.message for one in other] == [False], "a rule of vLLM's"
    text = apart % ", vllm_cfg: {async_engine: true}" + "loss_fn: {use_importance_sampling_correction: true}\n"
    found = imported(tmp_path, GRPO, text)
    assert found.wrong == ()
    assert found.values["rl"]["asynchronous"] is True
    assert found.values["rl"]["steps_ahead"] == 2
    assert "in_flight_weight_updates" in {one.key.rpartition(".")[2] for one in found.left
                                          if one.kind == "not modelled"}


def test_prompts_are_drawn_until_rewards_differ(tmp_path: Path) -> None:
    drawn = imported(tmp_path, GRPO, "grpo: {use_dynamic_sampling: true, batch_multiplier: 1.5, "
                                     "dynamic_sampling_max_gen_batches: 10}\n")
    assert drawn.document().data["rl"]["generated_prompts"] == 48
    assert [one.kind for one in drawn.left if one.key == "grpo.dynamic_sampling_max_gen_batches"] == ["not modelled"]
    plain = imported(tmp_path, GRPO, "grpo: {batch_multiplier: 1.5}\n")
    assert ["can only be used if use_dynamic_sampling=True" in one.message for one in plain.wrong] == [True]


def test_an_engine_in_8_bits_leaves_out_what_is_named(tmp_path: Path) -> None:
    narrow = "precision: fp8, quantization_ignored_layer_kws: [o_proj]"
    for more, told in ((narrow, {"quantization": "fp8", "unquantized": ["o_proj"]}),
                       (f"is_mx: true, {narrow}", {"quantization": "mxfp8", "unquantized": ["o_proj"]}),
                       ("precision: fp8, is_mx: false", {"quantization": "fp8"}),
                       ("precision: bfloat16, quantization_ignored_layer_kws: [q_proj]", {})):
        found = imported(tmp_path, GRPO, f"policy: {{generation: {{vllm_cfg: {{{more}}}, "
                                         "vllm_kwargs: {kv_cache_memory_bytes: 1024, enable_chunked_prefill: true}}}\n")
        written = found.document().data["generation"]
        assert {key: written[key] for key in ("quantization", "unquantized") if key in written} == told
        assert written["kv_cache_memory"] == "1024 B"
    (wrong,) = imported(tmp_path, GRPO, "policy: {generation: {vllm_cfg: {is_mx: true, precision: bfloat16}}}\n").wrong
    assert "is_mx=True requires precision='fp8'" in wrong.message


def test_nodes_with_fewer_gpus_than_the_machine_are_narrowed(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, "cluster: {gpus_per_node: 4, num_nodes: 2}\n")
    assert scenario(found).normalised()["topology"] == {
        "file": "dgx-h100", "gpus_per_node": 4, "num_nodes": None, "power_limit": None}


def test_hosts_of_a_larger_domain_are_whole(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, "cluster: {gpus_per_node: 4, num_nodes: 2}\n", topology="gb200-nvl72")
    assert scenario(found).normalised()["topology"] == "gb200-nvl72"


@pytest.mark.parametrize(("said", "grows", "kind"), [
    ("expandable_segments:True", True, ""), ("''", False, "no effect"), ("max_split_size_mb:64", False, "not modelled"),
    ("'expandable_segments:True,max_split_size_mb:64'", True, "not modelled")])
def test_the_allocator_of_the_workers_is_taken_over(tmp_path: Path, said: str, grows: bool, kind: str) -> None:
    text = f"policy: {{dtensor_cfg: {{env_vars: {{PYTORCH_CUDA_ALLOC_CONF: {said}, NCCL_ALGO: Ring}}}}}}\n"
    found = imported(tmp_path, SFT, text)
    assert scenario(found).environment.expandable_segments is grows
    left = {one.key.rpartition(".")[2]: one.kind for one in found.left}
    assert left.get("PYTORCH_CUDA_ALLOC_CONF", "") == kind
    assert left["NCCL_ALGO"] == "not modelled"


@pytest.mark.parametrize(("name", "told"), [
    ("VLLM_USE_FLASHINFER_MOE_FP16", "not modelled: kernels of the engine"),
    ("VLLM_ALLREDUCE_USE_SYMM_MEM", "not modelled: ways and buffers of the engine's sums"),
    ("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "no effect: how the engine's ranks are started"),
    ("ODD", "not modelled: a variable that this reader does not know")])
def test_a_variable_of_the_engine_has_a_reason_of_its_own(tmp_path: Path, name: str, told: str) -> None:
    found = imported(tmp_path, GRPO, f"policy: {{generation: {{vllm_cfg: {{env_vars: {{{name}: '0'}}}}}}}}\n")
    (left,) = (one for one in found.left if one.key.endswith(name))
    assert f"{left.kind}: {left.why}".startswith(told)


@pytest.mark.parametrize(("said", "kind"), [("true", "not modelled"), ("false", "no effect")])
def test_a_switch_is_told_as_not_modelled_only_where_it_is_on(tmp_path: Path, said: str, kind: str) -> None:
    text = f"policy: {{generation: {{vllm_cfg: {{use_deep_gemm: {said}}}}}}}\n"
    found = imported(tmp_path, GRPO, text)
    assert {one.kind for one in found.left if one.key.endswith("use_deep_gemm")} == {kind}


def test_one_turn_is_what_is_simulated(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, "grpo: {max_rollout_turns: 1}\n")
    assert {one.kind for one in found.left if one.key == "grpo.max_rollout_turns"} == {"no effect"}
    found = imported(tmp_path, GRPO, "grpo: {max_rollout_turns: 50}\n")
    assert {one.kind for one in found.left if one.key == "grpo.max_rollout_turns"} == {"not modelled"}


@pytest.mark.parametrize(("block", "runs"), [
    ("val_period: '20'", True), ("val_period: 0", False), ("val_period: -1, val_at_start: true", True),
    ("val_period: 0, val_at_end: false", False)])
def test_validation_runs_where_a_period_or_an_end_asks_for_it(tmp_path: Path, block: str, runs: bool) -> None:
    found = imported(tmp_path, SFT, f"sft: {{{block}}}\n")
    assert (scenario(found).evaluation is not None) is runs


def test_a_recipe_without_degrees_asks_for_what_is_missing(tmp_path: Path) -> None:
    text = "sft: {max_num_steps: 1}\npolicy: {megatron_cfg: {enabled: true}}\ncluster: {segment_size: null}\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml")], Answers())
    assert {one.key for one in found.questions} == {"model", "topology", "mesh.dp_shard", "training.seq_len"}


def test_a_placeholder_of_a_model_is_asked_for_and_the_likely_one_named(tmp_path: Path) -> None:
    words = GRPO.replace("Qwen/Qwen2.5-1.5B", "Follow instructions in https://x.org/docs/guides/deepseek.md")
    open_ = imported(tmp_path, words, "grpo: {max_num_steps: 1}\n")
    assert [(one.key, one.option.partition("such as ")[2]) for one in open_.questions] == [("model", "deepseek-v3")]
    assert "stands for one" in open_.questions[0].text
    text = "grpo: {max_num_steps: 1}\nsif_dir: /path\n"
    found = imported(tmp_path, words.replace("vllm_cfg: {", "vllm_cfg: {max_num_seqs: 2, "), text, model="qwen2.5-1.5b")
    assert scenario(found).model_name == "qwen2.5-1.5b"


def test_without_a_penalty_there_is_no_reference_policy(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, "loss_fn: {reference_policy_kl_penalty: 0}\n")
    read_ = scenario(found)
    assert read_.rl is not None
    assert read_.rl.reference == "none"


PREDICTING: Final = """\
policy:
  dtensor_cfg: {enabled: false}
  megatron_cfg: {enabled: true, mtp_num_layers: 5, mtp_use_repeated_layer: true, mtp_detach_heads: true}
  generation: {vllm_kwargs: {mamba_cache_mode: align}}
"""


def test_transformer_engines_adam_has_its_own_states(tmp_path: Path) -> None:
    """Parameters of these workers rest in fp32, which have masters in fp32 all the same."""
    found = imported(tmp_path, SFT, "policy: {optimizer: {name: transformer_engine.pytorch.optimizers.fused_adam."
                     "FusedAdam, kwargs: {master_weights: true, store_param_remainders: true, exp_avg_dtype: "
                     "torch.bfloat16, exp_avg_sq_dtype: torch.bfloat16, foreach: null, fused: null}}}\n")
    assert found.values["training"]["optimizer"] == {"implementation": "te", "name": "adamw", "master": "fp32",
                                                     "moments": "bf16"}
    assert found.values["framework_options"]["store_param_remainders"] is True


def test_experts_of_the_engine_and_their_replay(tmp_path: Path) -> None:
    text = "policy: {router_replay: {enabled: true}, generation: {vllm_cfg: {expert_parallel_size: SIZE, " \
           "tensor_parallel_size: 4}, vllm_kwargs: {enable_chunked_prefill: false}}}\n"
    found = imported(tmp_path, GRPO, text.replace("SIZE", "4"))
    assert found.values["generation"]["expert_parallel"] is True
    assert (found.values["generation"]["chunked_prefill"], found.refused) == (False, ())
    assert [one.kind for one in found.left if one.key == "policy.router_replay.enabled"] == ["not modelled"]
    found = imported(tmp_path, GRPO, text.replace("SIZE", "6"))
    assert "EP must be a multiple of TP" in found.wrong[0].message


def test_the_models_own_module_drafts(tmp_path: Path) -> None:
    for method in ("mtp", "deepseek_mtp"):
        found = imported(tmp_path, GRPO, "policy: {generation: {vllm_kwargs: {speculative_config: {method: "
                                         f"{method}, num_speculative_tokens: 2}}}}}}}}\n")
        assert (found.values["generation"]["num_speculative_tokens"], found.refused) == (2, ())


def test_modules_of_further_tokens_are_those_of_whichever_model(tmp_path: Path) -> None:
    base = GRPO.replace("Qwen/Qwen2.5-1.5B", "/path/to/model")
    changed = {"mtp_num_layers": 5, "mtp_use_repeated_layer": True}
    found = imported(tmp_path, base, PREDICTING, model="nemotron-3-super-120b-a12b")
    assert found.values["model"] == {"config": "nemotron-3-super-120b-a12b", "overrides": changed}
    assert found.values["framework_options"]["mtp_detach_heads"] is True
    assert found.values["generation"]["mamba_cache_mode"] == "align"
    lightning = "  model_name: nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16\n"
    found = imported(tmp_path, GRPO, PREDICTING + lightning)
    assert found.values["model"]["overrides"] == {"mtp_num_layers": 5, "mtp_hybrid_override_pattern": "*E",
                                                  "mtp_use_repeated_layer": True}
    scenario(found)
    found = imported(tmp_path, GRPO, PREDICTING.replace("5", "0"))
    assert found.values["model"] == "Qwen/Qwen2.5-1.5B"
    found = imported(tmp_path, GRPO, PREDICTING)
    assert "one layer of multi-token prediction for all depths" in str(found.refused)


def test_adapters_without_names_are_on_every_linear_module_of_bridge(tmp_path: Path) -> None:
    found = imported(tmp_path, GRPO, "policy: {dtensor_cfg: {enabled: false}, megatron_cfg: {enabled: true, peft: "
                                     "{enabled: true}}}\n")
    assert found.values["training"]["lora"]["exclude_modules"] == ["none"]


@pytest.mark.parametrize(("base", "text", "told"), [
    (GRPO, "policy: {generation: {backend: trtllm}}", "generation by trtllm"),
    (GRPO, "policy: {generation: {vllm_cfg: {expert_parallel_size: 8}}}", "an engine over experts: 8, of copies"),
    (GRPO, "policy: {generation: {vllm_kwargs: {speculative_config: {method: eagle3}}}}", "by another drafter"),
    (GRPO, "policy: {generation: {vllm_kwargs: {mamba_cache_mode: some}}}", "Mamba's states for prefixes: some"),
    (GRPO, "policy: {generation: {vllm_kwargs: {swap_space: 8}}}", "a setting of vLLM that is not described"),
    (GRPO, "data: {default: {env_name: reward_model}}", "rewards by a model that takes GPUs of the cluster"),
    (SFT, "policy: {dtensor_cfg: {custom_parallel_plan: true}}", "a plan of tensor parallelism of one's own"),
    (SFT, "policy: {optimizer: {name: some.FusedAdam}}", "optimizer some.FusedAdam"),
    (SFT, "policy: {reward_model_cfg: {enabled: true}}", "training of a reward model"),
])
def test_what_no_scenario_can_say_is_refused_by_name(tmp_path: Path, base: str, text: str, told: str) -> None:
    found = imported(tmp_path, base, f"{text}\n")
    assert any(told in problem.message and problem.where.endswith("mine.yaml:2") for problem in found.refused)
    with pytest.raises(NotYet):
        found.expect_complete()


@pytest.mark.parametrize("block", ["teachers: [{model_name: x}]", "rm: {a: 1}",
                                   "eval: {metric: pass@k}"])
def test_other_algorithms_are_refused_even_if_loose(tmp_path: Path, block: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"defaults: nowhere.yaml\n{block}\n", encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml")], Answers(), loose=True)
    assert [problem.where for problem in found.refused] == [f"{tmp_path}/mine.yaml:2"]


def test_an_unknown_key_is_an_error_at_the_line_of_its_file(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT.replace("  precision", "  train_speed: 9\n  precision"), "policy: {fast: true}\n")
    assert [(problem.where, problem.message[:30]) for problem in found.unknown] == [
        (f"{tmp_path}/base.yaml:7", "unknown key 'policy.train_spee"),
        (f"{tmp_path}/mine.yaml:2", "unknown key 'policy.fast': thi")]


def test_a_recipe_that_reads_the_environment_is_refused_with_its_line(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, "policy:\n  model_name: ${oc.env:HOME}\n")
    assert f"{tmp_path}/mine.yaml:3: policy.model_name: '${{oc.env:HOME}}': the function oc.env is not read" in str(
        found.wrong[0])
    with pytest.raises(InputError):
        found.expect_complete()


def test_a_recipe_without_its_parents_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: ../../sft.yaml\npolicy: {train_micro_batch_size: 2}\n", "utf-8")
    with pytest.raises(InputError, match="name that file beside the recipe"):
        import_recipe([str(tmp_path / "mine.yaml")], Answers())
    (tmp_path / "sft.yaml").write_text(SFT, encoding="utf-8")
    files, answers = [str(tmp_path / "mine.yaml"), str(tmp_path / "sft.yaml")], Answers.of_options(8, None, "dgx-h100")
    assert scenario(import_recipe(files, answers)).training.micro_batch_size == 2
    other = import_recipe([*files, SAMPLES["nemo_rl"].write(tmp_path)], answers)
    assert "is no parent of this recipe" in str(other.wrong[0])


@pytest.mark.parametrize(("argument", "told"), [
    ("+policy.train_micro_batch_size=2", "+policy.train_micro_batch_size: the recipe has this key"),
    ("policy.own=2", "policy.own: the recipe has no such key"),
    ("~policy.own", "~policy.own: the recipe has no such key"), ("~sft.max_num_steps", ""),
    ("++policy.train_micro_batch_size=2", ""), ("policy.train_micro_batch_size=2", "")])
def test_signs_of_hydra_are_those_of_the_keys(tmp_path: Path, argument: str, told: str) -> None:
    """utils/config.py 7ea279ab, parse_hydra_overrides."""
    (tmp_path / "mine.yaml").write_text(SFT, encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"uv run examples/run_sft.py --config mine.yaml {argument}", encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml"), str(tmp_path / "run.sh")],
                          Answers.of_options(8, None, "dgx-h100"))
    assert [one.message.partition(",")[0].partition(" (")[0] for one in found.wrong] == ([told] if told else [])


def test_keys_of_the_launch_command_go_before_all_files(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SFT, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("defaults: base.yaml\npolicy: {train_micro_batch_size: 2}\n", encoding="utf-8")
    (tmp_path / "run.sh").write_text("uv run examples/run_sft.py --config mine.yaml \\\n"
                                     "  policy.train_micro_batch_size=4 cluster.gpus_per_node=8\n", encoding="utf-8")
    found = import_recipe([str(tmp_path / "mine.yaml"), str(tmp_path / "run.sh")],
                          Answers.of_options(None, None, "dgx-h100"))
    read = scenario(found)
    assert (read.training.micro_batch_size, read.mesh.dp_shard) == (4, 8)
    assert found.origins[("training", "micro_batch_size")].where == f"{tmp_path}/run.sh:2"


def test_a_value_that_the_environment_has_may_stand_where_nothing_depends_on_it(tmp_path: Path) -> None:
    """The scripts of upstream's test suite take folders of their logs from a file that they source."""
    def launched(argument: str) -> Imported:
        (tmp_path / "mine.yaml").write_text(SFT, encoding="utf-8")
        (tmp_path / "run.sh").write_text("source common.env\nuv run examples/run_sft.py --config $CONFIG \\\n"
                                         f"  {argument}\n", encoding="utf-8")
        return import_recipe([str(tmp_path / "mine.yaml"), str(tmp_path / "run.sh")],
                             Answers.of_options(None, None, "dgx-h100"))

    found = launched("logger.log_dir=$LOG_DIR checkpointing.checkpoint_dir=$CKPT_DIR")
    assert {"logger.log_dir", "checkpointing.checkpoint_dir"} <= {one.key for one in found.left}
    assert found.unknown == ()
    with pytest.raises(InputError, match=r"is the value of policy.train_global_batch_size, and not known .*BATCH"):
        launched("policy.train_global_batch_size=$BATCH")


def test_workers_of_dtensor_clip_unless_they_are_given_no_norm(tmp_path: Path) -> None:
    for told, clips in (("1.0", None), ("null", False)):
        found = imported(tmp_path, SFT, f"policy: {{max_grad_norm: {told}}}\n")
        assert found.wrong == ()
        assert found.values.get("framework_options", {}).get("clip_grad_norm") is clips, told


@pytest.mark.parametrize(("clip", "kinds", "wrong"), [
    ("1.0", ["no effect"], 0), ("0.0", ["not modelled"], 0), ("${policy.max_grad_norm}", [], 1)])
def test_workers_of_megatron_clip_at_a_number_of_their_own(tmp_path: Path, clip: str, kinds: list[str],
                                                           wrong: int) -> None:
    found = imported(tmp_path, SFT, f"""\
policy:
  max_grad_norm: null
  dtensor_cfg: {{enabled: false}}
  megatron_cfg: {{enabled: true, optimizer: {{optimizer: adam, clip_grad: "{clip}"}}}}
""")
    assert [one.kind for one in found.left if one.key.endswith("clip_grad")] == kinds
    assert len([one for one in found.wrong if "clip_grad null" in one.message]) == wrong


@pytest.mark.parametrize(("optimizer", "momentum"), [
    ("optimizer: sgd", 0.9), ("optimizer: sgd, sgd_momentum: 0", 0), ("optimizer: adam, sgd_momentum: 0.9", None)])
def test_momentum_of_megatrons_sgd_is_a_state(tmp_path: Path, optimizer: str, momentum: float | None) -> None:
    """Core `optimizer_config.py` sgd_momentum: 0.9 where nothing is said."""
    found = imported(tmp_path, SFT, f"""\
policy:
  dtensor_cfg: {{enabled: false}}
  megatron_cfg: {{enabled: true, optimizer: {{{optimizer}}}}}
""")
    assert found.values["training"]["optimizer"].get("momentum") == momentum


@pytest.mark.parametrize(("value", "kind"), [("true", "not modelled"), ("false", "no effect")])
def test_copies_beside_an_update_on_the_host_are_not_timed(tmp_path: Path, value: str, kind: str) -> None:
    found = imported(tmp_path, SFT, f"""\
policy:
  dtensor_cfg: {{enabled: false}}
  megatron_cfg:
    enabled: true
    optimizer: {{optimizer: adam, optimizer_cpu_offload: true, optimizer_offload_fraction: 1.0,
                overlap_cpu_optimizer_d2h_h2d: {value}}}
""")
    assert [one.kind for one in found.left if "d2h" in one.key] == [kind]


@pytest.mark.parametrize(("said", "skips", "told"), [
    ("true", True, []), ("false", None, ["the pass of log-probabilities runs: the default"]),
    ("true}\ngrpo: {seq_logprob_error_threshold: 2.0", None,
     ["the pass of log-probabilities runs: grpo.seq_logprob_error_threshold asks for it"])])
def test_a_ratio_that_is_1_leaves_out_a_pass(tmp_path: Path, said: str, skips: bool | None, told: list[str]) -> None:
    """NeMo RL 7ea279ab algorithms/grpo.py:2490."""
    found = imported(tmp_path, GRPO, f"loss_fn: {{force_on_policy_ratio: {said}}}\n")
    assert found.document().data["rl"].get("on_policy_ratio") is skips
    assert [one.why for one in found.left if one.key == "loss_fn.force_on_policy_ratio"] == told


def test_answers_that_end_early_leave_the_rest_of_a_full_sequence_to_the_prompt(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab models/generation/vllm/vllm_worker.py:71."""
    for most, prompt in ((128, 384), (512, None), (1024, None)):
        found = imported(tmp_path, GRPO, f"policy: {{generation: {{max_new_tokens: {most}, port_range_low: 3000, "
                         "vllm_cfg: {max_model_len: 512}}}\n")
        assert found.document().data["rl"].get("prompt_tokens") == prompt
        left = {one.key.rpartition(".")[2]: one.why for one in found.left}
        assert ("max_new_tokens" in left) is (prompt is None)
        assert "ports of its servers" in left["port_range_low"]
    longer = import_recipe([str(tmp_path / "mine.yaml")], Answers.of_options(1, 2048, "dgx-h100"))
    assert longer.document().data["rl"]["prompt_tokens"] == 1024, "--seq-len says how long sequences are"


def test_settings_of_packs_and_varying_microbatches_say_what_they_do(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab distributed/batched_data_dict.py:805, models/policy/lm_policy.py:311, :327, :341."""
    sizes = "sequence_length_round: 64, train_mb_tokens: 2048, logprob_mb_tokens: 2048"
    varying = f"{{dynamic_batching: {{enabled: true, {sizes}}}, sequence_packing: {{enabled: false, {sizes}}}}}"
    told = {one.key: one.why for one in imported(tmp_path, GRPO, f"policy: {varying}\n").left}
    assert "not beyond the longest" in told["policy.dynamic_batching.sequence_length_round"]
    assert told["policy.sequence_packing.sequence_length_round"].startswith("no line of the release reads it")
    assert told["policy.sequence_packing.train_mb_tokens"] == "read with policy.sequence_packing.enabled alone"
    told = {one.key: one.why for one in imported(tmp_path, GRPO, "policy: {dynamic_batching: {sequence_length_round: 64"
                                                 "}, sequence_packing: {algorithm: first_fit}}\n").left}
    assert told["policy.dynamic_batching.sequence_length_round"] == "read with policy.dynamic_batching.enabled alone"
    assert told["policy.sequence_packing.algorithm"] == "which sequences share a pack"
    both = imported(tmp_path, GRPO, f"policy: {{dynamic_batching: {{enabled: true, {sizes}}}}}\n")
    assert any("Dynamic Batching is exclusive" in str(one) for one in both.wrong)
    staged = f"{varying[:-1]}, megatron_cfg: {{enabled: true, pipeline_model_parallel_size: 2}}}}"
    assert any("single pipeline" in str(one) for one in imported(tmp_path, GRPO, f"policy: {staged}\n").wrong)


def test_judges_have_nodes_beside_those_of_the_cluster(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab docs/cluster.md:163; environments/nemo_gym.py:1210 keeps the gym on the driver's node."""
    for nodes, kind in ((2, "not modelled"), (0, "no effect")):
        found = imported(tmp_path, GRPO, f"env: {{nemo_gym: {{num_gpu_nodes: {nodes}}}}}\n")
        found.expect_complete()
        (one,) = (one for one in found.left if one.key == "env.nemo_gym.num_gpu_nodes")
        assert one.kind == kind
        assert found.document().data["mesh"]["dp_shard"] == 1


def test_a_loss_of_a_whole_pack_is_not_about_which_sequences_share_it(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab models/megatron/train.py:518."""
    workers = "{megatron_cfg: {enabled: true}, dtensor_cfg: {enabled: false}, sequence_packing: {fuse_loss: true}}"
    for by_megatron, kind in ((workers, "not modelled"), ("{sequence_packing: {fuse_loss: true}}", "no effect")):
        found = imported(tmp_path, GRPO, f"policy: {by_megatron}\n")
        told = [(one.kind, one.why) for one in found.left if one.key == "policy.sequence_packing.fuse_loss"]
        assert told[0][0] == kind
        assert told[0][1].startswith("log-probabilities")


def test_a_pattern_gives_no_key_the_reason_of_another(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab algorithms/logits_sampling_utils.py:254, models/megatron/setup.py:928 and 1063."""
    found = imported(tmp_path, GRPO, "policy: {generation: {top_k: 50, top_p: 1.0, model_name: null, _pad_token_id: 0, "
                     "vllm_cfg: {load_format: dummy, http_refit_server_port: 1, tool_parser_plugin: a.py}}, "
                     "tokenizer: {video: {num_frames: 4}}}\ngrpo: {debug_payload_metrics: true}\n")
    found.expect_complete()
    told = {one.key.removeprefix("policy."): f"{one.kind}: {one.why}" for one in found.left}
    assert told["generation.top_k"].startswith("not modelled: the policy's logits are sorted")
    assert told["generation.top_p"] == "no effect: as it is simulated"
    assert "ways to send weights" in told["generation.vllm_cfg.http_refit_server_port"]
    assert told["generation.vllm_cfg.load_format"] == "no effect: weights come from the policy before the first step"
    assert told["tokenizer.video.num_frames"] == "no effect: inputs of other kinds than text"
    assert told["grpo.debug_payload_metrics"] == "no effect: what is logged"


def test_stages_that_send_another_format_are_told(tmp_path: Path) -> None:
    workers = "{enabled: true, pipeline_model_parallel_size: %d, pipeline_dtype: float32}"
    for stages, kind in ((1, "no effect"), (2, "not modelled")):
        text = f"policy: {{megatron_cfg: {workers % stages}, dtensor_cfg: {{enabled: false}}}}\n"
        found = imported(tmp_path, GRPO, text, gpus=2)
        assert [one.kind for one in found.left if one.key == "policy.megatron_cfg.pipeline_dtype"] == [kind]


def test_yarn_stretches_the_positions_of_the_model(tmp_path: Path) -> None:
    """vLLM gets the same overrides (NeMo RL 7ea279ab algorithms/grpo.py:497), and counts positions so."""
    for kind, longest in (("yarn", 262144), ("llama3", None)):
        found = imported(tmp_path, SFT, f"""\
policy:
  model_name: Qwen/Qwen2.5-1.5B
  hf_config_overrides:
    rope_scaling: {{rope_type: {kind}, factor: 2.0, original_max_position_embeddings: 131072}}
cluster: {{gpus_per_node: 8}}
""", gpus=8)
        model = found.values["model"]
        told = model["overrides"]["max_position_embeddings"] if isinstance(model, dict) else None
        assert told == longest, kind


def _by_megatron(tmp_path: Path, optimizer: str, precision: str = "bfloat16") -> Imported:
    return imported(tmp_path, SFT, f"policy: {{precision: {precision}, dtensor_cfg: {{enabled: false}}, megatron_cfg: "
                    f"{{enabled: true, optimizer: {{optimizer: adam, {optimizer}}}}}}}\n")


@pytest.mark.parametrize(("optimizer", "precision", "told"), [
    ("use_precision_aware_optimizer: true, bf16: false", "bfloat16",
     "optimizer.bf16=True must be set if policy.precision=bfloat16 when using use_precision_aware_optimizer=True"),
    ("use_precision_aware_optimizer: true, fp16: false", "float16",
     "optimizer.fp16=True must be set if policy.precision=float16 when using use_precision_aware_optimizer=True"),
    ("bf16: true, fp16: false", "float32",
     "optimizer.bf16=False and policy.megatron_cfg.optimizer.fp16=False must be set if policy.precision=float32"),
])
def test_formats_of_the_optimizer_are_checked_as_the_worker_checks_them(
        tmp_path: Path, optimizer: str, precision: str, told: str) -> None:
    """NeMo RL 7ea279ab models/megatron/setup.py, _validate_dtype_config."""
    found = _by_megatron(tmp_path, f"use_distributed_optimizer: true, {optimizer}", precision)
    assert [told in str(one) for one in found.wrong] == [True]


def test_the_optimizers_own_format_decides_without_a_distributed_optimizer(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 core/optimizer/__init__.py:680: without both flags it is FP32Optimizer over parameters."""
    plain = "use_precision_aware_optimizer: false, bf16: false, fp16: false, params_dtype: float32"
    shared = _by_megatron(tmp_path, f"use_distributed_optimizer: true, {plain}")
    assert not shared.refused
    reasons = {one.key.split(".")[-1]: one.why for one in shared.left}
    assert "use_distributed_optimizer" in reasons["bf16"]
    assert "no line" in reasons["params_dtype"]
    alone = _by_megatron(tmp_path, f"use_distributed_optimizer: false, {plain}")
    assert any("no main parameters" in str(one) for one in alone.refused)


def test_a_cache_that_is_emptied_between_microbatches_is_told(tmp_path: Path) -> None:
    """NeMo RL 7ea279ab models/policy/workers/dtensor_policy_worker_v2.py:463, on_microbatch_start."""
    found = imported(tmp_path, SFT, "policy: {dtensor_cfg: {clear_cache_every_n_steps: 2}}\n")
    left = {one.key: (one.kind, one.why) for one in found.left}
    assert left["policy.dtensor_cfg.clear_cache_every_n_steps"][0] == "not modelled"
    for off in ("null", "0"):
        found = imported(tmp_path, SFT, f"policy: {{dtensor_cfg: {{clear_cache_every_n_steps: {off}}}}}\n")
        left = {one.key: (one.kind, one.why) for one in found.left}
        assert left["policy.dtensor_cfg.clear_cache_every_n_steps"] == ("no effect", "off")


def test_multiprocessors_of_hybrid_ep_are_told(tmp_path: Path) -> None:
    found = imported(tmp_path, SFT, "policy: {model_name: Qwen/Qwen3-30B-A3B, dtensor_cfg: {enabled: false}, "
                     "megatron_cfg: {enabled: true, moe_hybridep_num_sms: 32}}\n")
    left = {one.key: one.kind for one in found.left}
    assert left["policy.megatron_cfg.moe_hybridep_num_sms"] == "not modelled"


@pytest.mark.parametrize("base", [SFT, GRPO])
def test_log_probabilities_that_are_fused_with_the_head_are_a_loss_in_chunks(tmp_path: Path, base: str) -> None:
    text = ("policy: {dtensor_cfg: {enabled: false}, megatron_cfg: {enabled: true, use_fused_linear_logprobs: true, "
            "fused_linear_logprobs_chunk_size: 128}}\n")
    training = imported(tmp_path, base, text).values["training"]
    assert (training["loss"], training["logprob_chunk_size"]) == ("fused_log_probs", 128)
    with pytest.raises(InputError) as refused:
        imported(tmp_path, base, text.replace(", fused_linear_logprobs_chunk_size: 128", "")).expect_complete()
    assert any("fused_linear_logprobs_chunk_size: expected" in one.message for one in refused.value.problems)


def test_states_that_leave_for_log_probabilities_with_engines_apart(tmp_path: Path) -> None:
    text = ("policy: {offload_optimizer_for_logprob: true, generation: {colocated: {enabled: false, resources: "
            "{gpus_per_node: 4, num_nodes: 1}}}}\ncluster: {gpus_per_node: 8}\n")
    assert imported(tmp_path, GRPO, text).values["rl"]["optimizer_offload"] is True
    never = text + "loss_fn: {force_on_policy_ratio: true, reference_policy_kl_penalty: 0.0}\n"
    assert "optimizer_offload" not in imported(tmp_path, GRPO, never).values["rl"]
    shared = imported(tmp_path, GRPO, "policy: {offload_optimizer_for_logprob: true}\n")
    assert "optimizer_offload" not in shared.values["rl"]


def test_a_block_of_fp8_that_is_nothing_is_none(tmp_path: Path) -> None:
    """`config["megatron_cfg"].get("fp8_cfg", None)`: so recipes of v0.5.0 have it."""
    on = "policy: {dtensor_cfg: {enabled: false}, megatron_cfg: {enabled: true, fp8_cfg: %s}}\n"
    found = {told: scenario(imported(tmp_path, GRPO, on % told)).normalised() for told in (
        "null", "{enabled: false}", "{enabled: true, fp8: e4m3, fp8_recipe: blockwise, fp8_param: false}")}
    nothing, off, fp8 = found.values()
    assert nothing == off != fp8
