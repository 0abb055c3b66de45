"""Gemma 2 and 3: published counts, which layers slide, norms behind blocks, placement, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention, Head, Mlp
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 6,
                         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


def graph(preset: str = "gemma-2-2b", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [
    ("gemma-2-2b", 2_614_341_888), ("gemma-2-9b", 9_241_705_984), ("gemma-2-27b", 27_227_128_320),
    ("gemma-3-1b", 999_885_952), ("gemma-3-270m", 268_098_176)])
def test_published_counts(preset: str, count: int) -> None:
    """As the model cards' safetensors say."""
    assert graph(preset).count() == count


def windows(made: ModelGraph) -> list[int]:
    blocks = [made.kinds[layer.kind].branches[0].block for layer in made.layers[1:-3]]
    return [block.window for block in blocks if isinstance(block, Attention)]


def test_some_layers_slide() -> None:
    assert windows(graph(num_hidden_layers=3)) == [4096, 0, 4096]
    assert windows(graph("gemma-3-1b", num_hidden_layers=7)) == [512] * 5 + [0, 512]
    assert windows(graph("gemma-3-1b", num_hidden_layers=3, sliding_window_pattern=2)) == [512, 0, 512]
    types = ["full_attention", "sliding_attention", "full_attention"]
    assert windows(graph(num_hidden_layers=3, layer_types=types)) == [0, 4096, 0]


def test_caps_and_norms_of_heads() -> None:
    second, third = graph().kinds[1].branches[0].block, graph("gemma-3-1b").kinds[1].branches[0].block
    assert second == Attention(2304, 8, 4, 256, rotary=True, window=4096, capped=True)
    assert third == Attention(1152, 4, 1, 256, rotary=True, qk_norm=True, window=512)


def test_four_norms_and_a_scale() -> None:
    made = graph()
    assert [t.name for t in made.tensors[1] if t.component == "norms"] == [
        "input_layernorm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight"]
    assert [(t.name, t.shape, t.is_buffer) for t in made.tensors[0]][1] == ("embed_scale", (), True)


@pytest.mark.parametrize("preset", ["gemma-2-2b", "gemma-3-1b"])
@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
    ("zero3", {"dp_shard": 2})])
def test_it_is_placed(framework: str, mesh: dict[str, int], preset: str) -> None:
    model, parts = {"config": preset, "overrides": SMALL}, 2 if framework in ("fsdp2", "zero3") else 1
    rest = small.plan_of(framework, mesh, model=model).at_rest()
    made = graph(preset, **SMALL)
    assert {name: part.num_params * parts for name, part in rest.items()} == {
        name: made.count(name) for name in ("embedding", "attention", "mlp", "norms")}


def test_scores_below_a_cap_need_a_kernel_that_knows_it() -> None:
    """flash-attn takes the cap as a number, and keeps what it keeps without one."""
    model = {"config": "gemma-2-2b", "overrides": SMALL}
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, model=model))
    assert report.problems[0].message.startswith("not yet: scores below a cap in another attention than eager")
    for name in ("eager", "flash_attention_2"):
        options = {"attn_implementation": name}
        assert simulate(small.scenario("fsdp2", {"dp_shard": 2}, model=model, options=options)).status == "ok"


@pytest.mark.parametrize("framework", ["zero2", "zero3"])
def test_zero_knows_norms_behind_blocks(framework: str) -> None:
    """Its hooks follow the order in which modules are called: `tests/test_truth_zero_families.py`."""
    model = {"config": "gemma-3-1b", "overrides": SMALL}
    assert simulate(small.scenario(framework, {"dp_shard": 2}, model=model)).status == "ok"


def test_tables_of_two_kinds_of_layers() -> None:
    """Layers with a window and whole ones each have their own."""
    both, one = graph("gemma-3-1b"), graph("gemma-3-1b", num_hidden_layers=3)
    assert [made.kinds[0].block.further_dim for made in (both, one, graph())] == [256, 0, 0]  # type: ignore[union-attr]
    assert [kind.tables for kind in both.kinds if kind.branches] == [256, 256]
    assert [kind.block.capped for made in (graph(), both) for kind in made.kinds if isinstance(kind.block, Head)] == [
        True, False]


@pytest.mark.parametrize(("changed", "told"), [
    ({"attention_bias": True}, "attention_bias: not modelled yet"),
    ({"hidden_activation": "gelu"}, "hidden_activation"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention: not modelled yet"),
    ({"layer_types": ["mamba"] * 26}, "layer_types: expected 26")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build({**model_config("gemma-2-2b", None, "model"), **changed}, "hf")


def test_the_first_one_is_llama_with_gelu() -> None:
    made = build(model_config("gemma-7b", {}, "model"), "hf")
    assert [(b.norm, b.block, b.behind) for b in made.kinds[1].branches] == [
        ("input_layernorm", Attention(3072, 16, 16, 256, rotary=True), ""),
        ("post_attention_layernorm", Mlp(3072, 24576, gelu=True), "")]
    assert made.count() == 8_537_680_896
    assert [kind.scaled for kind in made.kinds if kind.name in ("embedding", "head")] == [True, False]


def test_the_first_one_refuses_another_activation() -> None:
    with pytest.raises(InputError, match="hidden_act: expected gelu_pytorch_tanh or gelu"):
        build({**model_config("gemma-7b", {}, "model"), "hidden_act": "silu"}, "hf")


def test_the_scale_of_embeddings_has_the_type_that_is_loaded() -> None:
    """A tensor made while a model is loaded in bf16 has 2 bytes (transformers 5.23.0, `from_pretrained(dtype=...)`)."""
    model = {"config": "gemma-3-1b", "overrides": SMALL}
    for framework in ("fsdp2", "automodel"):
        for params in ("fp32", "bf16"):
            plan = small.plan_of(framework, {"dp_shard": 2}, model=model, precision={"params": params})
            [scale] = [placed for placed in plan.kinds[0] if placed.spec.name == "embed_scale"]
            assert (scale.spec.module, scale.policy.at_rest.dtype) == ("factors", params), framework
