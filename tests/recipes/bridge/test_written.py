"""A scenario becomes the nearest recipe of Bridge by name, with as few overrides as it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.looked_into import value
from recipes.round_trip import read_back
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.conversion.converting import convert
from simcore.recipes.importing import import_recipe

NANO = """\
name: mine
model: nemotron-3-nano-30b-a3b
framework: megatron
framework_version: main 2026-08-22
topology: dgx-h100
mesh: {dp_shard: 8, ep: 8, etp: 1}
training:
  seq_len: 2048
  global_batch_size: 128
  lengths: packed
framework_options: {moe_token_dispatcher_type: flex}
"""


def scenario(text: str) -> Scenario:
    return parse_scenario(parse_document(text, "mine.yaml"))


def test_a_recipe_as_it_is_has_no_overrides() -> None:
    made = convert(scenario(f"{NANO}environment: {{expandable_segments: true}}\n"), "bridge")
    made.expect_complete()
    assert made.text.endswith("\ntorchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe "
                              "nemotron_3_nano_sft_config\n")


def test_the_allocator_of_the_recipe_is_taken_back() -> None:
    asked = scenario(NANO)
    made = convert(asked, "bridge")
    made.expect_complete()
    assert made.text.splitlines()[1:] == ["  env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"]
    assert read_back(made, asked).environment.expandable_segments is False


def test_what_differs_is_an_override() -> None:
    asked = scenario(NANO.replace("ep: 8", "ep: 4").replace("2048", "4096")
                     + "environment: {expandable_segments: true}\n")
    made = convert(asked, "bridge")
    made.expect_complete()
    assert made.text.splitlines()[2:] == [
        "  model.expert_model_parallel_size=4 \\", "  dataset.seq_length=4096"]
    assert read_back(made, asked).mesh.ep == 4


def test_options_of_buffers_are_written() -> None:
    asked = scenario(NANO.replace("moe_token_dispatcher_type: flex",
                                  "moe_token_dispatcher_type: flex, nccl_ub: true, num_buckets: 9"))
    made = convert(asked, "bridge")
    made.expect_complete()
    assert {"  ddp.nccl_ub=true \\", "  ddp.num_buckets=9 \\"} <= set(made.text.splitlines())
    options = read_back(made, asked).framework_options
    assert (options["nccl_ub"], options["num_buckets"]) == (True, 9)


def test_megatron_fsdp_has_a_format_of_gradients_of_its_own() -> None:
    text = NANO.replace("framework: megatron", "framework: megatron_fsdp").replace(
        "moe_token_dispatcher_type: flex", "moe_token_dispatcher_type: alltoall, nccl_ub: true, "
        "fsdp_all_gather_in_start_param_sync: false")
    for grads, sent in (("fp32", "bf16"), ("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "auto")):
        asked = scenario(text.replace("lengths: packed", "lengths: packed\n  precision: "
                                      f"{{main_grads: {grads}, grad_reduce: {sent}}}"))
        made = convert(asked, "bridge")
        made.expect_complete()
        assert ("ddp.megatron_fsdp_main_grads_dtype=fp32" in made.text) == (grads == "fp32")
        assert ("ddp.megatron_fsdp_grad_comm_dtype=bf16" in made.text) == (sent == "bf16" != grads)
        assert "ddp.fsdp_all_gather_in_start_param_sync=false" in made.text
        assert read_back(made, asked).training.precision.main_grads == grads


def test_adapters_take_a_recipe_with_adapters() -> None:
    made = convert(scenario(NANO.replace("  lengths", "  method: lora\n  lora: {rank: 16}\n  lengths")), "bridge")
    made.expect_complete()
    assert "--recipe nemotron_3_nano_peft_config" in made.text
    assert "peft.dim=16" in made.text


def test_a_model_without_a_recipe_is_refused() -> None:
    made = convert(scenario(NANO.replace("nemotron-3-nano-30b-a3b", "smollm2-360m").replace(", ep: 8, etp: 1", "")
                            .replace("framework_options: {moe_token_dispatcher_type: flex}", "")), "bridge")
    assert made.refused[0].message.startswith("not yet: model: smollm2-360m: Bridge has no recipe of this model")


def test_the_released_version_is_not_that_of_the_recipes() -> None:
    made = convert(scenario(NANO.replace("main 2026-08-22", "auto")), "bridge")
    assert [one.message.partition(":")[2].partition(":")[0] for one in made.refused] == [" framework_version"]


def test_processes_of_the_launch_go_before_the_name_of_the_recipe() -> None:
    asked = scenario(NANO.replace("dp_shard: 8", "dp_shard: 16"))
    made = convert(asked, "bridge")
    assert read_back(made, asked).world_size == 16


def test_rows_are_the_models_own_in_a_recipe_of_pretraining() -> None:
    """Its tokenizer counts otherwise: 32,000 tokens of the null tokenizer."""
    asked = scenario(NANO.replace("nemotron-3-nano-30b-a3b", "llama-3-8b").replace(", ep: 8, etp: 1", "").replace(
        "  lengths: packed\nframework_options: {moe_token_dispatcher_type: flex}\n", ""))
    made = convert(asked, "bridge")
    made.expect_complete()
    assert "_pretrain_" in made.text
    assert "tokenizer.use_tokenizer_vocab_size=false" in made.text
    assert read_back(made, asked).model_name == "meta-llama/Meta-Llama-3-8B"


def test_layers_on_the_host_are_read_and_written(tmp_path: Path) -> None:
    name = "llama31_405b_pretrain_128gpu_b300_bf16_config"
    (tmp_path / "run.sh").write_text(f"python scripts/training/run_recipe.py --recipe {name}\n", encoding="utf-8")
    found = import_recipe([str(tmp_path / "run.sh")], Answers.of_options(None, None, ""))
    found.expect_complete()
    assert value(found, "training.offload.activations") == "host"
    assert value(found, "framework_options.cpu_offloading_num_layers") == 40
    asked = parse_scenario(found.document())
    made = convert(asked, "bridge")
    made.expect_complete()
    assert name in made.text
    assert "offloading" not in made.text
    fewer = parse_scenario(found.document().with_value(("framework_options", "cpu_offloading_num_layers"), 39, "here"))
    made = convert(fewer, "bridge")
    made.expect_complete()
    assert "model.cpu_offloading_num_layers=39" in made.text
    assert read_back(made, fewer).framework_options["cpu_offloading_num_layers"] == 39


@pytest.mark.parametrize("name", ["llama3_70b_pretrain_64gpu_h100_fp8cs_config",
                                  "deepseek_v3_pretrain_1024gpu_h100_fp8sc_config"])
def test_a_layout_of_the_pipeline_keeps_its_number_of_virtual_stages(tmp_path: Path, name: str) -> None:
    """Bridge overlaps exchanges of stages by it before a layout says it (training/comm_overlap.py:429)."""
    (tmp_path / "run.sh").write_text(f"python scripts/training/run_recipe.py --recipe {name}\n", encoding="utf-8")
    found = import_recipe([str(tmp_path / "run.sh")], Answers.of_options(None, None, ""))
    made = convert(parse_scenario(found.document()), "bridge")
    made.expect_complete()
    assert f"--recipe {name}" in made.text
    assert "virtual_pipeline_model_parallel_size" not in made.text


def test_another_layout_of_the_pipeline_has_its_own_number_of_virtual_stages(tmp_path: Path) -> None:
    name = "llama3_70b_pretrain_64gpu_h100_fp8cs_config"
    (tmp_path / "run.sh").write_text(f"python scripts/training/run_recipe.py --recipe {name}\n", encoding="utf-8")
    found = import_recipe([str(tmp_path / "run.sh")], Answers.of_options(None, None, ""))
    path = ("framework_options", "pipeline_model_parallel_layout")
    for layout, chunks in (("Et*5|(t*5|)*14t*5L", "2"), ("Et*10|(t*10|)*6t*10L", "null")):
        asked = parse_scenario(found.document().with_value(path, layout, "here"))
        made = convert(asked, "bridge")
        made.expect_complete()
        assert f"model.virtual_pipeline_model_parallel_size={chunks} " in made.text
