"""Bamba: the published count, where attention is, placement, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention, Mamba2, Mlp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 3,
                         "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_indices": [1],
                         "mamba_n_heads": 8, "mamba_d_state": 32}


def graph(**changed: Any) -> ModelGraph:
    return build(model_config("bamba-9b", changed, "model"), "hf")


def test_the_published_count() -> None:
    """9.78 B, as the model card says; three layers of 32 have attention."""
    assert graph().count() == 9_780_235_392
    assert graph().architecture.pattern == "M" * 9 + ("*" + "M" * 8) * 2 + "*" + "M" * 4


def test_mixer_and_mlp() -> None:
    mamba, attention = graph().kinds[1:3]
    assert [branch.block for branch in mamba.branches] == [Mamba2(4096, 128, 64, 1, 128, 4, 256), Mlp(4096, 14336)]
    assert attention.branches[0].block == Attention(4096, 32, 8, 128, rotary=True, rotated=64)


def test_heads_of_a_size_that_is_worked_out() -> None:
    assert graph(mamba_d_head="auto").architecture == graph().architecture
    assert graph(attn_layer_indices=None).count("attention") == 0


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_it_is_placed(framework: str, mesh: dict[str, int]) -> None:
    made, parts = graph(**SMALL), 2 if framework in ("fsdp2", "zero3") else 1
    rest = small.plan_of(framework, mesh, model={"config": "bamba-9b", "overrides": SMALL}).at_rest()
    assert {name: part.num_params * parts for name, part in rest.items()} == {
        name: made.count(name) for name in ("embedding", "mlp", "norms", "mamba", "attention", "lm_head")}


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_it_runs(framework: str, mesh: dict[str, int], recompute: str) -> None:
    report = simulate(small.scenario(framework, mesh, model={"config": "bamba-9b", "overrides": SMALL},
                                     recompute=recompute))
    assert report.status == "ok", report.problems
    assert report.time is not None
    assert report.time.step_s > 0


def test_adapters_go_by_module_names() -> None:
    """Rank 8: two Mamba layers' input projections, one layer's queries."""
    lora: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "target_modules": ["in_proj", "q_proj"]}}
    rest = small.plan_of("fsdp2", {}, model={"config": "bamba-9b", "overrides": SMALL}, **lora).at_rest()
    assert rest["adapters"].num_params == 8 * (2 * (256 + 2 * 512 + 2 * 32 + 8) + 2 * 256)


@pytest.mark.parametrize(("changed", "told"), [
    ({"attention_bias": True}, "attention_bias: not modelled yet"), ({"mlp_bias": True}, "mlp_bias: not modelled yet"),
    ({"z_loss_coefficient": 0.1}, "z_loss_coefficient: not modelled yet"),
    ({"attn_layer_indices": 3}, "attn_layer_indices: expected a list of layer numbers, got 3"),
    ({"mamba_n_groups": 3}, "mamba_n_groups: expected a divisor of 128 heads"),
    ({"mamba_n_heads": 100}, "mamba_n_heads: expected mamba_n_heads x mamba_d_head = mamba_expand x hidden_size")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    fields = {**model_config("bamba-9b", None, "model"), **changed}
    with pytest.raises(InputError, match=told):
        build(fields, "hf")
