"""Mamba-2 alone: published counts, names, placement, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Mamba2
from simcore.models.graph import ModelGraph, build, model_config
from simcore.results.report import Report
from simcore.simulate import simulate


def graph(preset: str = "mamba2-2.7b", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [
    ("mamba2-130m", 128_989_632), ("mamba2-2.7b", 2_702_599_680), ("mamba-codestral-7b", 7_285_403_648)])
def test_published_counts(preset: str, count: int) -> None:
    """As their model cards say: 130M, 2.7B, 7.29B."""
    assert graph(preset).count() == count


def test_a_layer_is_a_norm_and_a_mixer() -> None:
    """5120 columns inside, one group of B and C of 128; nothing is called attention or MLP."""
    made = graph()
    assert made.kinds[1].branches[0].block == Mamba2(2560, 80, 64, 1, 128, 4, 256)
    assert small.components(made) == ("embedding", "norms", "mamba")
    assert [t.name for t in made.tensors[1]][:4] == ["norm.weight", "mixer.dt_bias", "mixer.A_log", "mixer.D"]


def test_biases_are_counted_where_they_are_asked_for() -> None:
    plain = graph()
    assert graph(use_bias=True).count() - plain.count() == 64 * (2 * 5120 + 2 * 128 + 80 + 2560)
    assert plain.count() - graph(use_conv_bias=False).count() == 64 * (5120 + 2 * 128)


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_it_is_placed(framework: str, mesh: dict[str, int]) -> None:
    parts = 2 if framework in ("fsdp2", "zero3") else 1
    rest = small.plan_of(framework, mesh, model="mamba2-130m").at_rest()
    assert {name: part.num_params * parts for name, part in rest.items()} == {
        name: graph("mamba2-130m").count(name) for name in ("embedding", "norms", "mamba")}


def ran(framework: str, mesh: dict[str, int], *, wide: bool) -> Report:
    overrides = {"num_hidden_layers": 3, "residual_in_fp32": wide, "vocab_size": 512}
    model = {"config": "mamba2-130m", "overrides": overrides}
    return simulate(small.scenario(framework, mesh, model=model, seq_len=512))


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_a_residual_stream_in_fp32_is_larger(framework: str, mesh: dict[str, int]) -> None:
    """Backward has a gradient of 512 x 768 more twice over, in 4 bytes and not 2."""
    found = []
    for wide in (True, False):
        report = ran(framework, mesh, wide=wide)
        assert report.status == "ok", report.problems
        peak = report.ranks[0].peak
        assert peak is not None
        found.append(peak.by_phase["backward"])
    assert found[0] - found[1] == 2 * 2 * 512 * 768


def test_adapters_go_by_module_names() -> None:
    """Rank 8 on the input projection: 8 x (2 x 1536 + 2 x 128 + 24 + 768) a layer."""
    lora: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "target_modules": ["in_proj"]}}
    rest = small.plan_of("fsdp2", {"dp_shard": 1}, model="mamba2-130m", **lora).at_rest()
    assert rest["adapters"].num_params == 24 * 8 * (2 * 1536 + 2 * 128 + 24 + 768)


def test_megatron_refuses_it() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, model="mamba2-130m"))
    assert "not yet: mamba2 in Megatron's layers" in report.problems[0].message


@pytest.mark.parametrize(("changed", "told"), [
    ({"num_heads": 79}, r"num_heads: expected num_heads x head_dim = expand x hidden_size = 5120, got 5056"),
    ({"n_groups": 3}, "n_groups: expected a divisor of 80 heads, got 3"), ({"hidden_act": "gelu"}, "hidden_act")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
