"""Recipes of LLaMA-Factory's rewrite (`USE_V1`) become scenarios of its own loop; what it does otherwise is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.llamafactory.test_recipe import imported, written
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.simulate import check

FULL: dict[str, Any] = {"model": "Qwen/Qwen3-0.6B", "model_class": "llm", "kernel_config": {"name": "auto"},
                        "quant_config": None, "dist_config": {"name": "fsdp2", "dcp_path": None},
                        "train_dataset": "data/v1_sft_demo.yaml", "micro_batch_size": 2, "cutoff_len": 2048}
WRITTEN = """\
name: mine
model: Qwen/Qwen3-0.6B
implementation: hf
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 8}
training:
  seq_len: 2048
  micro_batch_size: 2
  recompute: full
  loss: log_probs
  precision: {params: fp32, compute: bf16, grad_reduce: fp32}
  optimizer: {name: adamw, implementation: foreach}
framework_options: {reshard_after_forward: true, sync_gradients: every, recompute_by: transformers}
environment: {expandable_segments: true}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def scenario(gpus: int = 8, **more: Any) -> Scenario:
    found = imported({**FULL, **more}, gpus=gpus)
    found.expect_complete()
    made = parse_scenario(found.document())
    assert check(made).problems == ()
    return made


def test_a_recipe_is_the_scenario_that_a_person_would_write() -> None:
    assert scenario() == written(WRITTEN)


def test_rows_without_padding_are_one_of_all_samples() -> None:
    free = scenario(batching_strategy="dynamic_padding_free", flash_attn="flash_attention_2",
                    global_batch_size=64).training
    assert (free.seq_len, free.packed_length, free.lengths, free.micro_batch_size) == (4096, 2048, "packed", 1)
    assert free.global_batch_size == 32
    padded = scenario(batching_strategy="dynamic_batching", global_batch_size=64).training
    assert (padded.seq_len, padded.micro_batch_size, padded.global_batch_size) == (2048, 2, 64)


def test_without_fsdp_nothing_is_cast_to_bf16() -> None:
    """ff6d4d12 `v1/core/base_trainer.py` _shard_model: DDP around a model in fp32, whatever `bf16` says."""
    alone = scenario(dist_config=None, bf16=True)
    assert (alone.framework, alone.training.precision.compute) == ("ddp", "fp32")
    assert scenario(bf16=False).training.precision.compute == "fp32"


def test_parameters_on_the_host_and_copies_of_shards() -> None:
    found = scenario(dist_config={"name": "fsdp2", "offload_params": True}, mp_replicate_size=2)
    assert (found.mesh.dp_replicate, found.mesh.dp_shard) == (2, 4)
    assert found.training.offload.part("params") == ("host", 1)


def test_what_cannot_be_followed_is_refused_by_name() -> None:
    wrong = []
    for more, told in (
            ({"peft_config": {"name": "lora", "r": 16}}, "peft_config.name: a part of the parameters by lora"),
            ({"quant_config": {"name": "bnb"}}, "quant_config.name"),
            ({"optim_config": {"name": "muon", "wd": 0.1}}, "the optimizer by muon"),
            ({"kernel_config": {"name": "liger_kernel"}}, "kernels of LLaMA-Factory's own: liger_kernel"),
            ({"dist_config": {"name": "deepspeed", "config_file": "z.json"}}, "ranks that deepspeed splits"),
            ({"cp_size": 2, "dist_config": None}, "sequences that are split over ranks without FSDP 2"),
            ({"cp_size": 2}, "Sequence parallelism requires flash attention"),
            ({"model_class": "cls"}, "the class cls"),
            ({"model": "llama-3.1-8b"}, "a unit of its own beside a root with the head"),
            ({"batching_strategy": "padding_free"}, "requires `flash_attn: flash_attention_2`"),
            ({"cutoff_length": 8}, "unknown key 'cutoff_length'")):
        found = imported({**FULL, **more})
        messages = [str(one) for one in (*found.refused, *found.wrong, *found.unknown)]
        if not any(told in message for message in messages):
            wrong.append((more, messages))
    assert not wrong


def test_ranks_share_sequences_by_exchanges_around_flash_attention() -> None:
    found = scenario(cp_size=2, cp_mode="ulysses", flash_attn="flash_attention_2")
    assert (found.mesh.cp, found.mesh.dp_shard) == (2, 4)
    assert not check(found).problems


def test_few_tokens_beside_a_wide_model_are_refused() -> None:
    """The model's own loss, which runs while the root is gathered, may then need more than the trainer's."""
    short = parse_scenario(imported({**FULL, "cutoff_len": 128, "micro_batch_size": 1}).document())
    assert "log_probs of 128 tokens" in str(check(short).problems[0])
