"""Draws layouts of Megatron-Core, of every family that rankscope serves under it.

The cases of placement/drawn-megatron-core-0.16.1.json:

    python tests/truth/draw_megatron.py [--seed 1] [--count 150] > cases.jsonl
    python tests/truth/draw_megatron.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out: the test reads the seed's cases and compares them with the file's.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from drawing import Case, chosen, heads, main, maybe, numbered, pattern

STORED = Path(__file__).parent / "placement" / "drawn-megatron-core-0.16.1.json"
SEED, COUNT = 61, 150
PRESETS = {"llama": "llama-tiny", "mistral": "mistral-7b-v0.1", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b",
           "qwen3_moe": "qwen3-30b-a3b", "qwen2_moe": "qwen1.5-moe-a2.7b", "mixtral": "mixtral-8x7b",
           "deepseek_v2": "deepseek-v2-lite", "deepseek_v3": "moonlight-16b-a3b", "gpt_oss": "gpt-oss-20b",
           "gpt2": "gpt2", "nemotron_h": "nemotron-3-tiny"}
FULL = ("llama-3.1-8b", "llama-3.2-3b", "mistral-7b-v0.3", "qwen2.5-3b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b",
        "moonlight-16b-a3b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "gpt2", "nemotron-3-nano-4b",
        "nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b")
LATENT, HYBRID = ("deepseek_v2", "deepseek_v3"), ("nemotron_h",)
SPARSE = ("qwen3_moe", "qwen2_moe", "mixtral", "gpt_oss", *LATENT, *HYBRID)
TARGETS = (["linear_qkv"], ["linear_qkv", "linear_proj"], ["linear_fc1", "linear_fc2"], ["*linear_fc2", "*linear_proj"],
           ["*.layers.*.mlp.linear_fc1", "linear_proj"], ["linear_proj", "output_layer"], ["*self_attention.linear_*"],
           ["*self_attention*"], ["*mlp*"])
SPARSE_TARGETS = (["*experts.linear_fc1", "linear_proj"], ["router", "linear_proj"], ["*.experts.linear_fc*"],
                  ["*shared_experts*", "linear_proj"])
LATENT_TARGETS = (["linear_kv_down_proj", "linear_proj"], ["linear_q_proj", "linear_q_up_proj", "linear_kv_up_proj"],
                  ["linear_q_down_proj", "linear_fc1"])
HYBRID_TARGETS = (["in_proj", "out_proj"], ["*mixer.in_proj", "linear_fc1"], ["*mixer*"])
EXCLUDED = (["output_layer"], ["linear_fc1"], ["*mlp*"], ["*self_attention*", "output_layer"],
            ["linear_proj", "*experts*"], ["linear_kv_up_proj", "in_proj"])


def small(rng: random.Random, family: str, count: int) -> dict[str, Any]:
    """Fields of a small model of the family, with `count` layers."""
    hidden, vocab = rng.choice((96, 128, 256)), chosen(rng, (512, 3), (1000, 2), (1024, 3), (1536, 3), (1003, 0.5))
    if family == "gpt2":
        return {"n_embd": hidden, "n_head": rng.choice((4, 8)), "n_layer": count, "vocab_size": vocab,
                "n_positions": 512, "tie_word_embeddings": rng.random() < 0.6}
    fields: dict[str, Any] = {"hidden_size": hidden, "vocab_size": vocab, "num_hidden_layers": count,
                              "intermediate_size": rng.choice((176, 240, 344, 352)), **heads(rng)}
    if family in ("llama", "mistral", "qwen2"):  # a head is a fair share of the hidden size
        fields |= {"num_attention_heads": 8, "num_key_value_heads": rng.choice((2, 4, 8)), "head_dim": hidden // 8}
    maybe(rng, fields, 0.25, tie_word_embeddings=True)
    experts, width = rng.choice((4, 6, 8, 8)), rng.choice((48, 64, 72))
    if family in ("qwen3_moe", "qwen2_moe"):
        fields |= {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": width}
    if family == "qwen2_moe":
        del fields["head_dim"]
        fields |= {"num_attention_heads": 8, "num_key_value_heads": 8, "shared_expert_intermediate_size": 96}
    if family in ("mixtral", "gpt_oss"):
        fields |= {"num_local_experts": experts, "num_experts_per_tok": 2}
    if family in LATENT:
        del fields["head_dim"]
        fields |= {"num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": rng.choice((None, 48, 96)),
                   "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
                   "v_head_dim": rng.choice((16, 24)), "n_group": 1, "topk_group": 1,
                   "n_routed_experts": experts, "num_experts_per_tok": 2,
                   "moe_intermediate_size": width, "n_shared_experts": rng.choice((1, 2)),
                   "first_k_dense_replace": rng.choice((1, 1, 2))}
        maybe(rng, fields, 0.35, mtp_num_layers=rng.choice((1, 1, 2)))
    if family in HYBRID:
        fields |= {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": rng.choice((2, 4)), "ssm_state_size": 16,
                   "n_routed_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": width,
                   "moe_shared_expert_intermediate_size": 96}
    return fields


def layout(rng: random.Random, *, sparse: bool) -> Case:
    """Degrees of parallelism, and one of the ranks."""
    case = {"pp": chosen(rng, (1, 6), (2, 3), (3, 1), (4, 1)), "tp": chosen(rng, (1, 5), (2, 4), (4, 1)),
            "cp": chosen(rng, (1, 8), (2, 1)), "dp_replicate": chosen(rng, (1, 8), (2, 1))}
    shard = chosen(rng, (1, 1), (2, 3), (3, 1), (4, 3), (5, 1), (6, 1), (8, 2))
    stage = case["tp"] * case["cp"] * case["dp_replicate"] * shard
    etp = chosen(rng, (0, 4), (1, 5), (2, 1 + (stage % 2 == 0)))
    if etp:
        case["etp"] = etp
    fitting = [ep for ep in (2, 4, 8) if stage % (ep * (etp or case["tp"])) == 0]
    if rng.random() < (0.7 if sparse else 0.04) and (fitting or rng.random() < 0.2):
        case["ep"] = rng.choice(fitting) if fitting and rng.random() < 0.93 else rng.choice((2, 3))
    world = stage * case["pp"]
    return {"world": world, "rank": rng.randrange(world), **{k: v for k, v in case.items() if v > 1 or k == "etp"}}


def written(rng: random.Random, pp: int) -> tuple[int, str]:
    """A layout string of `pp` or 2 pp chunks, and its number of layers."""
    counts = [rng.randint(1, 3) for _ in range(pp * rng.choice((1, 2)))]
    return sum(counts), f"E{'|'.join('t' * count for count in counts)}L"


def stages(rng: random.Random, case: Case, *, hybrid: bool) -> tuple[int, Case]:
    """How many layers, and how they are cut over the pipeline; one in ten does not fit."""
    pp = case.get("pp", 1)
    if rng.random() < 0.06:
        return rng.randint(2, 7), {}
    if pp == 1:
        return rng.randint(2, 5), {}
    draw = rng.random()
    if draw < 0.25 and not hybrid:
        return 2 * pp * rng.choice((1, 2)), {"vpp": 2}
    if draw < 0.4 and not hybrid:
        return 2 * pp - 1, {rng.choice(("account_embedding", "account_loss")): True}
    if draw < 0.5 and not hybrid and pp > 2:
        return 2 * (pp - 2) + 4, {"first": 1, "last": 3}
    if draw < 0.6 and not hybrid:
        return 2 * (pp - 1) + 3, {rng.choice(("first", "last")): 3}
    if draw < 0.7 and not hybrid:
        count, text = written(rng, pp)
        return count, {"layout": text}
    return pp * rng.choice((1, 2, 3)), {}


def adapters(rng: random.Random, family: str) -> Case:
    """Rank and patterns of LoRA; half of all cases train everything."""
    if rng.random() < 0.5:
        return {}
    case: Case = {"lora": rng.choice((4, 4, 8, 16, 6, 3))}
    known = [*TARGETS, *(SPARSE_TARGETS if family in SPARSE else ()), *(LATENT_TARGETS * 2 if family in LATENT else ()),
             *(HYBRID_TARGETS if family in HYBRID else ())]
    draw = rng.random()
    if draw < 0.55:
        case["target_modules"] = rng.choice(known)
    elif draw < 0.85:
        case["exclude_modules"] = rng.choice(EXCLUDED)
    elif draw < 0.88:
        case |= {"target_modules": rng.choice(known), "exclude_modules": rng.choice(EXCLUDED)}
    return case


def family_of(preset: str) -> str:
    """The family of a full-size preset."""
    words = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3-30b": "qwen3_moe", "qwen3": "qwen3",
             "mixtral": "mixtral", "moonlight": "deepseek_v3", "v2-lite": "deepseek_v2", "deepseek": "deepseek_v3",
             "gpt-oss": "gpt_oss", "gpt2": "gpt2", "nemotron": "nemotron_h"}
    return next(family for word, family in words.items() if word in preset)


def stored_otherwise(rng: random.Random, case: Case) -> Case:
    """The case, of which a few are stored or reduced in another format, or without the distributed optimizer."""
    maybe(rng, case, 0.1, dtype="float16")
    maybe(rng, case, 0.15, grad_fp32=False)
    maybe(rng, case, 0.12, distributed=False)
    return case


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model whose layers suit the pipeline."""
    full = rng.choice(FULL) if rng.random() < 0.15 else ""
    family = family_of(full) if full else rng.choice(tuple(PRESETS))
    case = layout(rng, sparse=family in SPARSE)
    count, cut = stages(rng, case, hybrid=family in HYBRID)
    if full:
        case |= {"preset": full}
    else:
        letters = pattern(rng) if family in HYBRID else ""
        if letters and case.get("pp", 1) > 1 and count > 3:
            letters = (letters * 3)[:count]
        fields = small(rng, family, len(letters) or count)
        if letters:
            fields["hybrid_override_pattern"] = letters
        case |= {"preset": PRESETS[family], "fields": fields, **cut}
    case |= adapters(rng, family)
    if family == "gpt_oss" and rng.random() < 0.8:
        case["etp"] = 1
    if case.get("tp", 1) > 1:
        maybe(rng, case, 0.04 if family in SPARSE else 0.2, sp=False)
    if family in SPARSE:
        maybe(rng, case, 0.08, grouped=False)
    return stored_otherwise(rng, case)


if __name__ == "__main__":
    main(numbered("m", one), "megatron", STORED, SEED, COUNT)
