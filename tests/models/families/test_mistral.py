"""Mistral: published counts, the window and what its mask costs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention, Embedding
from simcore.models.graph import ModelGraph, build, model_config
from simcore.results.report import Report
from simcore.simulate import simulate


def graph(preset: str = "mistral-7b-v0.1", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [
    ("mistral-7b-v0.1", 7_241_732_096), ("mistral-7b-v0.3", 7_248_023_552), ("mistral-nemo-12b", 12_247_782_400)])
def test_published_counts(preset: str, count: int) -> None:
    """As the model cards' safetensors say."""
    assert graph(preset).count() == count


def test_all_layers_slide_or_none_does() -> None:
    sliding, whole = graph(), graph(sliding_window=None)
    for made, window in ((sliding, 4096), (whole, 0)):
        assert made.kinds[1].branches[0].block == Attention(4096, 32, 8, 128, rotary=True, window=window)
        assert made.kinds[0].block == Embedding(32000, 4096, 128, window=window)
    left_out = {k: v for k, v in model_config("mistral-7b-v0.1", None, "model").items() if k != "sliding_window"}
    assert build(left_out, "hf").architecture == sliding.architecture


def ran(framework: str, mesh: dict[str, int], window: int | None, **more: Any) -> Report:
    changed = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 512,
               "vocab_size": 512, "num_hidden_layers": 2, "sliding_window": window}
    model = {"config": "mistral-7b-v0.1", "overrides": changed}
    return simulate(small.scenario(framework, mesh, microbatches=1, model=model, seq_len=256, **more))


def peak(report: Report) -> int:
    assert report.status == "ok", report.problems
    peak = report.ranks[0].peak
    assert peak is not None
    return peak.allocated_bytes


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_as_many_tokens_as_the_window_need_a_mask(framework: str, mesh: dict[str, int]) -> None:
    """One fewer do not: torch's own causal attention sees them all (`_ignore_causal_mask_sdpa`)."""
    causal = peak(ran(framework, mesh, None))
    assert peak(ran(framework, mesh, 257)) == causal
    assert peak(ran(framework, mesh, 256)) > causal


def test_flash_attention_needs_none() -> None:
    flash = {"options": {"attn_implementation": "flash_attention_2"}}
    assert peak(ran("fsdp2", {"dp_shard": 2}, 128, **flash)) == peak(ran("fsdp2", {"dp_shard": 2}, None, **flash))


def test_megatron_runs_it_and_automodel_by_transformers_layers() -> None:
    assert ran("megatron", {"dp_shard": 2}, 128).status == "ok"
    report = ran("automodel", {"dp_shard": 2}, 128)
    assert report.status == "ok"
    assert any(one.what == "implementation" and one.value == "hf" for one in report.assumptions)


@pytest.mark.parametrize(("changed", "told"), [
    ({"sliding_window": 0}, "sliding_window: expected an integer from 1"), ({"hidden_act": "gelu"}, "hidden_act"),
    ({"num_key_value_heads": 7}, "expected a divisor of 32 heads")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
