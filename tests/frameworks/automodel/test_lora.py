"""Automodel's LoRA matcher against what nemo-automodel 0.7.0 itself matched on the 52-layer Nano (meta tensors)."""

from __future__ import annotations

import pytest

from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.lora import adapters, matches
from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Mamba2, Mixer, Mlp, Moe
from simcore.operators.automodel.tensors import tensors

H, V = 2688, 131072


def _layer(name: str, block: Mixer) -> LayerKind:
    return LayerKind(name, "nemotron_h", H, (Branch("norm", "mixer", block),))


MAMBA = _layer("mamba", Mamba2(H, 64, 64, 8, 128, 4, 128))
MOE = _layer("moe", Moe(H, 128, 6, 1856, 3712))
ATTENTION = _layer("attention", Attention(H, 32, 2, 128))
NANO = [(MAMBA, 23), (MOE, 23), (ATTENTION, 6)] + [
    (LayerKind(name, "nemotron_h", H, block=block), 1)
    for name, block in (("embedding", Embedding(V, H)), ("final_norm", FinalNorm(H)), ("head", Head(V, H)))
]


def _count(lora: LoraChoice) -> tuple[int, int, int]:
    """Adapted modules, dense adapter parameters, expert adapter parameters of the whole model."""
    modules = dense = expert = 0
    for kind, copies in NANO:
        found = adapters(kind, tensors(kind), lora)
        modules += copies * len({_module(t.name) for t in found})
        dense += copies * sum(t.numel for t in found if t.component == "adapters")
        expert += copies * sum(t.numel for t in found if t.component == "expert_adapters")
    return modules, dense, expert


def _module(name: str) -> str:
    return name.partition(".lora_")[0]


# From the real `apply_lora_to_linear_modules` (oracle/megatron_automodel, also research/frameworks.md 2.5).
EVERYTHING = tuple(f"*{n}_proj" for n in ("q", "k", "v", "o", "in", "up", "down"))


@pytest.mark.parametrize(("lora", "expected"), [
    (LoraChoice(8, exclude_modules=("*.out_proj",)), (94, 6_749_696, 0)),
    (LoraChoice(8), (116, 6_927_872, 0)),
    (LoraChoice(8, ("*experts",)), (23, 0, 214_040_576)),
    (LoraChoice(32, exclude_modules=("*.out_proj",)), (94, 4 * 6_749_696, 0)),
])
def test_counts_of_nano(lora: LoraChoice, expected: tuple[int, int, int]) -> None:
    assert _count(lora) == expected


def test_explicit_targets_with_experts() -> None:
    modules, dense, expert = _count(LoraChoice(8, (*(f"*.{p[1:]}" for p in EVERYTHING), "*experts")))
    assert (modules, dense, expert, dense + expert) == (116, 5_679_616, 214_040_576, 219_720_192)


def test_names_and_shapes_are_upstreams() -> None:
    found = adapters(MOE, tensors(MOE), LoraChoice(8, ("*_proj", "*experts")))
    assert [(t.name, t.shape) for t in found] == [  # printed by nemo-automodel 0.7.0
        ("mixer.experts.lora_gate_and_up_A", (128, 2688, 8)),
        ("mixer.experts.lora_gate_and_up_B", (128, 8, 1856)),
        ("mixer.experts.lora_down_A", (128, 1856, 8)),
        ("mixer.experts.lora_down_B", (128, 8, 2688)),
        ("mixer.shared_experts.up_proj.lora_A.weight", (8, 2688)),
        ("mixer.shared_experts.up_proj.lora_B.weight", (3712, 8)),
        ("mixer.shared_experts.down_proj.lora_A.weight", (8, 3712)),
        ("mixer.shared_experts.down_proj.lora_B.weight", (2688, 8)),
    ]
    assert {t.module for t in found} == {"adapter"}
    assert all(t.trainable for t in found)
    head = LayerKind("head", "nemotron_h", H, block=Head(V, H))
    assert [t.name for t in adapters(head, tensors(head), LoraChoice(8, exclude_modules=("x",)))] == [
        "lm_head.lora_A.weight", "lm_head.lora_B.weight"]


