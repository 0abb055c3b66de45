"""Settings that are refused, or change what is run by little, and variables of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import NANO, imported
from simcore.errors import InputError

PLAIN = "llama3_8b_pretrain_8gpu_h100_bf16_config"


@pytest.mark.parametrize(("override", "told"), [
    ("model.hidden_size=1024", "another one than that of the model"), ("model.hidden_dropout=0.1", "another one than"),
    ("model.attention_dropout=0.1", "another one than"),
    ("dist.use_torch_fsdp2=true", "PyTorch's FSDP2"), ("model.freeze_mtp_model=true", "frozen modules of multi-token"),
    ("mixed_precision.params_dtype=torch.float32", "parameters that are made in torch.float32"),
    ("mixed_precision.fp32=true", "training in fp32")])
def test_what_changes_the_answer_and_is_not_modelled_is_refused(tmp_path: Path, override: str, told: str) -> None:
    found = imported(tmp_path, f"qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config {override}")
    (problem,) = found.refused
    assert problem.message.startswith(f"not yet: {override.partition('=')[0]}: ")
    assert told in problem.message


@pytest.mark.parametrize(("override", "kind", "why"), [
    ("dist.use_tp_pp_dp_mapping=true", "not modelled", "another order"),
    ("dist.use_tp_pp_dp_mapping=false", "no effect", "the default"),
    ("train.empty_unused_memory_level=2", "not modelled", "cached blocks"),
    ("optimizer.overlap_cpu_optimizer_d2h_h2d=true", "no effect", "on the device"),
    ("model.use_mamba_mem_eff_path=false", "not modelled", "which keep more"),
    ("comm_overlap.overlap_p2p_comm=false", "no effect", "there is one stage"),
    ("model.moe_hybridep_pad_uneven_dispatch_inputs=true", "not modelled", "padded"),
    ("model.moe_dispatch_fwd_dtype=mxfp8", "not modelled", "in 8 bits"),
    ("model.bias_dropout_fusion=false", "not modelled", "pointwise operators"),
    ("model.bias_dropout_fusion=true", "no effect", "the default"),
    ("dist.high_priority_stream_groups=[ep]", "not modelled", "go before others"),
    ("dist.disable_jit_fuser=true", "not modelled", "pointwise operators"),
    ("rerun_state_machine.rerun_mode=report_determinism_stats", "not modelled", "run again"),
    ("dataset.enable_in_batch_packing=true", "not modelled", "each is counted as a row"),
    ("dataset.inter_document_masking=true", "not modelled", "whole rows"),
    ("train.check_optimizer_step_success=false", "not modelled", "fixed time"),
    ("env_vars.ODD=1", "not modelled", "this reader does not know"),
    ("env_vars.NCCL_ALGO=Ring", "not modelled", "ways and buffers of exchanges"),
    ("dist.enable_megatron_core_experimental=true", "not modelled", "kernels that core calls experimental"),
    ("dist.eval_context_parallel_size=2", "no effect", "evaluation"),
    ("model.init_method_std=0.01", "no effect", "before the first step"),
    ("model.hf_model_revision=abc", "no effect", "which files"),
    ("comm_overlap.tp_comm_bootstrap_backend=nccl", "no effect", "how ranks find each other"),
    ("optimizer.reuse_grad_buf_for_mxfp8_param_ag=true", "no effect", "mixed_precision says it"),
    ("mixed_precision.autocast_enabled=true", "not modelled", "autocast around the layers"),
    ("mixed_precision.pipeline_dtype=torch.float32", "no effect", "there is one stage"),
    ("model.calculate_per_token_loss=true", "no effect", "by what the loss is divided"),
    ("env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,graph_capture_record_stream_reuse:True", "not modelled",
     "within a capture")])
def test_small_settings_and_variables_say_what_becomes_of_them(tmp_path: Path, override: str, kind: str,
                                                               why: str) -> None:
    key = override.partition("=")[0]
    (left,) = (one for one in imported(tmp_path, f"{NANO} {override}").left if one.key.startswith(key))
    assert (left.kind, why in left.why) == (kind, True)


@pytest.mark.parametrize(("override", "told"), [
    ("comm_overlap.overlap_p2p_comm=false model.virtual_pipeline_model_parallel_size=2", "not modelled: sends"),
    ("comm_overlap.overlap_p2p_comm=true model.virtual_pipeline_model_parallel_size=2",
            "no effect: as it is simulated"),
    ("comm_overlap.overlap_p2p_comm=false model.virtual_pipeline_model_parallel_size=null", "no effect: no rank has")])
def test_how_stages_send_matters_where_they_are_interleaved(tmp_path: Path, override: str, told: str) -> None:
    """Megatron-LM d98e8a64 core/pipeline_parallel/schedules.py:1576."""
    found = imported(tmp_path, f"llama3_70b_pretrain_config model.pipeline_model_parallel_size=2 {override}")
    (left,) = (one for one in found.left if one.key == "comm_overlap.overlap_p2p_comm")
    assert f"{left.kind}: {left.why}".startswith(told)


def test_copies_beside_an_update_on_the_host_are_not_modelled(tmp_path: Path) -> None:
    found = imported(tmp_path, "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config optimizer.optimizer_cpu_offload=true "
                               "optimizer.overlap_cpu_optimizer_d2h_h2d=true")
    assert [one.kind for one in found.left if one.key.endswith("d2h_h2d")] == ["not modelled"]


@pytest.mark.parametrize(("share", "told"), [("0.5", "not modelled: as much of each"), ("1.0", "no effect: the m")])
def test_the_share_of_a_head_that_is_rotated_is_the_models(tmp_path: Path, share: str, told: str) -> None:
    found = imported(tmp_path, f"llama32_1b_pretrain_1gpu_h100_bf16_config model.rotary_percent={share}")
    (left,) = (one for one in found.left if one.key == "model.rotary_percent")
    assert f"{left.kind}: {left.why}".startswith(told)


def test_what_stages_send_in_another_format_is_told(tmp_path: Path) -> None:
    """training/mixed_precision.py, setup: pipeline_dtype is the model's."""
    staged = f"{PLAIN} model.pipeline_model_parallel_size=2"
    for value, kind in (("torch.float32", "not modelled"), ("torch.bfloat16", "no effect"), ("bfloat16", "no effect")):
        found = imported(tmp_path, f"{staged} mixed_precision.pipeline_dtype={value}")
        assert [one.kind for one in found.left if one.key == "mixed_precision.pipeline_dtype"] == [kind], value


