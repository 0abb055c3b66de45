"""Megatron-Core's tensors against what it registers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from checkout import ROOT
from operators.megatron.kinds import (
    ATTENTION,
    EMBEDDING,
    GPT,
    GPT_MOE,
    GPT_NORM,
    GPT_STEM,
    HEAD,
    LATENT,
    LLAMA,
    LOSS,
    MAMBA,
    MLP,
    MOE,
    NANO,
    NORM,
    QWEN2,
    QWEN3,
    V2,
    V3,
    spelled,
)
from simcore.errors import NotYet
from simcore.models.blocks import LayerKind
from simcore.operators.megatron.implementation import tensors

# `named_parameters()` at tp 1 (megatron-core 0.16.1; norm weights of fused linears where TE has them). `#n`: copies.
REGISTERED = {
    "mamba": ["mixer.dt_bias 64", "mixer.A_log 64", "mixer.D 64", "mixer.in_proj.layer_norm_weight 2688",
              "mixer.in_proj.weight 10304x2688", "mixer.conv1d.weight 6144x1x4", "mixer.conv1d.bias 6144",
              "mixer.norm.weight 4096", "mixer.out_proj.weight 2688x4096"],
    "moe": ["pre_mlp_layernorm.weight 2688", "mlp.router.weight 128x2688",
            "mlp.experts.linear_fc1.weight 1856x2688 #128", "mlp.experts.linear_fc2.weight 2688x1856 #128",
            "mlp.shared_experts.linear_fc1.weight 3712x2688", "mlp.shared_experts.linear_fc2.weight 2688x3712"],
    "latent": ["pre_mlp_layernorm.weight 4096", "mlp.router.weight 512x4096", "mlp.fc1_latent_proj.weight 1024x4096",
               "mlp.fc2_latent_proj.weight 4096x1024", "mlp.experts.linear_fc1.weight 2688x1024 #512",
               "mlp.experts.linear_fc2.weight 1024x2688 #512", "mlp.shared_experts.linear_fc1.weight 5376x4096",
               "mlp.shared_experts.linear_fc2.weight 4096x5376"],
    "attention": ["self_attention.linear_proj.weight 2688x4096", "self_attention.linear_qkv.layer_norm_weight 2688",
                  "self_attention.linear_qkv.weight 4608x2688"],
    "mlp": ["mlp.linear_fc1.layer_norm_weight 2688", "mlp.linear_fc1.weight 1856x2688",
            "mlp.linear_fc2.weight 2688x1856"],
    "layer": ["self_attention.linear_proj.weight 4096x4096", "self_attention.linear_qkv.layer_norm_weight 4096",
              "self_attention.linear_qkv.weight 6144x4096", "mlp.linear_fc1.layer_norm_weight 4096",
              "mlp.linear_fc1.weight 28672x4096", "mlp.linear_fc2.weight 4096x14336"],
    "qwen2": ["self_attention.linear_proj.weight 3584x3584", "self_attention.linear_qkv.layer_norm_weight 3584",
              "self_attention.linear_qkv.weight 4608x3584", "self_attention.linear_qkv.bias 4608",
              "mlp.linear_fc1.layer_norm_weight 3584", "mlp.linear_fc1.weight 37888x3584",
              "mlp.linear_fc2.weight 3584x18944"],
    "qwen3": ["self_attention.linear_proj.weight 2048x4096", "self_attention.linear_qkv.layer_norm_weight 2048",
              "self_attention.linear_qkv.weight 5120x2048", "self_attention.q_layernorm.weight 128",
              "self_attention.k_layernorm.weight 128", "pre_mlp_layernorm.weight 2048", "mlp.router.weight 128x2048",
              "mlp.experts.linear_fc1.weight 1536x2048 #128", "mlp.experts.linear_fc2.weight 2048x768 #128"],
    "v2": ["input_layernorm.weight 2048", "self_attention.linear_proj.weight 2048x2048",
           "self_attention.linear_q_proj.weight 3072x2048", "self_attention.linear_kv_down_proj.weight 576x2048",
           "self_attention.linear_kv_up_proj.layer_norm_weight 512", "self_attention.linear_kv_up_proj.weight 4096x512",
           "pre_mlp_layernorm.weight 2048", "mlp.router.weight 64x2048",
           "mlp.experts.linear_fc1.weight 2816x2048 #64", "mlp.experts.linear_fc2.weight 2048x1408 #64",
           "mlp.shared_experts.linear_fc1.weight 5632x2048", "mlp.shared_experts.linear_fc2.weight 2048x2816"],
    "v3": ["input_layernorm.weight 7168", "self_attention.linear_proj.weight 7168x16384",
           "self_attention.linear_q_down_proj.weight 1536x7168",
           "self_attention.linear_q_up_proj.layer_norm_weight 1536",
           "self_attention.linear_q_up_proj.weight 24576x1536", "self_attention.linear_kv_down_proj.weight 576x7168",
           "self_attention.linear_kv_up_proj.layer_norm_weight 512",
           "self_attention.linear_kv_up_proj.weight 32768x512", "mlp.linear_fc1.layer_norm_weight 7168",
           "mlp.linear_fc1.weight 36864x7168", "mlp.linear_fc2.weight 7168x18432"],
    "gpt": ["self_attention.linear_proj.weight 1024x1024", "self_attention.linear_proj.bias 1024",
            "self_attention.linear_qkv.layer_norm_weight 1024", "self_attention.linear_qkv.layer_norm_bias 1024",
            "self_attention.linear_qkv.weight 3072x1024", "self_attention.linear_qkv.bias 3072",
            "mlp.linear_fc1.layer_norm_weight 1024", "mlp.linear_fc1.layer_norm_bias 1024",
            "mlp.linear_fc1.weight 4096x1024", "mlp.linear_fc1.bias 4096", "mlp.linear_fc2.weight 1024x4096",
            "mlp.linear_fc2.bias 1024"],
    "gpt_moe": ["self_attention.linear_proj.weight 512x512", "self_attention.linear_qkv.layer_norm_weight 512",
                "self_attention.linear_qkv.layer_norm_bias 512", "self_attention.linear_qkv.weight 1536x512",
                "pre_mlp_layernorm.weight 512", "pre_mlp_layernorm.bias 512", "mlp.router.weight 8x512",
                "mlp.experts.linear_fc1.weight 1024x512 #8", "mlp.experts.linear_fc2.weight 512x1024 #8"],
    "stem": ["embedding.word_embeddings.weight 50304x1024", "embedding.position_embeddings.weight 2048x1024"],
    "layer_norm": ["decoder.final_layernorm.weight 1024", "decoder.final_layernorm.bias 1024"],
    "embedding": ["embedding.word_embeddings.weight 131072x2688"],
    "final_norm": ["decoder.final_norm.weight 2688"],
    "head": ["output_layer.weight 131072x2688"],
    "loss": [],
}


@pytest.mark.parametrize("kind", [MAMBA, MOE, LATENT, ATTENTION, MLP, LLAMA, QWEN2, QWEN3, V2, V3, GPT, GPT_MOE,
                                  GPT_STEM, GPT_NORM,
                                  EMBEDDING, NORM, HEAD, LOSS], ids=lambda k: k.name)
def test_tensors_are_those_that_megatron_registers(kind: LayerKind) -> None:
    assert spelled(kind) == REGISTERED[kind.name]


def test_a_family_that_nothing_was_held_against_is_not_built() -> None:
    with pytest.raises(NotYet, match="toy in Megatron's layers"):
        tensors(replace(LLAMA, family="toy"))


def test_router_buffers_are_no_parameters() -> None:
    assert [(s.name, s.stored) for s in tensors(MOE) if s.is_buffer] == [
        ("mlp.router.local_tokens_per_expert", "fp32"), ("mlp.router.expert_bias", "fp32")]


def test_parameters_of_nano_sum_to_the_published_total() -> None:
    # 31,577,937,344: research/frameworks.md section 1, counted in three code bases.
    assert sum(n * s.numel * s.copies for kind, n in NANO for s in tensors(kind) if not s.is_buffer) == 31_577_937_344

_LIVE = """
import json, sys
sys.path.insert(0, {truth!r})
from oracle import megatron, te_stub
names = []
ask = megatron.MambaModel.named_parameters
def note(self, *a, **k):
    found = list(ask(self, *a, **k))
    names[:] = names or [n for n, _ in found]
    return iter(found)
megatron.MambaModel.named_parameters = note
megatron.measure({{"world": 1, "rank": 0}})
print("NAMES " + json.dumps(names))
"""


@pytest.mark.slow
def test_names_and_order_are_the_installed_packages_own() -> None:
    truth = ROOT / "tests/truth"
    asked = subprocess.run([sys.executable, "-c", _LIVE.format(truth=str(truth))], capture_output=True, text=True,
                           timeout=300, check=False)
    line = next((x for x in asked.stdout.splitlines() if x.startswith("NAMES ")), None)
    if line is None:
        pytest.skip("megatron-core is not installed here")
    found = [n.split("layers.")[1].split(".", 1) for n in json.loads(line[6:]) if ".layers." in n]
    for kind, index in ((MAMBA, "0"), (MOE, "1"), (ATTENTION, "5")):
        names = [n for i, n in found if i == index]
        expanded = [f"{s.name}{i if s.copies > 1 else ''}" for s in tensors(kind) if not s.is_buffer
                    for i in range(s.copies)]
        # The stand-in for TE registers `weight` first; TE itself `layer_norm_weight`.
        assert sorted(names) == sorted(expanded)
        assert [n for n in names if "layer_norm" not in n] == [n for n in expanded if "layer_norm" not in n]
