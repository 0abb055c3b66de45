"""Recipes of `trl grpo`: who generates, how many sequences, which model they are compared with; what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.trl.test_recipe import FSDP2, RECIPE, ZERO, imported

GRPO: dict[str, Any] = {**RECIPE, "bf16": True, "num_generations": 8, "max_completion_length": 1024,
                        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8,
                        "reward_funcs": ["accuracy_reward"]}
VLLM: dict[str, Any] = {**GRPO, "use_vllm": True, "vllm_max_model_length": 2048}
pytestmark = pytest.mark.usefixtures("_folder")


@pytest.fixture
def _folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def blocks(*values: dict[str, Any], gpus: int | None = 8) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    found = imported(*values, gpus=gpus).values
    return found["rl"], found["generation"], found["training"]


def test_a_policy_without_vllm_generates_itself() -> None:
    """32 sequences of 8 ranks accumulate 8 times; nothing is trained on twice, so that no pass of its own is made."""
    found = imported(GRPO)
    assert [question.key for question in found.questions if question.key.startswith("training")] == [
        "training.seq_len"]
    rl, generation, training = blocks({**GRPO, "vllm_max_model_length": 2048})
    assert generation == {"engine": "transformers"}
    assert rl == {"trainer": "trl", "prompt_tokens": 1024, "generations": 8, "prompts": 32, "reference": "none",
                  "on_policy_ratio": True}
    assert (training["seq_len"], training["micro_batch_size"], training["global_batch_size"]) == (2048, 4, 256)


def test_a_generation_batch_is_said_in_one_of_two_ways() -> None:
    for said, prompts in (({"steps_per_generation": 16}, 64), ({"generation_batch_size": 128}, 16)):
        rl, _, _ = blocks({**VLLM, **said})
        assert rl["prompts"] == prompts, said
    both = imported({**VLLM, "steps_per_generation": 16, "generation_batch_size": 128})
    assert any("can not be both configured" in problem.message for problem in both.wrong)
    for said, told in (({"generation_batch_size": 48}, "must be divisible by the global batch size (32)"),
                       ({"num_generations": 7}, "must be divisible by num_generations (7)"),
                       ({"num_generations": 1}, "requires at least 2 generations")):
        assert any(told in problem.message for problem in imported({**VLLM, **said}).wrong), said


def test_old_log_probabilities_are_made_where_sequences_are_older_than_a_step() -> None:
    """vLLM's are corrected by the policy's own, unless that is switched off."""
    plain = {**GRPO, "vllm_max_model_length": 2048}
    for values, left_out in ((plain, True), ({**plain, "steps_per_generation": 16}, False),
                             ({**plain, "num_iterations": 2}, False), (VLLM, False),
                             ({**VLLM, "vllm_importance_sampling_correction": False}, True)):
        rl, _, _ = blocks(values)
        assert rl.get("on_policy_ratio", False) is left_out, values


def test_vllm_is_on_the_gpus_that_train_or_a_server() -> None:
    _, generation, _ = blocks({**VLLM, "vllm_enable_sleep_mode": True, "vllm_tensor_parallel_size": 2})
    assert generation == {"max_model_len": 2048, "gpu_memory_utilization": 0.3, "tp": 2, "sleep_level": 2}
    _, generation, _ = blocks({**VLLM, "vllm_mode": "server", "vllm_server_host": "0.0.0.0"})  # noqa: S104 - a value
    assert generation == {"max_model_len": 2048, "colocated": False, "tp": 1}
    rl, generation, _ = blocks({name: value for name, value in VLLM.items() if name != "vllm_max_model_length"})
    assert generation["max_model_len"] == 131072
    assert "prompt_tokens" not in rl


def test_a_reference_model_is_there_with_a_weight_of_its_divergence() -> None:
    """Under FSDP 2 the policy alone is upcast."""
    assert blocks({**VLLM, "beta": 0.0})[0]["reference"] == "none"
    rl, _, _ = blocks({**VLLM, "beta": 0.04, "sync_ref_model": True}, FSDP2, gpus=None)
    assert (rl["reference"], rl["sync_reference"], rl["reference_params"]) == ("device", True, "bf16")
    rl, _, _ = blocks({**VLLM, "beta": 0.04, "use_peft": True}, FSDP2, gpus=None)
    assert "reference_params" not in rl
    rl, _, _ = blocks({**VLLM, "beta": 0.04, "deepspeed": "zero.json"}, ZERO)
    assert "reference_params" not in rl


@pytest.mark.parametrize(("said", "told"), [
    ({"reward_model_name_or_path": "some/reward"}, "a reward model beside the policy"),
    ({"cast_lm_head_to_fp32": True}, "a head in fp32"),
    ({"vllm_device": "auto"}, "GRPO of a release before TRL 0.18.0"),
    ({"pass_rate_min": 0.1}, "a script that draws a data set"),
    ({"max_prompt_length": 512, "use_liger_loss": True}, "Liger's own loss of GRPO"),
    ({"use_vllm": False, "use_transformers_continuous_batching": True}, "continuous batching"),
    ({"use_vllm": False, "cache_implementation": "static"}, "keys and values kept as static"),
    ({"vllm_model_impl": "transformers"}, "layers of vLLM by transformers")])
def test_what_is_not_described_is_refused(said: dict[str, Any], told: str) -> None:
    assert any(told in problem.message for problem in imported({**VLLM, **said}).refused), said


def test_wrong_values_are_told() -> None:
    liger = {"max_prompt_length": 512, "cast_lm_head_to_fp32": False, "use_liger_kernel": True}
    for said, told in (({"vllm_mode": "elsewhere"}, "vllm_mode must be either"), (liger, "Liger's own loss of GRPO"),
                       ({"loss_type": "ppo"}, "Unknown loss"),
                       ({"vllm_max_model_length": 1024}, "no room for a prompt beside an answer of 1,024")):
        assert any(told in problem.message for problem in imported({**VLLM, **said}).wrong), said


def test_another_trainer_that_generates_is_no_grpo() -> None:
    found = imported({**VLLM, "normalize_advantages": True})
    assert "rl" not in found.values
    assert found.refused


OLDER: dict[str, Any] = {name: value for name, value in GRPO.items() if name != "dtype"} | {
    "torch_dtype": "bfloat16", "max_prompt_length": 256, "use_vllm": True}


@pytest.mark.parametrize(("said", "version", "reference", "on_policy"), [
    ({"dataset_prompt_column": "problem"}, "0.18.0", "device", True),
    ({"generation_kwargs": {"top_k": 1}}, "0.19.1", "none", True),
    ({}, "0.24.0", "none", False),
    ({"importance_sampling_level": "token", "dataset_prompt_column": "problem"}, "0.24.0", "none", False),
    ({"cast_lm_head_to_fp32": False, "dataset_prompt_column": "problem"}, "0.27.2", "none", False)])
def test_a_recipe_is_of_a_release_that_has_all_of_its_arguments(
        said: dict[str, Any], version: str, reference: str, on_policy: bool) -> None:
    """A server is the default of all of them; 0.18 and 0.19 correct nothing that vLLM generates."""
    rl, generation, training = blocks({**OLDER, **said})
    assert (rl["version"], rl["reference"], rl.get("on_policy_ratio", False)) == (version, reference, on_policy)
    assert (training["seq_len"], rl["prompt_tokens"]) == (1280, 256)
    assert generation["colocated"] is False


def test_defaults_of_an_older_release() -> None:
    """Prompts are cut at 512 tokens, answers end at 256; a depth of sleep of its own; bf16 is asked for, or is off."""
    given = {name: value for name, value in OLDER.items() if name not in ("max_prompt_length", "max_completion_length")}
    assert blocks(given)[2]["seq_len"] == 768
    colocated = {**OLDER, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
    assert blocks(colocated)[1] == {"gpu_memory_utilization": 0.3, "sleep_level": 1}
    assert blocks({**colocated, "cast_lm_head_to_fp32": False})[1]["sleep_level"] == 2
    plain = {name: value for name, value in OLDER.items() if name not in ("bf16", "torch_dtype")}
    for said, compute in (({"dataset_prompt_column": "problem"}, "fp32"), ({}, "bf16")):
        assert blocks({**plain, **said})[2]["precision"]["compute"] == compute
    again = {**OLDER, "dataset_prompt_column": "problem", "num_iterations": 2}
    assert "on_policy_ratio" not in blocks(again)[0]
