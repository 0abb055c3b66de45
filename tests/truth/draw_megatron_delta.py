"""Draws layouts of models with gated delta nets under Megatron: Qwen3-Next, and Qwen3.5 dense and with experts.

The cases of placement/drawn-megatron-delta-core-0.16.1.json:

    python tests/truth/draw_megatron_delta.py [--seed 1] [--count 44] > cases.jsonl
    python tests/truth/draw_megatron_delta.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_megatron import layout, stages, stored_otherwise
from drawing import Case, chosen, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-megatron-delta-core-0.16.1.json"
SEED, COUNT = 22, 44
PRESETS = {"qwen3_next": "qwen3-next-80b-a3b", "qwen3_5_text": "qwen3.5-9b-text",
           "qwen3_5_moe_text": "qwen3.5-35b-a3b-text"}
FULL = ("qwen3-next-80b-a3b", "qwen3.5-9b-text", "qwen3.5-35b-a3b-text", "qwen3.5-122b-a10b-text")
TARGETS = (["linear_qkv", "linear_proj"], ["in_proj", "out_proj"], ["linear_fc1", "linear_fc2"],
           ["*self_attention.in_proj"], ["*self_attention.linear_*", "in_proj"], ["*conv1d"], ["*out_norm"])


def small(rng: random.Random, family: str, count: int) -> dict[str, Any]:
    """Fields of a small model of the family, with `count` layers."""
    keys = rng.choice((2, 4, 4, 8))
    fields: dict[str, Any] = {
        "hidden_size": rng.choice((96, 128, 256)), "vocab_size": chosen(rng, (512, 3), (1024, 3), (1003, 0.5)),
        "num_hidden_layers": count, "num_attention_heads": 8, "num_key_value_heads": rng.choice((1, 2, 4, 8)),
        "head_dim": rng.choice((16, 32)), "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * rng.choice((1, 2, 4)), "linear_key_head_dim": rng.choice((16, 32)),
        "linear_value_head_dim": rng.choice((16, 24)), "linear_conv_kernel_dim": rng.choice((3, 4)),
        "layer_types": [("linear_attention", "full_attention")[(i + 1) % 4 == 0] for i in range(count)]}
    if family == "qwen3_5_text":
        fields["intermediate_size"] = rng.choice((176, 240, 352))
    else:
        fields |= {"num_experts": rng.choice((4, 8, 8)), "num_experts_per_tok": 2,
                   "moe_intermediate_size": rng.choice((48, 64)),
                   "shared_expert_intermediate_size": rng.choice((64, 96))}
    maybe(rng, fields, 0.2, tie_word_embeddings=True)
    if not fields.get("tie_word_embeddings"):
        maybe(rng, fields, 0.25, mtp_num_layers=1)
    return fields


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model whose layers suit the pipeline."""
    full = rng.choice(FULL) if rng.random() < 0.15 else ""
    family = rng.choice(tuple(PRESETS))
    sparse = family != "qwen3_5_text"
    case = layout(rng, sparse=sparse)
    count, cut = stages(rng, case, hybrid=False)
    case |= {"preset": full} if full else {"preset": PRESETS[family], "fields": small(rng, family, count), **cut}
    if rng.random() < 0.5:
        case["lora"] = rng.choice((4, 8, 6))
        maybe(rng, case, 0.7, target_modules=rng.choice(TARGETS))
    if case.get("tp", 1) > 1:
        maybe(rng, case, 0.1, sp=False)
    return stored_otherwise(rng, case)


if __name__ == "__main__":
    main(numbered("d", one), "megatron", STORED, SEED, COUNT)
