"""Parameters of every preset against transformers, and of small models against megatron-core (tests/truth/models)."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.models.graph import Layer, ModelGraph, build, known_presets, model_config
from simcore.models.registry import known_families
from simcore.models.tensor import TensorSpec

TRUTH = ROOT / "tests/truth" / "models" / "transformers-5.23.0.json"
ROWS: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
OTHER_SIZES: dict[str, Any] = json.loads((TRUTH.parent / "other-sizes.json").read_text(encoding="utf-8"))
PUBLISHED: dict[str, dict[str, str]] = json.loads((TRUTH.parent / "published.json").read_text(encoding="utf-8"))
TOWER = ("model.vision_tower", "model.multi_modal_projector", "model.visual")
LAST = ("model.language_model", "model.audio_tower", "model.embed_vision", "model.embed_audio")
"""Modules that Gemma 4 registers behind its decoder's layers."""
REPEATED = re.compile(
    r"model\.(vision_tower\.(encoder|transformer)\.layers?|visual\.blocks|audio_tower\.layers)\.(?![01]\.)")
"""Layers of a tower that are as the first."""
REMOTE = ("bailing_moe", "kimi_vl", "nemotron-nas", "nemotron_h_omni", "nemotron_h_vl", "step3p5")
"""Transformers has no code for them, or lately other code: their own repositories have."""


def graph(name: str, **changed: Any) -> ModelGraph:
    case = OTHER_SIZES.get(name, {"preset": name, "overrides": {}})
    return build(model_config(case["preset"], {**case["overrides"], **changed}, "test"), "hf")


def spelled(found: ModelGraph, *, buffers: bool) -> list[str]:
    """`path shape` of every tensor in running order; of buffers with the dtype."""
    # A tower is registered first, and what feeds the decoder last in it.
    parts = sorted(found.layers, key=lambda layer: (
        LAST.index(layer.path) if layer.path in LAST else -1,
        not f"{layer.path}.{_first(found, layer)}".startswith(TOWER), "deepstack" in layer.path))
    specs = [(layer.path, t) for layer in parts for t in found.tensors[layer.kind] if t.is_buffer == buffers
             and not REPEATED.match(f"{layer.path}.{t.name}")]
    return [f"{path}.{t.name} {'x'.join(map(str, t.shape))}{_dtype(t)}" for path, t in specs if not t.tied]


def _first(found: ModelGraph, layer: Layer) -> str:
    """Name of a layer's first tensor, "" if it has none."""
    return next((spec.name for spec in found.tensors[layer.kind]), "")


def _dtype(spec: TensorSpec) -> str:
    if spec.stored == "int64":
        return " int64"
    return " float32" if spec.is_buffer else ""  # as it is stored, or as the parameters, which are fp32 here


def test_every_preset_is_asked_for() -> None:
    types = {preset: model_config(preset, None, "test")["model_type"] for preset in known_presets()}
    asked = {preset for preset in types if types[preset] not in REMOTE}
    assert set(ROWS) == asked | set(OTHER_SIZES)


def test_every_family_is_asked_for_in_two_sizes() -> None:
    """Published ones, or one with fields changed."""
    counts: dict[str, set[int]] = {}
    for name, row in ROWS.items():
        preset = OTHER_SIZES[name]["preset"] if name in OTHER_SIZES else name
        counts.setdefault(str(model_config(preset, None, "test")["model_type"]), set()).add(row["parameters"])
    assert set(counts) == {family for family in known_families() if family not in REMOTE}
    assert {family for family, sizes in counts.items() if len(sizes) < 2} == set()


@pytest.mark.parametrize("preset", ROWS)
def test_counts_by_component(preset: str) -> None:
    found = graph(preset)
    assert {name: found.count(name) for name in small.components(found)} == ROWS[preset]["components"]
    assert found.count() == ROWS[preset]["parameters"]


@pytest.mark.parametrize("preset", PUBLISHED)
def test_what_its_makers_say(preset: str) -> None:
    """To half of the last digit that is told, or one percent: cards round down, or leave biases out."""
    assert PUBLISHED[preset].keys() == {"total", "total_from", "config_from"}
    number, letter = PUBLISHED[preset]["total"][:-1], PUBLISHED[preset]["total"][-1]
    unit = {"M": 10**6, "B": 10**9, "T": 10**12}[letter]
    digit = unit / 10 ** len(number.partition(".")[2])
    assert graph(preset).count() == pytest.approx(float(number) * unit, rel=0.01, abs=digit / 2)


@pytest.mark.parametrize("preset", ROWS)
def test_names_shapes_and_order_of_the_first_layers(preset: str) -> None:
    found = _cut(preset)
    assert spelled(found, buffers=False) == ROWS[preset]["tensors"]


@pytest.mark.parametrize("preset", ROWS)
def test_buffers_of_the_layers_and_around_them(preset: str) -> None:
    """Rotary frequencies are told as bytes of the architecture: fp32, two tables; positions of patches, int64.

    So are the statistics of Gemma 4's averages.
    """
    found = _cut(preset)
    rotary = [name for name in ROWS[preset]["buffers"] if re.search(r"inv_freq|\.std_|inv_timescales|"
                                                                     r"^(?!.*tid2eid).* int64$", name)]
    assert spelled(found, buffers=True) == [name for name in ROWS[preset]["buffers"] if name not in rotary]
    assert sum(size for _, size in found.architecture.buffers) == sum(map(_bytes, rotary))


