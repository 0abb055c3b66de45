"""The launcher's YAML by itself: ranks, versions of FSDP, and what is refused by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import RankscopeError
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

SCRIPT: dict[str, Any] = {"model": "qwen3-8b", "training.micro_batch_size": 2}
FSDP: dict[str, Any] = {
    "distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 16, "num_machines": 2,
    "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_offload_params": True},
    "parallelism_config": {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 8}}
SCENARIO = """\
name: launch
model: qwen3-8b
framework: fsdp2
topology: dgx-h100
mesh: {dp_replicate: 2, dp_shard: 8}
training:
  seq_len: 512
  micro_batch_size: 2
  precision: {compute: bf16, params: fp32, grad_reduce: bf16}
  offload: {params: host, gradients: host, optimizer: host}
framework_options: {wrap: embedding_tail, reshard_after_forward: true, sync_gradients: last}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(values: dict[str, Any], gpus: int | None = None) -> Imported:
    Path("launch.yaml").write_text(json.dumps(values, indent=1), encoding="utf-8")
    answers = Answers.of_options(gpus, 512, "dgx-h100", SCRIPT)
    return import_recipe(["launch.yaml"], answers).with_settings(SCRIPT)


def fsdp(version: int | None = None, **keys: Any) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8,
            "fsdp_config": {**({"fsdp_version": version} if version else {}), **keys}}


def test_ranks_of_all_machines_are_the_scenario_that_a_person_would_write() -> None:
    found = imported(FSDP)
    found.expect_complete()
    assert parse_scenario(found.document()) == parse_scenario(parse_document(SCENARIO, "launch.yaml"))
    assert check(parse_scenario(found.document())).problems == ()


def test_without_version_and_policy_the_whole_model_is_one_flat_parameter() -> None:
    """accelerate 1.15.0 `commands/launch.py`: version 1, use_orig_params; `utils/dataclasses.py`: NO_WRAP."""
    found = imported(fsdp())
    assert found.values["framework"] == "fsdp1"
    assert found.values["framework_options"] == {
        "wrap": "root", "backward_prefetch": "NO_PREFETCH", "use_orig_params": True, "sync_gradients": "last"}


def test_nothing_is_upcast_without_mixed_precision() -> None:
    script = {**SCRIPT, "training.precision.compute": "bf16"}
    Path("launch.yaml").write_text(json.dumps({**FSDP, "mixed_precision": "no"}, indent=1), encoding="utf-8")
    found = import_recipe(["launch.yaml"], Answers.of_options(None, 512, "dgx-h100", script))
    assert found.values["training"]["precision"] == {"params": "bf16"}


def test_a_plain_launch_is_a_copy_on_each_gpu() -> None:
    found = imported({"distributed_type": "MULTI_GPU", "mixed_precision": "fp16", "num_processes": 4})
    assert (found.values["framework"], found.values["mesh"]) == ("ddp", {"dp_replicate": 4})
    one = imported({"distributed_type": "NO", "mixed_precision": "bf16", "num_processes": 8})
    assert one.values["mesh"] == {"dp_replicate": 1}


@pytest.mark.parametrize(("values", "told"), [
    ({"distributed_type": "MEGATRON_LM", "num_processes": 8}, "not yet: distributed_type"),
    ({**FSDP, "parallelism_config": {"parallelism_config_tp_size": 2}}, "parallelism_config_tp_size: tp of accelerate"),
    ({**FSDP, "parallelism_config": {"parallelism_config_dp_shard_size": 4}}, "dp_shard_size 4 x copies of them"),
    ({**FSDP, "parallelism_config": {"parallelism_config_cp_size": 16, "parallelism_config_cp_comm_strategy":
                                     "alltoall"}}, "keys and values that pass from rank to rank"),
    ({**FSDP, "mixed_precision": "fp8"}, "products in 8 bits"),
    ({**FSDP, "num_machines": 3}, "num_processes 16 is no multiple of num_machines 3"),
    ({**FSDP, "gpus": 3}, "unknown key 'gpus'"),
    (fsdp(2), "FSDP 2 without auto_wrap_policy"),
    (fsdp(1, fsdp_sharding_strategy="HYBRID_SHARD"), "the strategy HYBRID_SHARD"),
    (fsdp(1, fsdp_auto_wrap_policy="SIZE_BASED_WRAP"), "units by SIZE_BASED_WRAP"),
    ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "zero.json"}}, "name it too"),
])
def test_what_cannot_be_followed_is_refused_by_its_key(values: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError) as raised:
        imported(values).expect_complete()
    assert told in str(raised.value)