@pytest.mark.parametrize(("pattern", "path", "hit"), [  # answers of `wildcard_match`, nemo-automodel 0.7.0
    ("q_proj", "model.layers.0.mixer.q_proj", False),
    ("*q_proj", "model.layers.0.mixer.q_proj", True),
    ("*.out_proj", "model.layers.0.mixer.out_proj", True),
    ("*.layers.1.*", "model.layers.10.mixer", False),
    ("*.layers.1.*", "model.layers.1.mixer", True),
    ("*layers.1.*", "model.layers.1", True),
    (".*fc.*", "model.fc1", True),
    ("*mlp.fc.*", "model.mlp.fc2", True),
    ("model.*", "model", True),
    ("model.*", "modelling", False),
    ("*shared_experts", "model.layers.0.mixer.experts", False),
    ("*experts", "model.layers.0.mixer.experts", True),
])
def test_wildcards(pattern: str, path: str, hit: bool) -> None:
    assert matches(path, "grouped", LoraChoice(8, (pattern,))) is hit


@pytest.mark.parametrize("pattern", ["model.layers.[0-1].mixer.q_proj", "*layers.(3|4).*"])
def test_patterns_that_fit_the_numbers_of_some_layers_are_refused(pattern: str) -> None:
    with pytest.raises(NotYet, match="single layers"):
        matches("model.layers.0.mixer.q_proj", "linear", LoraChoice(8, (pattern,)))


def test_the_exclusion_needs_a_wildcard_too() -> None:
    assert _count(LoraChoice(8, exclude_modules=("out_proj",)))[0] == 117  # all 116 and lm_head


def test_target_and_exclude_together_are_refused() -> None:
    with pytest.raises(IllegalLayout, match="mutually exclusive"):
        adapters(MOE, tensors(MOE), LoraChoice(8, ("*_proj",), ("*.out_proj",)))


def test_what_automodel_cannot_do() -> None:
    with pytest.raises(IllegalLayout, match="share"):
        adapters(MOE, tensors(MOE), LoraChoice(8, expert_adapters="shared"))
    with pytest.raises(IllegalLayout, match="no target module fits"):
        adapters(MOE, tensors(MOE), LoraChoice(8, exclude_modules=("*.out_proj",), expert_adapters="per_expert"))
    with pytest.raises(NotYet):
        adapters(MOE, tensors(MOE), LoraChoice(8, ("*.layers.3.*",)))


def test_expert_adapters_can_be_switched_off() -> None:
    found = adapters(MOE, tensors(MOE), LoraChoice(8, ("*_proj", "*experts"), expert_adapters="none"))
    assert {t.component for t in found} == {"adapters"}


def test_llama() -> None:
    branches = (Branch("input_layernorm", "self_attn", Attention(64, 4, 2, 16, rotary=True)),
                Branch("post_attention_layernorm", "mlp", Mlp(64, 128)))
    kind = LayerKind("decoder", "llama", 64, branches)
    found = adapters(kind, tensors(kind), LoraChoice(4))
    assert [t.name for t in found][:2] == ["self_attn.q_proj.lora_A.weight", "self_attn.q_proj.lora_B.weight"]
    assert len(found) == 14


def test_ranks_of_experts_are_shared_out_among_those_of_a_token() -> None:
    """Six experts a token: rank 16 // 6 = 2 beside 16 elsewhere; rank 4 leaves none."""
    found = {t.name: t.shape for t in adapters(MOE, tensors(MOE), LoraChoice(16, ("*",), moe_rank_scaling=True))}
    assert found["mixer.experts.lora_down_A"] == (128, 1856, 2)
    assert found["mixer.shared_experts.up_proj.lora_A.weight"] == (16, 2688)
    with pytest.raises(IllegalLayout, match=r"dim=4 // n_activated_experts=6 gives rank 0"):
        adapters(MOE, tensors(MOE), LoraChoice(4, ("*",), moe_rank_scaling=True))
