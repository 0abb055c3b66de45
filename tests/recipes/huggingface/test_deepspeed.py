"""DeepSpeed's JSON: sizes, what is `auto`, offload, formats and batches, and what is refused by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from simcore.errors import RankscopeError
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.huggingface.deepspeed_keys import TOP_KEYS
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

SCRIPT: dict[str, Any] = {"model": "qwen3-8b", "training.micro_batch_size": 2}
ZERO: dict[str, Any] = {"stage": 3, "reduce_bucket_size": "auto", "stage3_max_live_parameters": 1e9}
CONFIG: dict[str, Any] = {"zero_optimization": ZERO, "bf16": {"enabled": True}}
SCENARIO = """\
name: zero
model: qwen3-8b
framework: zero3
topology: dgx-h100
mesh: {dp_shard: 8}
training:
  seq_len: 512
  micro_batch_size: 2
  global_batch_size: 48
  precision: {compute: bf16}
  optimizer: {name: adamw}
  offload: {optimizer: host, params: host}
framework_options:
  reduce_bucket_size: auto
  stage3_max_live_parameters: 1000000000
  offload_optimizer: {device: cpu, pin_memory: false}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(config: dict[str, Any], gpus: int = 8) -> Imported:
    Path("zero.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    answers = Answers.of_options(gpus, 512, "dgx-h100", SCRIPT)
    return import_recipe(["zero.json"], answers).with_settings(SCRIPT)


def zero(**keys: Any) -> dict[str, Any]:
    return {**CONFIG, "zero_optimization": {**ZERO, **keys}}


def test_a_configuration_is_the_scenario_that_a_person_would_write() -> None:
    found = imported({**zero(offload_optimizer={"device": "cpu", "pin_memory": False}, offload_param={"device": "cpu"}),
                      "gradient_accumulation_steps": 3, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(SCENARIO, "zero.yaml"))
    assert check(parse_scenario(found.document())).problems == ()


@pytest.mark.parametrize(("given", "kernel"), [({}, "fused"), ({"torch_adam": False}, "fused"),
                                               ({"torch_adam": True}, "foreach")])
def test_the_kernel_of_adam_is_deepspeeds_own_unless_torchs_is_asked_for(given: dict[str, Any], kernel: str) -> None:
    found = imported({**CONFIG, "optimizer": {"type": "AdamW", "params": given}})
    assert found.values["training"]["optimizer"]["implementation"] == kernel
    assert check(parse_scenario(found.document())).problems == ()


def test_torchs_adam_on_the_host_is_a_loop_and_a_trainers_own_stays_where_it_is_not_changed() -> None:
    for keys, kernel in (({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}, "for_loop"),
                         ({"zero_force_ds_cpu_optimizer": False}, "fused"),
                         ({"zero_force_ds_cpu_optimizer": True}, None),
                         ({"zero_force_ds_cpu_optimizer": False, "optimizer": {"type": "AdamW"}}, None)):
        found = imported({**zero(offload_optimizer={"device": "cpu"}), **keys})
        assert found.values["training"].get("optimizer", {}).get("implementation") == kernel, keys
        assert check(parse_scenario(found.document())).problems == ()


def test_what_stands_in_the_training_script_is_asked() -> None:
    Path("zero.json").write_text(json.dumps({"zero_optimization": ZERO, "bf16": {"enabled": "auto"}}), encoding="utf-8")
    assert {one.key for one in import_recipe(["zero.json"], Answers()).questions} == {
        "model", "topology", "mesh.dp_shard", "training.seq_len", "training.micro_batch_size",
        "training.precision.compute"}


def test_keys_of_stage_3_do_nothing_below() -> None:
    found = imported(zero(stage=2))
    assert found.values["framework"] == "zero2"
    assert found.values["framework_options"] == {"reduce_bucket_size": "auto"}


def test_keys_of_stage_3_may_stand_without_their_prefix() -> None:
    """deepspeed 0.19.6 `runtime/config_utils.py`: populate_by_name."""
    found = imported(zero(max_reuse_distance=5000, gather_16bit_weights_on_model_save=True))
    assert found.values["framework_options"]["stage3_max_reuse_distance"] == 5000


def test_muon_of_deepspeed_runs_in_its_first_two_stages() -> None:
    """Upstream stops in the third beside reduce_scatter."""
    for stage, status in ((1, "ok"), (2, "ok"), (3, "illegal")):
        found = imported({**zero(stage=stage), "optimizer": {"type": "Muon", "params": {"ns_method": "gram"}}})
        asked = parse_scenario(found.document())
        assert asked.training.optimizer.name == "muon"
        assert check(asked).status == status, stage


@pytest.mark.parametrize(("config", "told"), [
    (zero(stage=4), "not yet: zero_optimization.stage: stage 4 of ZeRO"),
    (zero(stage=0, offload_optimizer={"device": "cpu"}), "offload_optimizer.device cpu at stage 0: states of whole"),
    (zero(stage=0, offload_param={"device": "nvme"}), "offload_param.device nvme at stage 0: parameters are offloaded"),
    (zero(stage=0, stage3_prefetch_bucketsize=1), "unknown key 'zero_optimization.stage3_prefetch_bucketsize'"),
    (zero(stage=0, zenflow={"topk_ratio": 0.1, "update_interval": 4}), "not yet: zero_optimization.zenflow.topk_ratio"),
    ({**zero(stage=0), "optimizer": {"type": "Adam", "legacy_fusion": True}}, "legacy_fusion: FusedAdam stops at it"),
    ({**zero(stage=0), "communication_data_type": "fp32"}, "reductions in fp32"),
    (zero(allgather_bucket_size="auto"), "transformers fills in no auto for it"),
    (zero(prefetch_bucket_size="auto"), "transformers fills in no auto for it"),
    ({**CONFIG, "compile": {"disable": False, "backend": "inductor"}}, "compile.disable: the block compile of Deep"),
    ({**CONFIG, "bf16": {"enabled": True, "loss_scale": 0}}, "bf16.loss_scale: the block bf16 of DeepSpeed 0.19.6 has"),
    (zero(offload_param={"device": "cpu", "fast_init": True}), "offload_param.fast_init: the block zero_optimization."),
    ({**CONFIG, "prescale_gradients": True}, "beside reduce_scatter an error of DeepSpeed 0.19.6"),
    ({**zero(stage=2), "gradient_predivide_factor": 2.0}, "beside reduce_scatter an error of DeepSpeed 0.19.6"),
    ({**CONFIG, "data_types": {"buffer_dtype": "bf16"}}, "buffers in bf16"),
    ({**CONFIG, "data_types": {"param_dtype": "fp32"}}, "data_types.param_dtype fp32 conflicts with bf16"),
    (zero(zero_quantized_weights=True), "not yet: zero_optimization.zero_quantized_weights"),
    (zero(stage3_prefetch_bucketsize=1), "unknown key 'zero_optimization.stage3_prefetch_bucketsize'"),
    (zero(offload_optimizer={"device": "cpu", "ratio": 0.5}), "a part of the states: 0.5"),
    (zero(offload_param={"device": "tape"}), "offload to tape"),
    (zero(zenflow={"topk_ratio": 0.1, "update_interval": 4}), "not yet: zero_optimization.zenflow.topk_ratio: ZenFlow"),
    (zero(leaf_module={"classes": ["Qwen3MoeSparseMoeBlock"]}), "modules that are fetched whole"),
    (zero(stage3_allgather_sequential=True), "parameters that are gathered one after another"),
    (zero(stage=2, use_multi_rank_bucket_allreduce=False), "gradients that are reduced for one rank at a time"),
    ({**CONFIG, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, "autocast inside DeepSpeed"),
    ({**CONFIG, "expert_parallel": {"enabled": True}}, "expert_parallel.enabled with an optimizer of the script's"),
    ({**CONFIG, "optimizer": {"type": "OneBitAdam"}}, "the optimizer OneBitAdam of DeepSpeed"),
    ({**CONFIG, "optimizer": {"type": "Muon", "params": {"ns_method": "standard"}}}, "Newton-Schulz steps by standard"),
    ({**CONFIG, "communication_data_type": "fp32"}, "reductions in fp32"),
    ({**CONFIG, "fp16": {"enabled": True}}, "bf16 and fp16 are both enabled"),
    ({**CONFIG, "train_batch_size": 60}, "train_batch_size 60 is no multiple of 8 ranks x their sequences"),
    ({**CONFIG, "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
     "train_batch_size 64 is not 2 x 2 x 8 ranks"),
])
def test_what_cannot_be_followed_is_refused_by_its_key(config: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError) as raised:
        imported(config).expect_complete()
    assert told in str(raised.value)


def test_stage_0_is_a_copy_on_each_gpu_with_the_adam_that_is_named() -> None:
    for keys, adam in (({}, None), ({"optimizer": {"type": "AdamW"}}, False),
                       ({"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}, True)):
        for block in ({"stage": 0, "overlap_comm": True, "reduce_bucket_size": 5e8},
                      {"offload_param": {"device": "none"}}):
            found = imported({**CONFIG, "zero_optimization": block, "prescale_gradients": True, **keys})
            found.expect_complete()
            assert found.values["framework"] == "zero0"
            assert found.values["mesh"] == {"dp_replicate": 8}
            assert found.values.get("framework_options", {}).get("torch_adam") is adam
            assert check(parse_scenario(found.document())).problems == ()


def test_every_key_of_zero_is_known() -> None:
    """Fields of DeepSpeedZeroConfig in deepspeed 0.19.6 `runtime/zero/config.py`, by the names that a file may give."""
    numbers = ("sub_group_size", "stage3_max_reuse_distance", "stage3_model_persistence_threshold", "mics_shard_size",
               "zero_hpz_partition_size", "stage3_module_granularity_threshold", "allgather_bucket_size")
    flags = ("allgather_partitions", "contiguous_gradients", "cpu_offload", "cpu_offload_param",
             "cpu_offload_use_pin_memory", "elastic_checkpoint", "enable_sanity_checks", "ignore_unused_parameters",
             "legacy_stage1", "load_from_fp32_weights", "log_trace_cache_warnings", "memory_efficient_linear",
             "mics_hierarchical_params_gather", "overlap_comm", "override_module_apply", "pipeline_loading_checkpoint",
             "reduce_scatter", "round_robin_gradients", "save_muon_momentum_buffer_in_memory",
             "stage3_allgather_sequential", "stage3_gather_16bit_weights_on_model_save",
             "stage3_gather_fp16_weights_on_model_save", "stage3_use_all_reduce_for_fetch_params",
             "use_multi_rank_bucket_allreduce", "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
             "zero_quantized_weights")
    blocks = {"zenflow": {"topk_ratio": 0.1}, "leaf_module": {"names": ["mlp"]}, "zeropp_loco_param": {"err_beta": 0.8}}
    given = {**dict.fromkeys(numbers, 1), **dict.fromkeys(flags, True), **blocks}
    assert not imported(zero(**given)).unknown


@pytest.mark.parametrize("name", ["bf16_master_weights_and_grads", "bf16_optimizer_states"])
def test_masters_and_states_in_16_bits_are_refused(name: str) -> None:
    """deepspeed 0.19.6 `runtime/precision_config.py` DeepSpeedBF16Config."""
    refused = imported({**CONFIG, "bf16": {"enabled": True, name: True}}).refused
    assert [one.message.split(":")[1] for one in refused] == [f" bf16.{name}"]
    assert imported({**CONFIG, "bf16": {"enabled": True, name: False}}).refused == ()


def test_how_drives_are_read_is_listed_where_they_hold_something() -> None:
    aio = {"aio": {"block_size": 1048576}}
    kinds = [next(one.kind for one in imported({**zero(**keys), **aio}).left if one.key == "aio.block_size")
             for keys in ({}, {"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}})]
    assert kinds == ["no effect", "not modelled"]


@pytest.mark.parametrize("on", [1, "yes", True])
def test_a_switch_is_what_pydantic_takes_for_true(on: object) -> None:
    assert imported({**CONFIG, "bf16": {"enabled": on}}).values["training"]["precision"]["compute"] == "bf16"


def test_a_block_that_is_null_is_off() -> None:
    """DeepSpeed 0.19.6's own class of configurations takes these, and stops at the others."""
    assert imported({**zero(offload_param=None, offload_optimizer=None), "aio": None}).unknown == ()
    assert "unknown key 'fp16'" in str(imported({**CONFIG, "fp16": None}).unknown[0])


def test_a_step_s_batch_gives_what_is_not_said() -> None:
    """deepspeed 0.19.6 runtime/config.py _set_batch_related_parameters."""
    def numbers(**keys: int) -> tuple[int, int]:
        Path("zero.json").write_text(json.dumps({**CONFIG, **keys}), encoding="utf-8")
        found = import_recipe(["zero.json"], Answers.of_options(8, 512, "dgx-h100", {"model": "qwen3-8b"}))
        return found.values["training"]["micro_batch_size"], found.values["training"]["global_batch_size"]

    assert numbers(train_batch_size=64) == (8, 64)
    assert numbers(train_batch_size=64, gradient_accumulation_steps=2) == (4, 64)
    assert numbers(train_batch_size=64, train_micro_batch_size_per_gpu=1) == (1, 64)


def test_keys_say_what_reads_them() -> None:
    """deepspeed 0.19.6 runtime/precision_config.py, runtime/config.py, runtime/zero/stage3.py."""
    older = imported({"zero_optimization": ZERO, "bfloat16": {"enabled": True}})
    assert older.values["training"]["precision"]["compute"] == "bf16"
    found = imported({**zero(stage=2, stage3_allgather_sequential=True, mics_shard_size=4, allgather_partitions=False),
                      "flops_profiler": {"enabled": True}, "gradient_allreduce_op": "sum", "disable_allgather": True})
    assert not found.unknown
    assert not found.refused
    told = {one.key.removeprefix("zero_optimization."): f"{one.kind}: {one.why}" for one in found.left}
    assert told["stage3_allgather_sequential"] == told["mics_shard_size"] == "no effect: keys of stage 3"
    assert told["allgather_partitions"] == told["disable_allgather"] == "no effect: nothing reads it (0.19.6)"
    assert told["flops_profiler.enabled"].startswith("not modelled")


# ---- experts --------------------------------------------------------------------------------------------------------
OWN: dict[str, Any] = {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
EXPERTS: dict[str, Any] = {"enabled": True, "autoep_size": 4, "preset_model": "qwen3_moe"}


def with_experts(block: dict[str, Any], **keys: Any) -> Imported:
    return imported({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "expert_parallel": block, **keys})


def test_expert_parallelism_of_deepspeeds_own_optimizer_is_the_mesh() -> None:
    found = with_experts(EXPERTS | {"use_grouped_mm": True}, **OWN)
    assert (found.values["implementation"], found.values["mesh"]["ep"]) == ("autoep", 4)
    assert found.values["mesh"]["dp_shard"] == 8
    assert found.values["framework"] == "zero2"
    off = with_experts({"enabled": False, "autoep_size": 4}, **OWN)
    assert "implementation" not in off.values
    assert "ep" not in off.values["mesh"]


def test_expert_parallelism_that_upstream_stops_at_is_refused() -> None:
    for block, keys, message in (
            (EXPERTS, {}, "an optimizer of the script's, made of parameters that AutoEP replaces"),
            (EXPERTS | {"use_grouped_mm": False}, OWN, "experts one after another in a loop"),
            (EXPERTS | {"route_scale": 2.0}, OWN, "found or routed otherwise")):
        with pytest.raises(RankscopeError, match=message):
            with_experts(block, **keys).expect_complete()


# ---- keys that DeepSpeed never asks for -----------------------------------------------------------------------------
def test_known_keys_at_the_top_are_those_that_deepspeed_asks_for() -> None:
    stored = json.loads((ROOT / "tests" / "truth" / "deepspeed" / "top_keys.json").read_text(encoding="utf-8"))
    assert TOP_KEYS.split() == stored["asked"]


def test_a_key_at_the_top_that_deepspeed_never_asks_for_changes_nothing() -> None:
    found = imported({**CONFIG, "_context": "ours", "zero3_init_flag": True, "gradient_clip": 1.0})
    found.expect_complete()
    told = {one.key: one.why for one in found.left}
    assert all("DeepSpeed 0.19.6 asks for no key of this name" in told[name]
               for name in ("_context", "zero3_init_flag", "gradient_clip"))


def test_offload_that_is_no_block_is_an_error_as_upstream_has_it() -> None:
    found = imported(zero(offload_optimizer=False))
    assert [one.message for one in found.wrong] == ["zero_optimization.offload_optimizer: expected a mapping, at "
                                                    "anything else DeepSpeed 0.19.6 stops (runtime/zero/config.py)"]
