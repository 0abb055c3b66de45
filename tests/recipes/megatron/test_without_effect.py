"""Arguments of Megatron that give the scenario nothing: the reason is true for the value that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.looked_into import messages, value
from recipes.megatron.test_recipe import EXPERTS, imported, of


@pytest.mark.parametrize(("changes", "kind"), [
    ({"use_checkpoint_args": True}, "not modelled"), ({"use_checkpoint_args": False}, "no effect"),
    ({"use_mp_args_from_checkpoint_args": True}, "not modelled"), ({"use_mup": True}, "not modelled"),
    ({**EXPERTS, "moe_router_fusion": True}, "not modelled"), ({"rampup_batch_size": "16 8 300000"}, "not modelled")])
def test_what_changes_the_run_is_not_modelled(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    found = of(tmp_path, 8, **changes)
    name = f"--{[*changes][-1].replace('_', '-')}"
    assert [one.kind for one in found.left if one.key.endswith(name)] == [kind]


def test_main_ignores_a_ramp_of_the_batch(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 core/num_microbatches_calculator.py:100 warns, and hands it to nothing."""
    found = of(tmp_path, 8, rampup_batch_size="16 8 300000", mtp_use_repeated_layer=True)
    assert [(one.kind, "batch is constant" in one.why) for one in found.left if "rampup" in one.key] == [
        ("no effect", True)]


def test_a_batch_that_is_cut_to_whole_microbatches(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 core/num_microbatches_calculator.py:366."""
    cut = of(tmp_path, 4, global_batch_size=66, micro_batch_size=1, decrease_batch_size_if_needed=True)
    assert (messages(cut), value(cut, "training.global_batch_size")) == ("", 64)


def test_values_that_switch_off(tmp_path: Path) -> None:
    """transformer_config.py asks block for a number alone; a fraction of 0 leaves all on the device."""
    found = of(tmp_path, 8, recompute_granularity="full", recompute_method="block", recompute_num_layers=0,
               optimizer_cpu_offload=True, optimizer_offload_fraction=0.0)
    assert messages(found) == ""
    assert (value(found, "training.recompute"), value(found, "training.offload")) == (None, None)
    assert "at least 1" in messages(of(tmp_path, 8, recompute_granularity="full", recompute_method="uniform",
                                       recompute_num_layers=0))


def test_the_smallest_tensor_that_leaves_is_a_number(tmp_path: Path) -> None:
    found = of(tmp_path, 8, fine_grained_activation_offloading=True, offload_modules="core_attn")
    assert messages(found) == ""


def test_variables_of_attention_are_held_against_the_recipes_backend(tmp_path: Path) -> None:
    text = ("ENV_VARS: {{NVTE_FUSED_ATTN: 0, NVTE_FLASH_ATTN: 0}}\nMODEL_ARGS: {{--num-layers: 2, --hidden-size: 64, "
            "--num-attention-heads: 4, --seq-length: 64, --micro-batch-size: 1, --global-batch-size: 8, --bf16: true, "
            "--max-position-embeddings: 64, --attention-backend: {}}}\n")
    assert messages(imported(tmp_path, text.format("unfused"), "model_config.yaml", 8)) == ""
    assert "NVTE_FUSED_ATTN is 0" in messages(imported(tmp_path, text.format("fused"), "model_config.yaml", 8))


@pytest.mark.parametrize(("changes", "told"), [
    ({"global_batch_size": 0}, "--global-batch-size: expected at least 1, got 0"),
    ({"micro_batch_size": 0}, "--micro-batch-size: expected at least 1"),
    ({"tensor_model_parallel_size": 0}, "--tensor-model-parallel-size: expected at least 1"),
    ({"context_parallel_size": 0}, "--context-parallel-size: expected at least 1"),
    ({"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 0}, "expected at least 1, got 0"),
    ({"squared_relu": True}, "not yet: MODEL_ARGS.--squared-relu: squared ReLU of a GPT"),
    ({"mtp_num_layers": 2, "mtp_use_repeated_layer": True}, "one layer of multi-token prediction for all depths")])
def test_counts_of_nothing_and_layers_that_no_scenario_has_are_told(tmp_path: Path, changes: dict[str, Any],
                                                                    told: str) -> None:
    assert told in messages(of(tmp_path, 8, **changes))


_STAGED = {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1}


@pytest.mark.parametrize(("changes", "told"), [
    ({**_STAGED, "no_overlap_p2p_communication": True}, "not modelled: sends between stages"),
    ({"no_overlap_p2p_communication": True}, "no effect: no rank has several stages"),
    ({"disable_mamba_mem_eff_path": True}, "not modelled: Mamba's convolution"),
    ({"no_bias_dropout_fusion": True}, "not modelled: pointwise"),
    ({"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True, "overlap_cpu_optimizer_d2h_h2d": True},
     "not modelled: copies"),
    ({"muon_num_ns_steps": 10}, "no effect: the optimizer is not Muon"), ({"openai_gelu": True}, "no effect: nothing"),
    ({"optimizer": "dist_muon", "muon_num_ns_steps": 10}, "not modelled: products of Muon"),
    ({"optimizer": "dist_muon", "muon_num_ns_steps": 5}, "no effect: as it"),
    ({"high_priority_a2a_comm_stream": True}, "not modelled: exchanges go before"),
    ({"spec": "some.file a_spec"}, "not modelled: layers by code"),
    ({"spec": "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"}, "no effect: as it is simulated"),
    ({"spec": "[megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec]"}, "no effect: as it is simulated")])
def test_a_reason_admits_an_effect_where_there_is_one(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    found = of(tmp_path, 8, **changes)
    (left,) = (one for one in found.left if one.key.endswith(f"--{[*changes][-1].replace('_', '-')}"))
    assert f"{left.kind}: {left.why}".startswith(told)


def test_a_head_in_8_bits_is_an_option(tmp_path: Path) -> None:
    eight = {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_output_proj": True}
    assert value(of(tmp_path, 8, **eight), "framework_options.fp8_output_proj") is True
    assert "together with fp8 mode" in messages(of(tmp_path, 8, fp8_output_proj=True))


def test_gathers_during_forward_ask_for_reductions_during_backward(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 training/arguments.py:1028: a rule of its arguments, not of its core."""
    both = {"use_distributed_optimizer": True, "overlap_param_gather": True}
    assert "Must use --overlap-param-gather" in messages(of(tmp_path, 8, **both))
    assert messages(of(tmp_path, 8, **both, overlap_grad_reduce=True)) == ""
