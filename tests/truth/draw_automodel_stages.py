"""Draws layouts of Step 3.5 and DeepSeek-V4 under NeMo Automodel, most over pipeline stages.

The cases of placement/drawn-automodel-stages-0.7.0.json:

    python tests/truth/draw_automodel_stages.py [--seed 1] [--count 51] > cases.jsonl
    python tests/truth/draw_automodel_stages.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from drawing import Case, chosen, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-automodel-stages-0.7.0.json"
SEED, COUNT = 20263012, 51
WINDOW, WHOLE = "sliding_attention", "full_attention"


def step(rng: random.Random) -> dict[str, Any]:
    """Fields of a small Step 3.5: whole layers and such with a window, dense ones and such with experts."""
    layers, groups, dim = rng.randint(3, 9), rng.choice((1, 2)), rng.choice((16, 32))
    first = rng.randint(0, min(3, layers - 1))
    return {"hidden_size": rng.choice((96, 128, 200)), "num_attention_heads": groups * rng.choice((2, 4)),
            "num_attention_groups": groups, "head_dim": dim, "attention_other_setting": {
                "attention_type": WINDOW, "num_attention_heads": groups * rng.choice((3, 6)),
                "num_attention_groups": groups, "head_dim": dim},
            "num_hidden_layers": layers, "layer_types": rng.choices((WINDOW, WHOLE), k=layers),
            "partial_rotary_factors": rng.choices((0.5, 1.0), k=layers),
            "vocab_size": chosen(rng, (512, 3), (1000, 3), (1003, 1)), "intermediate_size": rng.choice((176, 250)),
            "moe_layers_enum": ",".join(map(str, range(first, layers))), "moe_num_experts": rng.choice((4, 6, 8, 8)),
            "moe_top_k": 2, "moe_intermediate_size": rng.choice((48, 72)), "share_expert_dim": rng.choice((40, 96)),
            "swiglu_limits_shared": [0] * layers}


def deepseek(rng: random.Random) -> dict[str, Any]:
    """Fields of a small DeepSeek-V4: streams, layers with compressed keys of each kind."""
    layers, heads, groups = rng.randint(3, 8), rng.choice((4, 8)), rng.choice((1, 2, 4))
    return {"hidden_size": rng.choice((96, 128, 160)), "num_attention_heads": heads, "head_dim": rng.choice((32, 64)),
            "qk_rope_head_dim": rng.choice((8, 16)), "q_lora_rank": rng.choice((48, 64)),
            "o_lora_rank": rng.choice((16, 40)), "o_groups": groups, "num_hidden_layers": layers,
            "compress_ratios": rng.choices((0, 4, 128), k=layers),
            "vocab_size": chosen(rng, (512, 3), (1000, 3)), "n_routed_experts": rng.choice((4, 6, 8, 8)),
            "num_experts_per_tok": 2, "moe_intermediate_size": rng.choice((48, 72)),
            "hc_mult": rng.choice((2, 4)), "index_head_dim": rng.choice((32, 64)), "index_n_heads": rng.choice((2, 4)),
            "num_hash_layers": rng.choice((0, 1, 3)), "num_nextn_predict_layers": 0}


def layout(rng: random.Random) -> Case:
    """Degrees of parallelism, and one of the ranks."""
    case = {"pp": chosen(rng, (1, 1), (2, 4), (3, 3), (4, 2)), "dp_replicate": chosen(rng, (1, 6), (2, 2))}
    shard = chosen(rng, (2, 3), (3, 1), (4, 4), (6, 1), (8, 3), (16, 1))
    stage = case["dp_replicate"] * shard
    fitting = [ep for ep in (2, 4, 8) if stage % ep == 0]
    if rng.random() < 0.95:
        case["ep"] = rng.choice(fitting) if fitting and rng.random() < 0.95 else 3
    world = stage * case["pp"]
    return {"world": world, "rank": rng.randrange(world), **{k: v for k, v in case.items() if v > 1}}


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model."""
    family = rng.choice(("step", "deepseek"))
    preset = {"step": "step-3.5-flash", "deepseek": "deepseek-v4-flash"}[family]
    whole = {} if family == "step" else {"num_nextn_predict_layers": 0}
    case: Case = {"preset": preset, "fields": whole if rng.random() < 0.06 else
                  step(rng) if family == "step" else deepseek(rng)}
    case |= layout(rng)
    maybe(rng, case, 0.3 * (family == "step"), lora=rng.choice((4, 8)), target_modules=["*_proj"])
    maybe(rng, case, 0.15, dtype="float32")
    maybe(rng, case, 0.1, reshard_after_forward=rng.choice((True, False)))
    return case


if __name__ == "__main__":
    main(numbered("p", one), "automodel", STORED, SEED, COUNT)
