"""Automodel's tensors and records against what nemo-automodel itself registers and keeps."""

from __future__ import annotations

from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Loss, Mamba2, Mixer, Mlp, Moe
from simcore.operators.automodel import tensors

H, V = 2688, 131072


def _layer(name: str, block: Mixer) -> LayerKind:
    return LayerKind(name, "nemotron_h", H, (Branch("norm", "mixer", block),))


MAMBA = _layer("mamba", Mamba2(H, 64, 64, 8, 128, 4, 128))
MOE = _layer("moe", Moe(H, 128, 6, 1856, 3712))
ATTENTION = _layer("attention", Attention(H, 32, 2, 128))
EMBEDDING, NORM, HEAD, LOSS = (
    LayerKind(name, "nemotron_h", H, block=block)
    for name, block in (("embedding", Embedding(V, H)), ("final_norm", FinalNorm(H)), ("head", Head(V, H)),
                        ("loss", Loss(V, upcast=True))))

# `named_parameters()` and `named_buffers()` of NemotronHForCausalLM, nemo-automodel 0.7.0, pattern ME*, prefix dropped.
REGISTERED = {
    "mamba": [
        ("norm.weight", (2688,)),
        ("mixer.in_proj.weight", (10304, 2688)),
        ("mixer.conv1d.weight", (6144, 1, 4)),
        ("mixer.conv1d.bias", (6144,)),
        ("mixer._fp32_params.dt_bias", (64,)),
        ("mixer._fp32_params.A_log", (64,)),
        ("mixer._fp32_params.D", (64,)),
        ("mixer.norm.weight", (4096,)),
        ("mixer.out_proj.weight", (2688, 4096)),
    ],
    "moe": [
        ("norm.weight", (2688,)),
        ("mixer.gate.weight", (128, 2688)),
        ("mixer.experts.gate_and_up_projs", (128, 2688, 1856)),
        ("mixer.experts.down_projs", (128, 1856, 2688)),
        ("mixer.shared_experts.up_proj.weight", (3712, 2688)),
        ("mixer.shared_experts.down_proj.weight", (2688, 3712)),
    ],
    "attention": [
        ("norm.weight", (2688,)),
        ("mixer.q_proj.weight", (4096, 2688)),
        ("mixer.k_proj.weight", (256, 2688)),
        ("mixer.v_proj.weight", (256, 2688)),
        ("mixer.o_proj.weight", (2688, 4096)),
    ],
    "embedding": [("model.embed_tokens.weight", (131072, 2688))],
    "final_norm": [("model.norm.weight", (2688,))],
    "head": [("lm_head.weight", (131072, 2688))],
    "loss": [],
}
BUFFERS = {"moe": [("mixer.gate.e_score_correction_bias", (128,), "fp32")]}


def test_tensors_are_those_that_automodel_registers() -> None:
    for kind in (MAMBA, MOE, ATTENTION, EMBEDDING, NORM, HEAD, LOSS):
        specs = tensors(kind)
        assert [(t.name, t.shape) for t in specs if not t.is_buffer] == REGISTERED[kind.name]
        assert [(t.name, t.shape, t.stored) for t in specs if t.is_buffer] == BUFFERS.get(kind.name, [])
        assert all(t.copies == 1 for t in specs)


def test_components_of_nano() -> None:
    # The model's own counts, research/frameworks.md section 1.
    expected = {"mamba": 38_742_208, "routed_experts": 1_277_165_568, "shared_experts": 19_955_712, "router": 344_064,
                "attention": 23_396_352, "embedding": 352_321_536, "lm_head": 352_321_536}
    found: dict[str, int] = {}
    for kind in (MAMBA, MOE, ATTENTION, EMBEDDING, HEAD):
        for t in tensors(kind):
            if not t.is_buffer and t.component != "norms":
                found[t.component] = found.get(t.component, 0) + t.numel
    assert found == expected


def test_what_insists_on_fp32() -> None:
    assert [t.name for t in tensors(MAMBA) if t.stored] == [
        "mixer._fp32_params.dt_bias", "mixer._fp32_params.A_log", "mixer._fp32_params.D"]
    assert {t.component for t in tensors(MAMBA)} == {"norms", "mamba"}


def test_llama_registers_its_norms_last() -> None:
    branches = (Branch("input_layernorm", "self_attn", Attention(64, 4, 2, 16, rotary=True)),
                Branch("post_attention_layernorm", "mlp", Mlp(64, 128)))
    specs = tensors(LayerKind("decoder", "llama", 64, branches))
    assert [(t.name, t.shape) for t in specs] == [  # nemo-automodel 0.7.0, LlamaForCausalLM
        ("self_attn.q_proj.weight", (64, 64)),
        ("self_attn.k_proj.weight", (32, 64)),
        ("self_attn.v_proj.weight", (32, 64)),
        ("self_attn.o_proj.weight", (64, 64)),
        ("mlp.gate_proj.weight", (128, 64)),
        ("mlp.up_proj.weight", (128, 64)),
        ("mlp.down_proj.weight", (64, 128)),
        ("input_layernorm.weight", (64,)),
        ("post_attention_layernorm.weight", (64,)),
    ]
