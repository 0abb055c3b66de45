"""Draws layouts of GLM-5, whose attention sees the keys that an indexer has chosen, under Megatron's main.

The cases of placement/drawn-megatron-chosen-main-2026-08-22.json:

    python tests/truth/draw_megatron_chosen.py [--seed 1] [--count 100] > cases.jsonl
    PYTHONPATH=MEGATRON:BRIDGE/src python tests/truth/draw_megatron_chosen.py --measure      # writes the file

MEGATRON, BRIDGE: Megatron-LM d98e8a64 and Megatron-Bridge 067f987d. Layers of GLM-5.2 take the keys of an earlier one;
where a stage begins with such a layer upstream stops. Tokens go by an all-to-all. The first 56 were looked at blind: of
those that both have, none was otherwise. Those behind the fixed ones came after parts without a layer were mended.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_megatron import EXCLUDED, LATENT_TARGETS, SPARSE_TARGETS, TARGETS, layout, stages, stored_otherwise
from drawing import Case, chosen, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-megatron-chosen-main-2026-08-22.json"
SEED, COUNT, BLIND, LATER = 804417, 100, 56, 915263
V4: Case = {"name": "v4", "world": 1, "rank": 0, "preset": "deepseek-v4-flash", "fields": {
    "rope_theta": 10000, "rope_scaling": {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                                          "rope_theta": 10000}}}
EMPTY: Case = {"name": "empty", "world": 4, "rank": 3, "pp": 2, "preset": "glm-5", "layout": "Ett||t|tmL", "fields": {
    "hidden_size": 128, "vocab_size": 1024, "num_hidden_layers": 4, "intermediate_size": 176, "num_attention_heads": 8,
    "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "first_k_dense_replace": 1, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8, "mtp_num_layers": 1}}
OF_INDEXERS = (["*indexer.linear_wk"], ["*indexer*"], ["linear_wq_b", "linear_weights_proj", "linear_proj"],
               ["*kv_layernorm"])


def small(rng: random.Random, count: int) -> dict[str, Any]:
    """Fields of a small GLM-5 or GLM-5.2 with `count` layers."""
    fields: dict[str, Any] = {
        "hidden_size": rng.choice((96, 128, 256)), "num_hidden_layers": count,
        "vocab_size": chosen(rng, (512, 3), (1024, 3), (1536, 2), (1003, 0.5)),
        "intermediate_size": rng.choice((176, 240, 344, 352)), "num_attention_heads": 8, "num_key_value_heads": 8,
        "q_lora_rank": rng.choice((48, 96)), "kv_lora_rank": rng.choice((40, 64)), "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": rng.choice((16, 24)),
        "index_n_heads": rng.choice((2, 3, 4)), "index_head_dim": rng.choice((16, 32)), "index_topk": 16,
        "n_routed_experts": rng.choice((4, 6, 8, 8)), "num_experts_per_tok": 2,
        "moe_intermediate_size": rng.choice((48, 64, 72)), "n_shared_experts": rng.choice((1, 1, 2)),
        "first_k_dense_replace": rng.choice((0, 1, 1, 2)),
        "index_topk_freq": chosen(rng, (1, 5), (2, 3), (3, 1), (4, 2)),
        "index_skip_topk_offset": chosen(rng, (0, 1), (1, 2), (2, 2), (3, 2)),
        "tie_word_embeddings": rng.random() < 0.1}
    maybe(rng, fields, 0.45, mtp_num_layers=rng.choice((1, 1, 1, 2)))
    return fields


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model whose layers suit the pipeline."""
    case = layout(rng, sparse=True)
    count, cut = stages(rng, case, hybrid=False)
    if rng.random() < 0.15 and case.get("ep", 1) * case.get("pp", 1) >= 8:  # fewer have too many buckets for a probe
        case |= {"preset": rng.choice(("glm-5", "glm-5.2"))}
    else:
        case |= {"preset": "glm-5", "fields": small(rng, count), **cut}
        if "layout" in case:
            case["layout"] = case["layout"].replace("L", "m" * case["fields"].get("mtp_num_layers", 0) + "L")
    if rng.random() < 0.4:
        case["lora"] = rng.choice((4, 4, 8, 16, 6))
        draw = rng.random()
        if draw < 0.65:
            case["target_modules"] = rng.choice((*TARGETS, *SPARSE_TARGETS, *LATENT_TARGETS, *OF_INDEXERS))
        elif draw < 0.85:
            case["exclude_modules"] = rng.choice(EXCLUDED)
    if case.get("tp", 1) > 1:
        maybe(rng, case, 0.06, sp=False)
    return stored_otherwise(rng, case)


def uneven(rng: random.Random) -> Case:
    """Such a case, of whose virtual stages one may have handed its layers to the next."""
    case = one(rng)
    if case.get("vpp") != 2 or rng.random() < 0.3:
        return case
    fields, chunks = case["fields"], 2 * case["pp"]
    counts = [fields["num_hidden_layers"] // chunks] * chunks
    place = rng.randrange(1, chunks - 1)
    counts[place + 1] += counts[place]
    counts[place] = 0
    further = "m" * fields.get("mtp_num_layers", 0)
    text = f"E{'|'.join('t' * count for count in counts)}{further}L"
    return {**{key: value for key, value in case.items() if key != "vpp"}, "layout": text}


def drawn(seed: int, count: int) -> list[Case]:
    """Cases of the seed, fixed ones, and those behind `BLIND`, by another seed.

    The fixed ones are DeepSeek-V4, which main does not have, and ranks with a part of no layer.

    Beside modules of multi-token prediction Bridge asks for such a part's layers in another way, which core refuses.
    """
    plain = {name: value for name, value in EMPTY["fields"].items() if name != "mtp_num_layers"}
    fixed = [V4, EMPTY, {**EMPTY, "name": "last", "layout": "Ett|t|t|mL"},
             {**EMPTY, "name": "plain", "layout": "Ett||t|tL", "fields": plain}]
    return [*numbered("g", one)(seed, min(count, BLIND)), *fixed,
            *numbered("h", uneven)(LATER + seed - SEED, max(count - BLIND, 0))]


if __name__ == "__main__":
    main(drawn, "megatron", STORED, SEED, COUNT)
