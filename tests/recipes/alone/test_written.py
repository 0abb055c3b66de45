"""A scenario becomes a launcher's YAML, or DeepSpeed's JSON, with the trainer's recipe beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.conversion.converting import convert
from simcore.recipes.converted import Converted


def of_folder(name: str, **settings: Any) -> Scenario:
    path = ROOT / f"scenarios/trainers/{name}.yaml"
    document = parse_document(path.read_text(encoding="utf-8"), str(path)).with_value(("sweep",), None, "")
    for key, value in settings.items():
        document = document.with_value(tuple(key.split("__")), value, "")
    return parse_scenario(document)


def written(name: str, to: str, **settings: Any) -> Converted:
    made = convert(of_folder(name, **settings), to)
    made.expect_complete()
    return made


def test_fsdp_is_the_launchers_and_the_trainer_stands_beside() -> None:
    made = written("trainer-fsdp2", "accelerate", mesh={"dp_shard": 8, "dp_replicate": 2})
    assert made.text == """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 8
mixed_precision: bf16
num_processes: 16
num_machines: 2  # beside it machine_rank of each, and main_process_ip of the first
"""
    assert [*made.beside] == ["trainers-trainer-fsdp2-sft.yaml"]
    assert made.launch == ("accelerate launch --config_file trainers-trainer-fsdp2.yaml -m trl.scripts.sft "
                           "--config trainers-trainer-fsdp2-sft.yaml\n")


def test_ranks_that_share_a_sequence_are_written_and_read_back() -> None:
    text = written("trainer-fsdp2", "accelerate", mesh={"dp_shard": 2, "cp": 4}, training__loss="fused_lm_head",
                   training__seq_len=4096).text
    assert "dp_shard_size: 2\n  parallelism_config_cp_size: 4\nmixed_precision: bf16\nnum_processes: 8\n" in text


def test_ranks_that_share_sequences_by_deepspeed_are_written_and_read_back() -> None:
    """`sp_size`, around the model's attention; the format of their reductions is DeepSpeed's own file's."""
    asked: dict[str, Any] = {"framework": "zero3", "mesh": {"dp_shard": 4, "cp": 2}, "training__seq_len": 4096}
    reduced = "seq_parallel_communication_data_type"
    for said, options in (("sdpa", {}), ("flash_attention_2", {"attn_implementation": "flash_attention_2"}),
                          ("sdpa", {reduced: "bf16"})):
        made = written("trl-deepspeed", "accelerate", **asked, framework_options=options)
        at = "parallelism_config_"
        assert (f"{at}dp_shard_size: 4\n  {at}sp_size: 2\n  {at}sp_backend: deepspeed\n  "
                f"{at}sp_seq_length_is_variable: true\n  {at}sp_attn_implementation: {said}\n") in made.text
        assert "num_processes: 8\n" in made.text
        assert (f'"{reduced}": "bf16"' in "".join(made.beside.values())) == (reduced in options)


def test_a_word_that_is_false_in_yaml_1_1_is_quoted() -> None:
    assert written("trl-one-gpu", "accelerate").text == """\
distributed_type: "NO"
mixed_precision: bf16
num_processes: 1
num_machines: 1
"""


def test_few_keys_of_zero_are_the_launchers_and_more_are_a_file() -> None:
    few = written("trl-deepspeed", "accelerate", training__offload={"optimizer": "host"})
    assert "deepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n" in few.text
    more = written("trl-deepspeed", "accelerate", framework_options={"overlap_comm": False})
    assert more.text.startswith("distributed_type: DEEPSPEED\nnum_processes: 8\n")
    assert "deepspeed_config_file: trainers-trl-deepspeed-zero.json\n" in more.text
    assert "mixed_precision" not in more.text
    assert json.loads(more.beside["trainers-trl-deepspeed-zero.json"])["zero_optimization"]["overlap_comm"] is False


def test_deepspeeds_json_stands_by_itself() -> None:
    made = written("trl-deepspeed", "deepspeed", framework="zero3", training__global_batch_size=128,
                   training__offload={"optimizer": "host", "params": "host"},
                   framework_options={"stage3_prefetch_bucket_size": 5000,
                                      "offload_param": {"device": "cpu", "pin_memory": True}})
    assert json.loads(made.text) == {
        "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5000,
                              "offload_optimizer": {"device": "cpu"},
                              "offload_param": {"device": "cpu", "pin_memory": True}}}
    assert "\ndeepspeed: trainers-trl-deepspeed.json\n" in made.beside["trainers-trl-deepspeed-sft.yaml"]


def test_copies_of_flat_shards_are_refused() -> None:
    found = convert(of_folder("trainer-fsdp1", mesh={"dp_shard": 4, "dp_replicate": 2}), "accelerate").refused
    assert [one.message for one in found] == [
        "not yet: mesh.dp_replicate: accelerate has copies of shards with FSDP 2 alone"]


@pytest.mark.parametrize(("name", "key"), [("trl-ddp", "accelerate"), ("trl-deepspeed", "deepspeed")])
def test_what_the_trainer_cannot_say_is_refused(name: str, key: str) -> None:
    made = convert(of_folder(name, training__loss="liger"), key)
    assert "makes no whole logits" in made.refused[0].message
