"""Ranks that share sequences under DeepSpeed, as accelerate's launcher asks for them: `sp_size`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

AT = "parallelism_config_"
RECIPE: dict[str, Any] = {"model_name_or_path": "llama-3.2-3b", "dtype": "bfloat16", "dataset_name": "some/answers",
                          "attn_implementation": "flash_attention_2", "per_device_train_batch_size": 2,
                          "gradient_accumulation_steps": 4}
SHARED: dict[str, Any] = {f"{AT}sp_size": 2, f"{AT}dp_shard_size": 2, f"{AT}sp_backend": "deepspeed",
                          f"{AT}sp_seq_length_is_variable": True, f"{AT}sp_attn_implementation": "flash_attention_2"}
LAUNCH: dict[str, Any] = {
    "distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 4, "parallelism_config": SHARED,
    "deepspeed_config": {"zero_stage": 3, "seq_parallel_communication_data_type": "bf16"}}
JSON: dict[str, Any] = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"},
                        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(*values: dict[str, Any]) -> Imported:
    names = ["mine.yaml", "launch.yaml", "zero.json"][:len(values)]
    for name, one in zip(names, values, strict=True):
        Path(name).write_text(json.dumps(one, indent=1), "utf-8")
    return import_recipe(names, Answers.of_options(None, None, "dgx-h100"))


def test_ranks_that_share_sequences_become_the_mesh_and_the_batch() -> None:
    """TRL's examples/accelerate_configs/alst_ulysses_4gpu.yaml at f2cd5771."""
    for stage, axis in ((3, "dp_shard"), (0, "dp_replicate")):
        launch = LAUNCH | {"deepspeed_config": LAUNCH["deepspeed_config"] | {"zero_stage": stage}}
        found = imported(RECIPE, launch)
        found.expect_complete()
        made = parse_scenario(found.document())
        assert (made.framework, made.mesh.cp, getattr(made.mesh, axis)) == (f"zero{stage}", 2, 2)
        assert made.training.global_batch_size == 2 * 2 * 4
        assert check(made).problems == ()


def test_what_upstream_stops_at_is_told() -> None:
    without = {key: value for key, value in RECIPE.items() if key != "attn_implementation"}
    for told, files in (
            ("does not match model config attn_implementation='sdpa'", (without, LAUNCH)),
            ("not supported with DeepSpeed sequence parallelism", (RECIPE | {"loss_type": "dft"}, LAUNCH)),
            ("not supported with DeepSpeed sequence parallelism", (RECIPE | {"label_smoothing_factor": 0.1}, LAUNCH)),
            ("dp_replicate_size x dp_shard_size is 1, and 4 ranks", (RECIPE, LAUNCH | {
                "parallelism_config": {key: SHARED[key] for key in SHARED if "dp_shard" not in key}})),
            ("sp of accelerate's parallelism_config", (RECIPE, LAUNCH | {
                "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}})),
            ("around attention by flash_attention_3", (RECIPE, LAUNCH | {
                "parallelism_config": SHARED | {f"{AT}sp_attn_implementation": "flash_attention_3"}})),
            ("4 ranks that share sequences, without accelerate's sp_size", (RECIPE, LAUNCH | {
                "deepspeed_config": {"deepspeed_config_file": "zero.json"}}, JSON | {"sequence_parallel_size": 4}))):
        found = imported(*files)
        problems = [problem.message for problem in (*found.refused, *found.wrong)]
        assert any(told in message for message in problems), (told, problems)


def test_a_file_of_deepspeed_says_what_it_reduces_in() -> None:
    named = LAUNCH | {"deepspeed_config": {"deepspeed_config_file": "zero.json"}}
    for stage, dtype, said in ((3, "fp32", None), (2, "bf16", None), (3, "bf16", "bf16")):  # stage 2 has fp32 always
        values = JSON | {"zero_optimization": {"stage": stage}, "seq_parallel_communication_data_type": dtype,
                         "sequence_parallel_size": 2}
        found = imported(RECIPE, named, values)
        found.expect_complete()
        made = parse_scenario(found.document())
        assert (made.mesh.cp, made.framework_options.get("seq_parallel_communication_data_type")) == (2, said)
