"""Small models of every family that ZeRO-3 is modelled for, as fields of transformers' configurations."""

from __future__ import annotations

import random
from typing import Any

ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
LATENT = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}
GROUPED = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
           "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_chunk_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": 16}, "qwen2": {}, "qwen3": {}, "arcee": {}, "ernie4_5": {}, "gemma": {},
    "glm": {"attention_bias": True}, "granite": {}, "hunyuan_v1_dense": {}, "nemotron": {"partial_rotary_factor": 0.5},
    "phi": {"resid_pdrop": 0.0, "partial_rotary_factor": 0.5}, "phi3": {},
    "seed_oss": {"residual_dropout": 0.0, "attention_dropout": 0.0}, "starcoder2": {"use_bias": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": ROUTED | {"shared_expert_intermediate_size": 256, "norm_topk_prob": False},
    "qwen3_moe": ROUTED | {"norm_topk_prob": True},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "glm4_moe": GROUPED | {"attention_bias": True, "use_qk_norm": False, "partial_rotary_factor": 0.5},
    "glm4_moe_lite": GROUPED | LATENT,
    "deepseek_v2": GROUPED | LATENT | {"topk_method": "greedy", "norm_topk_prob": False},
    "deepseek_v3": GROUPED | LATENT,
    "mistral4": GROUPED | LATENT,
    "llama4_text": {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 512,
                    "interleave_moe_layer_step": 2},
    "qwen3_next": ROUTED | DELTA | {"shared_expert_intermediate_size": 128, "full_attention_interval": 2},
    "qwen3_5_text": DELTA | {"full_attention_interval": 2},
    "qwen3_5_moe_text": ROUTED | DELTA | {"shared_expert_intermediate_size": 128, "full_attention_interval": 2},
    "granitemoehybrid": MAMBA | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 256,
                                 "position_embedding_type": "rope"},
    "gemma2": {"sliding_window": 16}, "gemma3_text": {"sliding_window": 16, "sliding_window_pattern": 2},
    "gemma4_text": {"sliding_window": 16, "num_global_key_value_heads": 2, "global_head_dim": 64,
                    "attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
                    "enable_moe_block": False},
    "glm4": {"attention_bias": False}, "olmo2": {"attention_bias": False},
    "olmo3": {"sliding_window": 16, "attention_bias": False},
    "cohere2": {"sliding_window": 16, "sliding_window_pattern": 2, "attention_bias": False},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 256, "mamba_rms_norm": False},
    "bamba": MAMBA | {"mamba_d_head": 64},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 1, "ssm_state_size": 16, "chunk_size": 16,
                   "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
                   "moe_shared_expert_intermediate_size": 256},
    "mamba2": {"n_groups": 1, "state_size": 16, "chunk_size": 16},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 32},
    "exaone4": {"sliding_window": 16},
    "exaone_moe": ROUTED | {"sliding_window": 16, "num_shared_experts": 1, "n_group": 1, "topk_group": 1},
}
DENSE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION = DENSE[:4]
JOINED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj")
LOW_RANK = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
LINEARS = {
    "mamba2": ("in_proj",), "glm": JOINED, "glm4": JOINED, "phi": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "starcoder2": ("q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"),
    **dict.fromkeys(("arcee", "nemotron", "nemotron_h"), (*ATTENTION, "up_proj", "down_proj")),
    **dict.fromkeys(("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss", "llama4_text", "qwen3_next",
                     "qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "glm4_moe", "minimax_m2",
                     "exaone_moe"), ATTENTION),
    **dict.fromkeys(("glm4_moe_lite", "deepseek_v2", "deepseek_v3", "mistral4"), LOW_RANK),
}
"""Linears of a family that PEFT adapts, where they are not those of Llama."""
OF_WIDTH = ("cohere2", "phi", "olmo2", "phi3", "glm4_moe_lite", "deepseek_v2", "deepseek_v3", "mistral4", "starcoder2",
            "granite", "granitemoehybrid", "bamba", "olmoe", "exaone4")
"""Families whose heads are as wide as the model over their number, or have widths of their own."""
TIED = ("gemma", "gemma2", "gemma3_text", "gemma4_text", "cohere2")


