"""Scenarios of torchtitan's layers become its job configurations; what none says is refused by its key."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from recipes.torchtitan.scenario_text import WRITTEN
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.recipes.conversion.converting import convert
from simcore.recipes.converted import Converted

SCENARIO = WRITTEN.replace("global_batch_size: 48", "global_batch_size: 96")


def scenario(**settings: Any) -> Scenario:
    document = parse_document(SCENARIO, "mine.yaml")
    for key, value in settings.items():
        document = document.with_value(tuple(key.split("__")), value, "")
    return parse_scenario(document)


def written(**settings: Any) -> Converted:
    made = convert(scenario(**settings), "torchtitan")
    made.expect_complete()
    return made


def test_a_configuration_is_what_a_person_would_write() -> None:
    made = written()
    assert made.text == """\
[model]
name = "qwen3"
flavor = "14B"
hf_assets_path = "./assets/hf/your-tokenizer"  # yours: a tokenizer

[training]
dataset = "c4"  # yours
seq_len = 256
local_batch_size = 3
global_batch_size = 96
dtype = "float32"
mixed_precision_reduce = "float32"
mixed_precision_param = "bfloat16"

[parallelism]
data_parallel_shard_degree = 8
data_parallel_replicate_degree = 2
fsdp_reshard_after_forward = "always"

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
early_stop = true

[optimizer]
name = "AdamW"
implementation = "foreach"
"""
    assert made.launch == "torchrun --nnodes 2 --nproc-per-node 8 -m torchtitan.train --job.config_file mine.toml\n"


def staged(ranks: int, stages: int, schedule: str = "1f1b") -> Scenario:
    """16 microbatches of one sequence on pipeline ranks, each with a number of stages."""
    return scenario(model="llama-3.1-8b", mesh={"dp_shard": 2, "pp": ranks}, training__micro_batch_size=1,
                    training__global_batch_size=32, training__pipeline={"schedule": schedule, "virtual_stages": stages},
                    framework_options={})


@pytest.mark.parametrize(("stages", "schedule", "name", "layers"), [
    (1, "1f1b", "1F1B", None), (2, "1f1b", "Interleaved1F1B", None),
    (3, "1f1b", "Interleaved1F1B", 6)])
def test_stages_of_a_rank_are_a_schedule_and_layers_of_a_stage(stages: int, schedule: str, name: str,
                                                               layers: int | None) -> None:
    """34 layers with embedding and head in stages of 6 are 6 stages, 3 a rank."""
    made = convert(staged(2, stages, schedule), "torchtitan")
    made.expect_complete()
    values = tomllib.loads(made.text)
    assert values["training"]["local_batch_size"] == 16
    assert values["parallelism"]["pipeline_parallel_schedule"] == name
    assert values["parallelism"].get("pipeline_parallel_layers_per_stage") == layers


def test_fp8_is_a_converter() -> None:
    values = tomllib.loads(written(training__precision={"compute": "fp8"}, framework_options={
        "fp8_all_gather": True, "compile": "model"}).text)
    assert values["model"]["converters"] == ["quantize.linear.float8"]
    assert values["quantize"]["linear"]["float8"] == {"filter_fqns": ["output"], "enable_fsdp_float8_all_gather": True}
    assert values["compile"] == {"enable": True, "components": ["model"]}


def test_the_loss_alone_is_compiled() -> None:
    values = tomllib.loads(written(framework_options={"compile": "loss"}).text)
    assert values["compile"] == {"enable": True, "components": ["loss"]}


def test_scales_are_a_recipe_of_the_converter() -> None:
    values = tomllib.loads(written(training__precision={"compute": "fp8"}, framework_options={
        "fp8_recipe": "rowwise", "compile": "model"}).text)
    assert values["quantize"]["linear"]["float8"] == {"filter_fqns": ["output"], "recipe_name": "rowwise"}


def test_what_the_release_does_by_itself_is_no_key() -> None:
    assert "wrap" not in written(framework_options={"wrap": "separate_embedding_head"}).text


@pytest.mark.parametrize(("settings", "told"), [
    ({"model": {"config": "qwen3-14b", "overrides": {"num_hidden_layers": 39}}}, "no flavor of torchtitan 0.2.2"),
    ({"framework_options__wrap": "layers_root"}, "framework_options.wrap"),
])
def test_what_no_configuration_says_is_refused_by_its_key(settings: dict[str, Any], told: str) -> None:
    assert told in "; ".join(one.message for one in convert(scenario(**settings), "torchtitan").refused)


def test_stages_that_no_layers_make_are_refused() -> None:
    found = convert(staged(4, 4), "torchtitan").refused
    assert "no number of layers a stage makes 16 stages" in found[0].message


def test_gpt_oss_has_its_one_attention_without_being_told() -> None:
    """`attn: flex` says nothing that its layers do not do anyway; notes on a layout are no keys of a recipe."""
    made = written(model="gpt-oss-20b", mesh={"dp_shard": 8})
    assert tomllib.loads(made.text)["model"]["flavor"] == "20b"
    assert made.text == written(model="gpt-oss-20b", mesh={"dp_shard": 8}, framework_options__attn="flex").text


def test_what_is_refused_is_refused_by_keys_alone() -> None:
    """Also where the recipe is not read back: notes such as `rows of experts` are no keys."""
    found = convert(scenario(model={"config": "gpt-oss-20b", "overrides": {"num_hidden_layers": 3}},
                             mesh={"dp_shard": 8}), "torchtitan").refused
    assert [one.message for one in found] == [
        "not yet: model: no flavor of torchtitan 0.2.2 that is simulated has these sizes"]