def _cut(preset: str) -> ModelGraph:
    """The model with its first layers; half of them use others' keys and values where some do."""
    layers = ROWS[preset]["num_hidden_layers"]
    case = OTHER_SIZES.get(preset, {"preset": preset, "overrides": {}})
    text = model_config(case["preset"], case["overrides"], "test").get("text_config") or {}
    if not text.get("num_kv_shared_layers"):
        return graph(preset, num_hidden_layers=layers)
    return graph(preset, text_config={**text, "num_hidden_layers": layers, "num_kv_shared_layers": layers // 2})


def _bytes(buffer: str) -> int:
    """`path shape dtype`"""
    _, shape, dtype = buffer.split()
    return math.prod(map(int, shape.split("x"))) * {"float32": 4, "int64": 8}[dtype]


# ---- Megatron-Core --------------------------------------------------------------------------------------------------
CORE: dict[str, Any] = json.loads((TRUTH.parent / "megatron-core-0.16.1.json").read_text(encoding="utf-8"))
SMALL: dict[str, Any] = {"hidden_size": 256, "vocab_size": 1024, "intermediate_size": 128, "num_hidden_layers": 2,
                         "num_attention_heads": 8, "num_key_value_heads": 4}
MOE: dict[str, Any] = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {**MOE, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
                          "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
                          "num_key_value_heads": 8}
DELTA: dict[str, Any] = {"head_dim": 32, "layer_types": ["linear_attention", "full_attention"],
                         "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
                         "linear_num_key_heads": 4, "linear_num_value_heads": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2.5-7b", SMALL), "qwen3": ("qwen3-8b", {**SMALL, "head_dim": 32}),
    "qwen3_moe": ("qwen3-30b-a3b", {**SMALL, **MOE, "num_experts": 8, "head_dim": 32}),
    "qwen2_moe": ("qwen1.5-moe-a2.7b", {**SMALL, **MOE, "num_experts": 8, "shared_expert_intermediate_size": 128}),
    "mixtral": ("mixtral-8x7b", {**SMALL, "num_local_experts": 8}),
    "deepseek_v2": ("deepseek-v2-lite", {**SMALL, **LATENT}),
    "deepseek_v3": ("deepseek-v3", {**SMALL, **LATENT, "q_lora_rank": 96}),
    "gpt2": ("gpt2", {"n_embd": 256, "n_head": 8, "n_layer": 2, "n_positions": 512, "vocab_size": 1024}),
    "gpt2_qk_norm": ("gpt2", {"n_embd": 256, "n_head": 8, "n_layer": 2, "n_positions": 512, "vocab_size": 1024,
                              "qk_layernorm": True}),
    "gpt2_glu": ("gpt2", {"n_embd": 256, "n_head": 8, "n_layer": 2, "n_positions": 512, "vocab_size": 1024,
                          "n_inner": 512, "swiglu": True}),
    "gpt2_moe": ("gpt2", {**MOE, "n_embd": 256, "n_head": 8, "n_layer": 2, "vocab_size": 1024, "n_routed_experts": 8,
                          "first_k_dense_replace": 1, "moe_shared_expert_intermediate_size": 128, "mtp_num_layers": 1,
                          "add_bias_linear": False, "position_embedding_type": "rope", "tie_word_embeddings": False}),
    "qwen3_next": ("qwen3-next-80b-a3b", {**SMALL, **MOE, **DELTA, "num_experts": 8, "mtp_num_layers": 1,
                                          "shared_expert_intermediate_size": 128}),
    "qwen3_5_text": ("qwen3.5-9b-text", {**SMALL, **DELTA}),
    "olmoe": ("olmoe-1b-7b", {**SMALL, "intermediate_size": 64, "num_key_value_heads": 8, "num_experts": 8,
                              "num_experts_per_tok": 2}),
    "gemma3_text": ("gemma-3-1b", {**SMALL, "head_dim": 32}),
    "nemotron_h": ("nemotron-3-super-120b-a12b", {
        **SMALL, **MOE, "hybrid_override_pattern": "M*E-", "num_hidden_layers": 4, "head_dim": 32,
        "n_routed_experts": 8, "moe_latent_size": 96, "moe_shared_expert_intermediate_size": 128, "mamba_num_heads": 8,
        "mamba_head_dim": 32, "ssm_state_size": 32, "n_groups": 2}),
}  # fmt: skip


def core_spelled(found: ModelGraph) -> list[str]:
    """Megatron's names: layers by number, one matrix an expert."""
    names = []
    for layer in found.layers:
        kind = found.kinds[layer.kind]
        at = f"decoder.layers.{layer.index - 1}." if kind.block is None else "mtp.layers.0." * (kind.name == "mtp")
        for spec in found.tensors[layer.kind]:
            if spec.is_owned:
                numbers = [str(i) for i in range(spec.copies)] if spec.copies > 1 else [""]
                names += [f"{at}{spec.name}{i} {'x'.join(map(str, spec.shape))}" for i in numbers]
    return names


def test_every_family_is_asked_for() -> None:
    assert set(CORE) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_megatron_registers_these_tensors(family: str) -> None:
    """In order of registration, which buckets are filled in."""
    preset, changed = FAMILIES[family]
    found = build(model_config(preset, changed, "test"), "megatron")
    assert core_spelled(found) == CORE[family]["whole"]


@pytest.mark.parametrize("family", FAMILIES)
def test_megatron_splits_them_alike(family: str) -> None:
    """bf16 on rank 0 of 8: tp 2 (OLMoE refuses it), and where there are experts ep 2 and etp 1."""
    preset, changed = FAMILIES[family]
    tp = 1 if family == "olmoe" else 2
    mesh = {"dp_shard": 8 // tp, "tp": tp} | ({"ep": 2, "etp": 1} if "experts" in str(changed) else {})
    plan = small.plan_of("megatron", mesh, model={"config": preset, "overrides": changed})
    assert sum(component.params_bytes for component in plan.at_rest().values()) == 2 * CORE[family]["parallel"]