def drawn(rng: random.Random, kind: str) -> dict[str, Any]:
    """A layout of a family: stage, ranks, sizes, buckets, what is prefetched and stays, adapters."""
    stage, keys = rng.choice((2, 3, 3)), rng.choice((1, 2))
    options = {"overlap_comm": False, "reduce_bucket_size": rng.choice((100_000, 300_000, 1_000_000))}
    if stage == 3:
        options |= {"stage3_prefetch_bucket_size": rng.choice((0, 50_000, 200_000, 600_000)),
                    "stage3_param_persistence_threshold": rng.choice((0, 100, 1_000)),
                    "stage3_max_reuse_distance": rng.choice((0, 300_000, 1_000_000)),
                    "stage3_max_live_parameters": rng.choice((1_000_000, 3_000_000))}
    linears = LINEARS.get(kind, DENSE)
    targets = rng.sample(linears, rng.randint(1, len(linears))) if rng.random() < 0.3 else ()
    return {"stage": stage, "type": kind, "model": _sizes(rng, kind, keys), "ranks": rng.choice((2, 3, 4, 8)),
            "rank": 0, "checkpoint": rng.random() < 0.5, "steps": rng.choice((1, 2)), "targets": sorted(targets),
            "attn_implementation": "eager" if kind in ("gemma2", "gpt_oss", "mamba2") else "sdpa", "options": options}


def _sizes(rng: random.Random, kind: str, keys: int) -> dict[str, Any]:
    """Fields of a model's configuration."""
    heads, layers = keys * rng.choice((2, 3)), rng.choice((1, 2, 3, 5))
    if kind == "mamba2":
        return FAMILIES[kind] | {"hidden_size": heads * 64, "num_heads": 2 * heads, "head_dim": 64,
                                 "num_hidden_layers": layers, "vocab_size": rng.choice((1_000, 3_001, 4_000)),
                                 "tie_word_embeddings": rng.random() < 0.5}
    sizes = {"hidden_size": heads * 64, "num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": 64,
             "intermediate_size": rng.choice((304, 512, 704)), "num_hidden_layers": layers,
             "vocab_size": rng.choice((1_000, 3_001, 4_000)), "tie_word_embeddings": kind in TIED} | FAMILIES[kind]
    if kind in OF_WIDTH:
        del sizes["head_dim"]
    if kind in ("phi", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"):
        sizes["num_key_value_heads"] = heads
    if kind == "gemma4_text":
        sizes["num_global_key_value_heads"] = keys
    sizes |= _by_layer(rng, kind, heads, layers) | _drawn(rng, kind)
    if kind.startswith(("qwen3_5", "qwen3_next")):
        sizes["num_hidden_layers"] = max(2, layers)  # the second has attention
    if kind == "qwen3_5_moe_text":
        del sizes["intermediate_size"]
    return sizes


def _by_layer(rng: random.Random, kind: str, heads: int, layers: int) -> dict[str, Any]:
    """Kinds of layers, and heads of Mamba's; the first has attention in any case, so that adapters have a place."""
    found: dict[str, Any] = {}
    if kind in ("falcon_h1", "bamba", "granitemoehybrid"):
        found["mamba_n_heads"] = 2 * heads if kind == "granitemoehybrid" else heads
        found["mamba_d_head"] = 64 if kind != "bamba" else 128
    if kind == "falcon_h1":
        found["mamba_d_ssm"] = 64 * heads
    if kind == "bamba":
        found["attn_layer_indices"] = sorted(rng.sample(range(layers), 1))
    if kind == "granitemoehybrid":
        found["layer_types"] = ["attention", *(rng.choice(("attention", "mamba")) for _ in range(layers - 1))]
    if kind in ("exaone4", "exaone_moe"):
        found["layer_types"] = [rng.choice(("full_attention", "sliding_attention")) for _ in range(layers)]
    if kind == "exaone_moe":
        found["mlp_layer_types"] = ["dense", *["sparse"] * (layers - 1)]
    if kind == "nemotron_h":
        found["hybrid_override_pattern"] = "*" + "".join(rng.choice("M-*E") for _ in range(layers - 1))
    return found


def _drawn(rng: random.Random, kind: str) -> dict[str, Any]:
    """What a family has or has not."""
    found: dict[str, Any] = {}
    if kind == "phi":
        found["resid_pdrop"] = rng.choice((0.0, 0.1))
    if kind == "deepseek_v2" and rng.random() < 0.5:
        found["q_lora_rank"] = None
    if kind == "glm4_moe":
        found["use_qk_norm"] = rng.random() < 0.5
    return found
