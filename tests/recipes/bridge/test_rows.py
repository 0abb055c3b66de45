"""Settings that are refused, or change what is run by little, and variables of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import NANO, imported


@pytest.mark.parametrize(("override", "told"), [
    ("model.hidden_size=1024", "another one than that of the model"), ("model.hidden_dropout=0.1", "another one than"),
    ("model.attention_dropout=0.1", "another one than"),
    ("dist.use_torch_fsdp2=true", "PyTorch's FSDP2"), ("mixed_precision.fp32=true", "training in fp32"),
    ("model.deallocate_pipeline_outputs=false", "outputs of stages that stay")])
def test_what_changes_the_answer_and_is_not_modelled_is_refused(tmp_path: Path, override: str, told: str) -> None:
    found = imported(tmp_path, f"qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config {override}")
    (problem,) = found.refused
    assert problem.message.startswith(f"not yet: {override.partition('=')[0]}: ")
    assert told in problem.message


@pytest.mark.parametrize(("override", "kind", "why"), [
    ("dist.use_tp_pp_dp_mapping=true", "not modelled", "another order"),
    ("dist.use_tp_pp_dp_mapping=false", "no effect", "the default"),
    ("train.empty_unused_memory_level=2", "not modelled", "cached blocks"),
    ("model.use_mamba_mem_eff_path=false", "not modelled", "which keep more"),
    ("env_vars.ODD=1", "not modelled", "this reader does not know"),
    ("env_vars.NCCL_ALGO=Ring", "not modelled", "repeat bit by bit"),
    ("model.calculate_per_token_loss=true", "no effect", "by what the loss is divided"),
    ("env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,graph_capture_record_stream_reuse:True", "not modelled",
     "within a capture")])
def test_small_settings_and_variables_say_what_becomes_of_them(tmp_path: Path, override: str, kind: str,
                                                               why: str) -> None:
    key = override.partition("=")[0]
    (left,) = (one for one in imported(tmp_path, f"{NANO} {override}").left if one.key.startswith(key))
    assert (left.kind, why in left.why) == (kind, True)
