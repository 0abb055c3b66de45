"""Draws layouts of NeMo Automodel, of every family that rankscope serves under it.

The cases of placement/drawn-automodel-0.7.0.json:

    python tests/truth/draw_automodel.py [--seed 1] [--count 140] > cases.jsonl
    python tests/truth/draw_automodel.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out: the test reads the seed's cases and compares them with the file's.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from drawing import Case, chosen, heads, main, maybe, numbered, pattern

STORED = Path(__file__).parent / "placement" / "drawn-automodel-0.7.0.json"
SEED, COUNT = 52, 140
FAMILIES = ("llama", "llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_moe", "mixtral", "deepseek_v3", "deepseek_v3",
            "nemotron_h", "nemotron_h")
PRESETS = {"llama": "llama-tiny", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "qwen3_moe": "qwen3-30b-a3b",
           "mixtral": "mixtral-8x7b", "deepseek_v3": "moonlight-16b-a3b", "nemotron_h": "nemotron-3-tiny"}
FULL = ("llama-3.1-8b", "llama-3.2-3b", "qwen2.5-3b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "moonlight-16b-a3b",
        "deepseek-v3", "nemotron-3-nano-4b", "nemotron-nano-9b-v2", "nemotron-h-8b")
TARGETS = (["*_proj"], ["*_proj"], ["*q_proj", "*v_proj"], ["*q_proj", "*k_proj", "*v_proj", "*o_proj"],
           ["*gate_proj", "*up_proj", "*down_proj"], ["*_proj", "*experts"], ["*_proj", "*lm_head"],
           ["*o_proj", "*gate"], ["*mlp*", "*mixer*"], ["*self_attn*", "*out_proj"], ["*_proj", "*shared_experts*"],
           ["q_proj"], ["*experts"],
           ["*in_proj", "*out_proj"], ["*kv_a_proj_with_mqa", "*q_b_proj", "*o_proj"], ["model.layers.*.o_proj"])
EXCLUDED = (["*lm_head"], ["lm_head"], ["*mlp*"], ["*q_proj", "*lm_head"], ["*self_attn*"], ["*mixer*"], ["*experts*"])


def small(rng: random.Random, family: str) -> dict[str, Any]:
    """Fields of a small model of the family, of even and of odd sizes."""
    fields: dict[str, Any] = {"hidden_size": rng.choice((96, 128, 160, 200, 256)), **heads(rng),
                              "vocab_size": chosen(rng, (512, 3), (1000, 3), (1024, 3), (1003, 1)),
                              "num_hidden_layers": rng.randint(3, 6),
                              "intermediate_size": rng.choice((176, 250, 344, 352))}
    maybe(rng, fields, 0.2 if family in ("llama", "qwen2", "qwen3") else 0.1, tie_word_embeddings=True)
    if family in ("llama", "qwen2"):  # a head is a fair share of the hidden size, or what the file says
        fields["head_dim"] = chosen(rng, (fields["hidden_size"] // fields["num_attention_heads"], 3), (32, 1))
    if family == "qwen3_moe":
        fields |= {"num_experts": rng.choice((4, 6, 8, 8)), "num_experts_per_tok": 2,
                   "moe_intermediate_size": rng.choice((48, 64, 72))}
    if family == "mixtral":
        fields |= {"num_local_experts": rng.choice((4, 6, 8)), "num_experts_per_tok": 2}
    if family == "deepseek_v3":
        fields |= latent(rng, fields["num_attention_heads"])
        del fields["head_dim"]
    if family == "nemotron_h":
        letters = pattern(rng)
        fields |= {"hybrid_override_pattern": letters, "num_hidden_layers": len(letters), "mamba_num_heads": 8,
                   "mamba_head_dim": 16, "n_groups": rng.choice((2, 4)), "ssm_state_size": 16,
                   "n_routed_experts": rng.choice((4, 8)), "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                   "moe_shared_expert_intermediate_size": 96}
    return fields


def latent(rng: random.Random, num_heads: int) -> dict[str, Any]:
    """Latent attention, and experts after a dense layer or two."""
    return {"num_key_value_heads": num_heads, "q_lora_rank": rng.choice((None, 48, 96)), "kv_lora_rank": 40,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": rng.choice((16, 24)), "n_group": 1,
            "topk_group": 1, "n_routed_experts": rng.choice((4, 6, 8, 8)), "num_experts_per_tok": 2,
            "moe_intermediate_size": rng.choice((48, 64)), "n_shared_experts": rng.choice((1, 2)),
            "first_k_dense_replace": rng.choice((1, 1, 2))}


def model(rng: random.Random) -> Case:
    """A preset as it is, or a small model."""
    if rng.random() < 0.15:
        return {"preset": rng.choice(FULL)}
    family = rng.choice(FAMILIES)
    case: Case = {"preset": PRESETS[family], "fields": small(rng, family)}
    if family in ("llama", "qwen2", "qwen3", "qwen3_moe"):
        maybe(rng, case, 0.15, force_hf=True)
    return case


def layout(rng: random.Random, preset: str) -> Case:
    """Degrees of parallelism, and one of the ranks; experts are split where there are some, elsewhere seldom."""
    case = {"pp": chosen(rng, (1, 8), (2, 2), (3, 1)), "dp_replicate": chosen(rng, (1, 8), (2, 2)),
            "cp": chosen(rng, (1, 9), (2, 1)), "tp": chosen(rng, (1, 24), (2, 1))}
    shard = chosen(rng, (1, 1), (2, 3), (3, 1), (4, 3), (5, 1), (6, 2), (7, 1), (8, 3), (12, 1), (16, 1))
    stage = case["dp_replicate"] * case["cp"] * case["tp"] * shard
    sparse = any(family in preset for family in ("moe", "30b-a3b", "moonlight", "deepseek", "nemotron"))
    fitting = [ep for ep in (2, 4, 8) if stage % ep == 0]
    if rng.random() < (0.75 if sparse else 0.04):
        case["ep"] = rng.choice(fitting) if fitting and rng.random() < 0.9 else rng.choice((3, 2, stage))
    world = stage * case["pp"]
    return {"world": world, "rank": rng.randrange(world), **{k: v for k, v in case.items() if v > 1}}


def adapters(rng: random.Random) -> Case:
    """Rank and patterns of LoRA; half of all cases train everything."""
    if rng.random() < 0.5:
        return {}
    case: Case = {"lora": rng.choice((2, 4, 6, 8, 16))}
    draw = rng.random()
    if draw < 0.65:
        case["target_modules"] = rng.choice(TARGETS)
    elif draw < 0.85:
        case["exclude_modules"] = rng.choice(EXCLUDED)
    elif draw < 0.88:
        case |= {"target_modules": rng.choice(TARGETS), "exclude_modules": rng.choice(EXCLUDED)}
    return case


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model."""
    case = model(rng)
    case |= layout(rng, case["preset"]) | adapters(rng)
    maybe(rng, case, 0.15, dtype="float32")
    maybe(rng, case, 0.1, reshard_after_forward=rng.choice((True, False)))
    return case


if __name__ == "__main__":
    main(numbered("a", one), "automodel", STORED, SEED, COUNT)
