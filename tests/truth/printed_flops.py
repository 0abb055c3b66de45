"""FLOPs that Megatron-Bridge prints for a token, from which a step follows more finely than from tokens a second.

Megatron-Bridge 067f987d `training/utils/flop_utils.py`: three times the forward pass; attention causal; of a hybrid,
Mamba's inner width as twice the hidden size, whatever its heads. Routers and convolutions are not counted. Until
release 26.04.01 GPT-OSS was counted with two matrices an expert and full attention, from 26.06 on with three and a
window (of which 2 x 128 keys count) in every second layer.
"""

from __future__ import annotations

LLAMA = {"hidden": 4096, "layers": 32, "heads": 32, "kv": 8, "dim": 128, "ffn": 14336, "vocab": 128256}
DENSE = {
    "LLAMA3_8B": LLAMA,
    "LLAMA3_70B": LLAMA | {"hidden": 8192, "layers": 80, "heads": 64, "ffn": 28672},
    "LLAMA3.1_405B": LLAMA | {"hidden": 16384, "layers": 126, "heads": 128, "ffn": 53248},
    "Qwen3_30B_a3B": {"hidden": 2048, "layers": 48, "heads": 32, "kv": 4, "dim": 128, "ffn": 8 * 768, "vocab": 151936},
    "Qwen3_235B_a22B": {"hidden": 4096, "layers": 94, "heads": 64, "kv": 4, "dim": 128, "ffn": 8 * 1536,
                        "vocab": 151936},
}
NANO = {"hidden": 2688, "attention": 6, "mamba": 23, "experts": 23, "heads": 32, "ffn": 1856, "top": 6, "shared": 3712,
        "states": 64, "latent": 0, "further": 0}
HYBRID = {
    "Nemotron_3_Nano": NANO,
    "Nemotron_3_5_Lightning": NANO | {"further": 2},
    "Nemotron_3_Super": {"hidden": 4096, "attention": 8, "mamba": 40, "experts": 40, "heads": 32, "ffn": 2688,
                         "top": 22, "shared": 5376, "states": 128, "latent": 1024, "further": 2},
    "Nemotron_3_Ultra": {"hidden": 8192, "attention": 12, "mamba": 48, "experts": 48, "heads": 64, "ffn": 5120,
                         "top": 22, "shared": 10240, "states": 256, "latent": 2048, "further": 2},
}


def a_token(model, seq_len, release):
    """FLOPs of a token as Bridge prints them; None for a model that is not written down here."""
    name = model.partition(" (")[0]
    if name in DENSE:
        return 6 * _transformer(seq_len=seq_len, **DENSE[name])
    if name in HYBRID:
        return 3 * _hybrid(seq_len=seq_len, **HYBRID[name])
    if name == "GPT OSS 120B":
        return 6 * _gpt_oss(seq_len, release)
    if name == "DeepSeekV3":
        return 6 * _deepseek(seq_len, further=0 if "w/o MTP" in model else 1)
    return None


def _attention(hidden, heads, kv, dim):
    return hidden * (heads + 2 * kv) * dim + heads * dim * hidden


def _transformer(*, seq_len, hidden, layers, heads, kv, dim, ffn, vocab):
    return layers * (_attention(hidden, heads, kv, dim) + heads * dim * seq_len + 3 * hidden * ffn) + hidden * vocab


def _gpt_oss(seq_len, release):
    hidden, layers, heads, kv, dim, ffn = 2880, 36, 64, 8, 64, 4 * 2880
    later = release >= "26.06"
    seen = layers // 2 * (seq_len + 2 * 128) if later else layers * seq_len
    layer = _attention(hidden, heads, kv, dim) + (3 if later else 2) * hidden * ffn
    return layers * layer + heads * dim * seen + hidden * 201088


def _deepseek(seq_len, *, further):
    hidden, heads, q, kv, nope, rope, value = 7168, 128, 1536, 512, 128, 64, 128
    attention = (hidden * q + q * heads * (nope + rope) + hidden * (kv + rope) + kv * heads * (nope + value)
                 + heads * value * hidden + seq_len * (nope + rope + value) * heads / 2)
    experts = 3 * hidden * 2048 * 9
    return ((61 + further) * attention + 3 * 3 * hidden * 18432 + (58 + further) * experts
            + hidden * 129280 * (1 + further) + further * 2 * hidden**2)


def _hybrid(*, seq_len, hidden, attention, mamba, experts, heads, ffn, top, shared, states, latent, further):
    """`further`: depths of multi-token prediction, each an attention layer, one of experts and a head."""
    width, groups, state, kv, dim, vocab = 2 * hidden, 8, 128, 2, 128, 131072
    of_attention = 4 * heads * dim * (hidden + hidden * kv / heads) + 2 * seq_len * heads * dim
    of_mamba = 2 * hidden * (2 * width + 2 * groups * state + states) + 7 * width * state + 2 * width * hidden
    routed = 4 * latent * ffn * top + 4 * hidden * latent if latent else 4 * hidden * ffn * top
    of_experts = routed + 4 * hidden * shared
    return ((attention + further) * of_attention + mamba * of_mamba + (experts + further) * of_experts
            + 2 * hidden * vocab * (1 + further))
