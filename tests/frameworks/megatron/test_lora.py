"""Megatron-Bridge's matcher and adapters against counts that Bridge itself gave (0.3.1, and main for per-expert)."""

from __future__ import annotations

import pytest

from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.megatron.lora import adapters
from simcore.models.blocks import Attention, Branch, Embedding, Head, LatentAttention, LayerKind, Mamba2, Moe
from simcore.models.tensor import TensorSpec
from simcore.operators.megatron.implementation import tensors

H, V = 2688, 131072
MAMBA, MOE, ATTENTION = (LayerKind(name, "nemotron_h", H, (Branch("norm", "mixer", block),)) for name, block in (
    ("mamba", Mamba2(H, 64, 64, 8, 128, 4, 128)), ("moe", Moe(H, 128, 6, 1856, 3712)),
    ("attention", Attention(H, 32, 2, 128))))
EMBEDDING, HEAD = (LayerKind(name, "nemotron_h", H, block=block) for name, block in (
    ("embedding", Embedding(V, H)), ("head", Head(V, H))))
NANO = ((EMBEDDING, 1), (MAMBA, 23), (MOE, 23), (ATTENTION, 6), (HEAD, 1))
NO_OUT = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj")
RL = LoraChoice(128, exclude_modules=("*out_proj*",))


def _found(kind: LayerKind, lora: LoraChoice) -> tuple[TensorSpec, ...]:
    return adapters(kind, tensors(kind), lora)


def _local(spec: TensorSpec, tp: int, ep: int, etp: int) -> int:
    numel = 1
    for n, dim in zip(spec.shape, spec.dims, strict=True):
        parts = tp if dim.startswith("tp_") else etp if dim.startswith("etp_") else ep if dim == "experts" else 1
        numel *= n // parts
    return numel


def _counts(lora: LoraChoice, tp: int = 1, ep: int = 8) -> tuple[int, int]:
    sums = {"adapters": 0, "expert_adapters": 0}
    for kind, layers in NANO:
        for spec in _found(kind, lora):
            sums[spec.component] += layers * _local(spec, tp, ep, 1)
    return sums["adapters"], sums["expert_adapters"]


# trainable_dense, trainable_expert of oracle/megatron_automodel: megatron_results.json, _rl.json, _head.json.
@pytest.mark.parametrize(("lora", "mesh", "counts"), [
    (LoraChoice(32), (1, 8), (26_679_296, 6_688_768)),
    (LoraChoice(32), (1, 4), (26_679_296, 6_688_768)),
    (LoraChoice(32), (2, 8), (13_339_648, 6_688_768)),
    (LoraChoice(128), (1, 8), (106_717_184, 26_755_072)),
    (LoraChoice(256), (1, 8), (213_434_368, 53_510_144)),
    (LoraChoice(32, NO_OUT), (1, 8), (21_686_272, 6_688_768)),
    (LoraChoice(32, expert_adapters="per_expert"), (1, 8), (26_679_296, 107_020_288)),
    (LoraChoice(32, expert_adapters="per_expert"), (1, 4), (26_679_296, 214_040_576)),
    (LoraChoice(32, expert_adapters="per_expert"), (2, 8), (13_339_648, 107_020_288)),
    (RL, (1, 8), (103_866_368, 0)),
    (RL, (2, 8), (51_933_184, 0)),
], ids=str)
def test_counts_are_those_that_bridge_gave(lora: LoraChoice, mesh: tuple[int, int], counts: tuple[int, int]) -> None:
    assert _counts(lora, *mesh) == counts


def test_names_shapes_and_order() -> None:
    assert [(s.name, s.shape, s.dims) for s in _found(MAMBA, LoraChoice(32))] == [
        ("mixer.in_proj.adapter.linear_in.weight", (32, 2688), ("tp_rank", "hidden")),
        ("mixer.in_proj.adapter.linear_out.weight", (10304, 32), ("tp_out", "rank")),
        ("mixer.out_proj.adapter.linear_in.weight", (32, 4096), ("rank", "tp_in")),
        ("mixer.out_proj.adapter.linear_out.weight", (2688, 32), ("tp_out", "rank")),
    ]
    assert [s.path for s in _found(MOE, LoraChoice(32))][::2] == [
        f"mlp.{module}.linear_fc{i}.adapter.linear_in" for module in ("experts", "shared_experts") for i in (1, 2)]
    assert all(s.trainable and s.module == "adapter" for s in _found(MOE, LoraChoice(32)))