def test_either_switch_asks_for_megatron_fsdp(tmp_path: Path) -> None:
    """training/config.py:1484, :1068: dist or ddp, each sets the other."""
    shards = "ddp.data_parallel_sharding_strategy=optim_grads_params"
    for switch in ("dist.use_megatron_fsdp=true", "ddp.use_megatron_fsdp=true"):
        assert imported(tmp_path, f"{PLAIN} {switch} {shards}").values["framework"] == "megatron_fsdp"
    assert imported(tmp_path, f"{PLAIN} dist.use_megatron_fsdp=false").values["framework"] == "megatron"


def test_moments_of_two_formats_are_refused_though_one_is_the_default(tmp_path: Path) -> None:
    text = "optimizer: {optimizer: adam, exp_avg_sq_dtype: bf16}\n"
    whole = f"model: {{hf_model_id: Qwen/Qwen3-8B, seq_length: 512}}\ntrain: {{micro_batch_size: 1}}\nddp: {{}}\n{text}"
    found = imported(tmp_path, whole, 8, "dgx-h100", "run_config.yaml")
    assert any("moments of two formats" in str(one) for one in found.refused)


@pytest.mark.parametrize("override", ["comm_overlap.tp_comm_overlap=true", "+comm_overlap.bucket_size=5", "peft.dim=8",
                                      "profiling.use_pytorch_profiler=true"])
def test_a_block_that_a_recipe_leaves_null_has_no_fields(tmp_path: Path, override: str) -> None:
    """Hydra stops: Could not override (Megatron-Bridge 067f987d training/utils/omegaconf_utils.py:180, 454)."""
    with pytest.raises(InputError, match="is null, and a word makes no block"):
        imported(tmp_path, f"llama31_8b_pretrain_2gpu_h100_bf16_config {override}")


def test_stages_may_keep_what_they_have_sent(tmp_path: Path) -> None:
    override = "model.pipeline_model_parallel_size=2 model.deallocate_pipeline_outputs="
    found = {value: imported(tmp_path, f"qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config {override}{value}")
             for value in ("false", "true")}
    given = {value: one.values["framework_options"].get("deallocate_pipeline_outputs") for value, one in found.items()}
    assert given == {"false": False, "true": None}