def test_one_rank_is_no_several_gpus() -> None:
    with pytest.raises(RankscopeError, match="8 GPUs, but distributed_type NO starts one rank"):
        imported({"distributed_type": "NO", "mixed_precision": "bf16"}, 8).expect_complete()


def test_other_gpus_than_the_launchers_are_a_contradiction() -> None:
    with pytest.raises(RankscopeError, match="the launcher starts 16 ranks"):
        imported(FSDP, 8).expect_complete()


@pytest.mark.parametrize(("values", "told"), [
    ({**FSDP, "parallelism_config": {"parallelism_config_dp_replicate_size": 2}}, "ParallelismConfig is of 2 ranks"),
    ({**FSDP, "parallelism_config": {"parallelism_config_dp_replicate_size": 16}}, "FSDP has no ranks to cut over"),
    ({**fsdp(2), "parallelism_config": {"parallelism_config_dp_replicate_size": 8, "parallelism_config_cp_size": 2}},
     "cannot be used with pure data parallelism"),
    ({**fsdp(1), "parallelism_config": {"parallelism_config_dp_shard_size": 16}}, "with version 2 of FSDP alone"),
    ({"distributed_type": "MULTI_GPU", "num_processes": 4, "parallelism_config": {
        "parallelism_config_dp_replicate_size": 2}}, "ParallelismConfig is of 2 ranks, and 4 are started"),
    ({**FSDP, "gpu_ids": "0,1"}, "gpu_ids 0,1 leaves 2 GPUs to the 8 ranks of a machine"),
    ({**FSDP, "dynamo_backend": "INDUCTOR"}, "dynamo_backend: layers compiled by INDUCTOR")])
def test_what_accelerate_stops_at(values: dict[str, Any], told: str) -> None:
    """accelerate 1.15.0 parallelism_config.py, utils/launch.py, commands/config/config_args.py process_config."""
    with pytest.raises(RankscopeError) as raised:
        imported(values).expect_complete()
    assert told in str(raised.value)


def test_ranks_that_share_a_sequence_are_shards_too() -> None:
    """accelerate 1.15.0 parallelism_config.py dp_shard_cp; transformers 5.23.0 trainer.py."""
    sizes = {"parallelism_config_dp_shard_size": 2, "parallelism_config_cp_size": 4}
    found = imported({**fsdp(2, fsdp_auto_wrap_policy="TRANSFORMER_BASED_WRAP"), "parallelism_config": sizes})
    assert found.values["mesh"] == {"cp": 4, "dp_shard": 2}
    alone = imported({**FSDP, "parallelism_config": {"parallelism_config_cp_size": 16}})
    assert "attn_implementation" not in alone.values["framework_options"]  # SDPA, which torch's ring takes alone
    assert (alone.values["mesh"]["cp"], alone.values["mesh"]["dp_shard"]) == (16, 1)


def test_fp16_is_the_older_name_of_mixed_precision() -> None:
    """accelerate 1.15.0 commands/config/config_args.py process_config."""
    older = imported({"distributed_type": "MULTI_GPU", "num_processes": 4, "fp16": True, "debug": True})
    assert older.values["training"]["precision"]["compute"] == "fp16"
    assert [one.kind for one in older.left if one.key == "debug"] == ["not modelled"]
