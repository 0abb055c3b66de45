"""Megatron-Bridge's matcher and adapters against counts that Bridge itself gave (0.3.1, and main for per-expert)."""

from __future__ import annotations

from typing import Any

import pytest

import small
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


@pytest.mark.parametrize("pattern", ["*.layers.[0-4].*linear_qkv", "*layers.(1|2).self_attention.*",
                                     "decoder.layers...self_attention.linear_qkv"])
def test_patterns_that_fit_the_numbers_of_some_layers_are_refused(pattern: str) -> None:
    """`[0-4]`: 5 to 9 are left out, of 13 the dot behind the bracket takes the 3."""
    with pytest.raises(NotYet, match="single layers"):
        _found(ATTENTION, LoraChoice(8, (pattern,)))


def test_a_range_of_all_numbers_is_no_choice_of_layers() -> None:
    assert _found(ATTENTION, LoraChoice(8, ("*.layers.[0-9].*linear_qkv",))) == _found(
        ATTENTION, LoraChoice(8, ("linear_qkv",)))


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


# ---- DoRA -----------------------------------------------------------------------------------------------------------
def test_magnitudes_are_as_long_as_the_output_and_cut_like_it() -> None:
    """Those of a row parallel linear are whole: peft/dora_layers.py, sharded_state_dict."""
    found = {spec.path.partition(".adapter")[0]: spec for spec in _found(ATTENTION, LoraChoice(32, use_dora=True))
             if spec.name.endswith("weight_magnitude")}
    assert {name: (spec.shape, spec.dims) for name, spec in found.items()} == {
        "self_attention.linear_proj": ((H,), ("hidden",)),
        "self_attention.linear_qkv": (((32 + 2 * 2) * 128,), ("tp_out",))}


LLAMA: dict[str, Any] = {"model": "llama-tiny", "method": "lora"}


def test_dora_has_a_magnitude_more_for_every_output() -> None:
    plain, dora = (sum(placed.spec.numel for layer in made.layers for placed in made.of_layer(layer)
                       if placed.spec.module == "adapter")
                   for made in (small.plan_of("megatron", lora={"use_dora": use}, **LLAMA) for use in (False, True)))
    made = small.plan_of("megatron", lora={"use_dora": True}, **LLAMA)
    outputs = sum(placed.spec.shape[0] for layer in made.layers for placed in made.of_layer(layer)
                  if placed.spec.name.endswith(("linear_qkv.weight", "linear_proj.weight", "linear_fc1.weight",
                                                "linear_fc2.weight")))
    assert dora - plain == outputs


def test_dora_gathers_a_matrix_of_every_adapter_over_tp() -> None:
    """linear_in where the linear is column parallel, linear_out where it is row parallel; again in a recomputation."""
    def gathered(*, use_dora: bool, **more: Any) -> list[int]:
        program = small.program_of("megatron", {"dp_shard": 2, "tp": 2}, lora={"use_dora": use_dora, "rank": 8},
                                   sequence_parallel=False, **LLAMA, **more)
        return [size for axis, _, size in small.calls(program, "all_gather") if axis == "tp"]

    plain, dora = gathered(use_dora=False), gathered(use_dora=True)
    made = small.plan_of("megatron", {"dp_shard": 2, "tp": 2}, lora={"use_dora": True, "rank": 8}, **LLAMA)
    ends = ("linear_qkv.adapter.linear_in", "linear_fc1.adapter.linear_in", "linear_proj.adapter.linear_out",
            "linear_fc2.adapter.linear_out")
    matrices = [2 * placed.spec.numel for layer in made.layers for placed in made.of_layer(layer)
                if any(f"{end}.weight" in placed.spec.name for end in ends)]
    assert sum(dora) - sum(plain) == sum(matrices)
    again = sum(gathered(use_dora=True, recompute="full")) - sum(gathered(use_dora=False, recompute="full"))
    assert again == 2 * sum(matrices)
