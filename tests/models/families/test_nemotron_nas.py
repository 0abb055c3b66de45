"""Llama with searched layers: published counts, missing parts, widths, placement, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention, Mlp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

SUPER, ULTRA = "llama-3.3-nemotron-super-49b", "llama-3.1-nemotron-ultra-253b"
BLOCKS: list[dict[str, Any]] = [
    {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 1.3125, "no_op": False}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 0.5}},
    {"attention": {"no_op": True}, "ffn": {"no_op": True}},
    {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
]
SMALL: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 8, "vocab_size": 512, "num_hidden_layers": 4,
                         "block_configs": BLOCKS}


def graph(preset: str = SUPER, **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [(SUPER, 49_867_145_216), (ULTRA, 253_401_268_224)])
def test_published_counts(preset: str, count: int) -> None:
    """As the model cards' safetensors say: 49.9 B and 253 B."""
    assert graph(preset).count() == count


def test_parts_are_missing_and_widths_are_rounded_up() -> None:
    """Counted by hand: 256 columns, heads of 32; 2 x 1.3125 x 256 / 3 = 224, 85: both become 256."""
    made = graph(**SMALL)
    assert [layer.path for layer in made.layers if made.kinds[layer.kind].block is None] == [
        "model.layers.0", "model.layers.1", "model.layers.3"]
    blocks = [[b.block for b in kind.branches] for kind in made.kinds if kind.branches]
    assert blocks == [[Attention(256, 8, 2, 32, rotary=True), Mlp(256, 256)], [Mlp(256, 256)],
                      [Attention(256, 8, 4, 32, rotary=True)]]
    assert made.count("attention") == 256 * 256 * (2 + 2 / 4) + 256 * 256 * (2 + 2 / 2)
    assert made.count("norms") == 5 * 256
    assert [t.name for t in made.tensors[2]][-1] == "post_attention_layernorm.weight"


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_it_runs(framework: str, mesh: dict[str, int]) -> None:
    report = simulate(small.scenario(framework, mesh, model={"config": SUPER, "overrides": SMALL}))
    assert report.status == "ok", report.problems
    parts = 2 if framework in ("fsdp2", "zero3") else 1
    assert sum(part.num_params for part in report.ranks[0].at_rest.values()) * parts == graph(**SMALL).count()


def test_megatron_refuses_it_by_name() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, model={"config": SUPER, "overrides": SMALL}))
    assert "not yet: nemotron-nas in Megatron's layers" in report.problems[0].message


def with_first(**part: Any) -> dict[str, Any]:
    return {**SMALL, "block_configs": [{**BLOCKS[0], **part}, *BLOCKS[1:]]}


@pytest.mark.parametrize(("changed", "told"), [
    ({"block_configs": None}, "block_configs: expected a list of blocks"),
    ({**SMALL, "num_hidden_layers": 5}, "expected at most the 4 of block_configs, got 5"),
    (with_first(ffn=3), "layer 0: ffn: expected a mapping, got 3"),
    (with_first(ffn={"ffn_mult": 0}), "layer 0: ffn_mult: expected a number above 0, got 0"),
    (with_first(ffn={"ffn_mult": 1e-9}), "layer 0: ffn_mult: 1e-09 makes an MLP of no width"),
    (with_first(attention={"n_heads_in_group": 3}), "layer 0: n_heads_in_group: expected a divisor of 8 heads, got 3"),
    (with_first(attention={"replace_with_linear": True}), r"layer 0: attention\.replace_with_linear: not modelled yet"),
    (with_first(attention={"n_heads_in_group": 8, "window_length": 64}), "window_length: not modelled yet")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