def test_per_expert_adapters_are_split_over_experts() -> None:
    first = _found(MOE, LoraChoice(32, expert_adapters="per_expert"))[0]
    assert (first.shape, first.dims) == ((128, 32, 2688), ("experts", "etp_rank", "hidden"))
    assert not any("experts.linear" in s.name.replace("shared_experts", "shared")
                   for s in _found(MOE, LoraChoice(32, expert_adapters="none")))


def test_wildcards_match_the_full_path() -> None:
    assert len(_found(MOE, LoraChoice(8, ("*.shared_experts.*",)))) == 4
    assert len(_found(MOE, LoraChoice(8, ("decoder.layers.*.mlp.experts.linear_fc1",)))) == 2
    assert len(_found(MOE, LoraChoice(8, ("router",)))) == 2
    assert _found(ATTENTION, LoraChoice(8, ("*experts.linear_fc1",))) == ()
    assert _found(HEAD, LoraChoice(8)) == ()
    assert _found(HEAD, RL)[0].name == "output_layer.adapter.linear_in.weight"


def test_single_layers_are_refused_and_two_lists_are_illegal() -> None:
    with pytest.raises(NotYet, match="single layers"):
        _found(MOE, LoraChoice(8, ("*.layers.0.*.linear_fc1",)))
    with pytest.raises(IllegalLayout, match="not both"):
        _found(MOE, LoraChoice(8, ("linear_fc1",), ("*out_proj*",)))


@pytest.mark.parametrize(("kind", "pattern", "module"), [
    (ATTENTION, "*self_attention*", "self_attention"), (MOE, "*shared_experts*", "mlp.shared_experts"),
    (MOE, "experts", "mlp.experts"), (MOE, "*mlp*", "pre_mlp_layernorm"), (ATTENTION, "*mlp*", "pre_mlp_layernorm"),
    (ATTENTION, "*.core_attention", "self_attention.core_attention"), (MAMBA, "*mixer*", "mixer"),
    (MAMBA, "*.layers.*", "decoder.layers"), (EMBEDDING, "*embedding*", "embedding")])
def test_a_target_that_hits_no_linear_layer_is_illegal(kind: LayerKind, pattern: str, module: str) -> None:
    """Bridge 0.3.1: NotImplementedError, "Layer type is unrecognized for LoRA"."""
    with pytest.raises(IllegalLayout, match="unrecognized for LoRA") as refused:
        _found(kind, LoraChoice(8, (pattern,)))
    assert module in refused.value.problems[0].message
    assert "utils.py:175" in refused.value.problems[0].rule


@pytest.mark.parametrize("pattern", ["*self_attention.linear_*", "*.mlp.linear_fc1", "*shared_experts.*", "router",
                                     "*.experts.linear_fc*", "*in_proj"])
def test_targets_that_hit_linear_layers_alone(pattern: str) -> None:
    for kind in (ATTENTION, MOE, MAMBA, EMBEDDING, HEAD):
        _found(kind, LoraChoice(8, (pattern,)))


def test_exclusions_alone_hit_no_linear_that_lies_whole_on_every_rank() -> None:
    """TELinear is none of Bridge's linear types; named, it is adapted all the same."""
    latent = LayerKind("decoder", "deepseek_v2", 256, (
        Branch("input_layernorm", "self_attn", LatentAttention(256, 8, 96, 64, 32, 16, 32)),))
    excluding = _found(latent, LoraChoice(4, exclude_modules=("output_layer",)))
    assert [s.path for s in excluding][::2] == [
        f"self_attention.linear_{name}.adapter.linear_in" for name in ("proj", "q_up_proj", "kv_up_proj")]
    assert len(_found(latent, LoraChoice(4, ("linear_kv_down_proj", "linear_q_down_proj")))) == 4
