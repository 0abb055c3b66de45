"""Draws layouts of torchtitan's experts at random, for `probe_titan.py --step`.

    python tests/truth/draw_titan.py [--count N] [--seed S] [--llama4 | --oss | --compiled] > cases.json

The same seed draws the same cases, whatever the machine; torch refuses a few of their widths. `--llama4`, `--oss`: of
Llama 4 or of GPT-OSS alone, by a seed of its own. `--compiled`: layers of Qwen3-MoE and Llama 4 whose parts
are compiled, for `probe_titan_parts.py`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from typing import Any

COUNT, SEED = 48, 4502
LLAMA4_COUNT, LLAMA4_SEED = 64, 4604
OSS_COUNT, OSS_SEED = 48, 4717
COMPILED_COUNT, COMPILED_SEED = 40, 4823
Case = dict[str, Any]
Model = Callable[[random.Random, int], Case]


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def qwen(pick: random.Random, width: int) -> Case:
    heads = pick.choice((4, 8))
    return {"hidden_size": pick.choice((128, 192, 256)), "num_hidden_layers": pick.randint(1, 3),
            "num_attention_heads": heads, "num_key_value_heads": pick.choice((4, heads)),
            "head_dim": pick.choice((32, 64)), "vocab_size": pick.choice((512, 1000, 2048)), "intermediate_size": 512,
            "num_experts": pick.choice((4, 8, 12, 16)), "num_experts_per_tok": pick.choice((1, 2, 4)),
            "moe_intermediate_size": width}


def deepseek(pick: random.Random, width: int) -> Case:
    """Softmax over all experts, or sigmoid and groups of them with a compressed query."""
    heads, value = pick.choice((4, 8)), pick.choice((32, 48))
    model = {"hidden_size": pick.choice((128, 256)), "num_hidden_layers": pick.randint(2, 3),
             "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": pick.choice((512, 1000, 2048)),
             "intermediate_size": pick.choice((320, 688)), "moe_intermediate_size": width,
             "n_routed_experts": pick.choice((8, 16)), "n_shared_experts": pick.choice((1, 2)),
             "num_experts_per_tok": pick.choice((2, 3, 4)), "first_k_dense_replace": pick.choice((0, 1)),
             "q_lora_rank": None, "kv_lora_rank": pick.choice((64, 96)), "qk_nope_head_dim": value - 16,
             "qk_rope_head_dim": 16, "v_head_dim": value}
    if pick.random() < 0.5:
        model |= {"q_lora_rank": pick.choice((64, 96)), "n_group": 4, "topk_group": 2}
    return model


def llama4(pick: random.Random, width: int) -> Case:
    """Every layer, or every second one, has experts and a shared one; scores weigh what experts are given."""
    heads = pick.choice((4, 8))
    return {"hidden_size": pick.choice((128, 256, 512)), "num_hidden_layers": pick.randint(1, 4),
            "num_attention_heads": heads, "num_key_value_heads": pick.choice((4, heads)),
            "vocab_size": pick.choice((512, 1000, 2048)), "intermediate_size": width,
            "intermediate_size_mlp": pick.choice((320, 688)), "num_local_experts": pick.choice((4, 8, 16)),
            "num_experts_per_tok": pick.choice((1, 1, 2)), "interleave_moe_layer_step": pick.choice((1, 2))}


def oss(pick: random.Random, width: int) -> Case:
    heads = pick.choice((4, 8))
    return {"hidden_size": pick.choice((128, 192, 320)), "num_hidden_layers": pick.randint(1, 4),
            "num_attention_heads": heads, "num_key_value_heads": pick.choice((4, heads)),
            "head_dim": pick.choice((32, 64)), "vocab_size": pick.choice((512, 1000, 2048)), "intermediate_size": width,
            "num_local_experts": pick.choice((4, 8, 12, 16)), "num_experts_per_tok": pick.choice((1, 2, 4)),
            "sliding_window": pick.choice((32, 64))}


def mesh(pick: random.Random, case: Case) -> None:
    world = case["world"]
    case["dp_replicate"] = pick.choice((1, 1, 1, 2))
    inside = world // case["dp_replicate"]
    case["tp"] = pick.choice([d for d in (1, 1, 2, 4) if inside // d > 1])
    sizes = case["model"]
    case["cp"] = pick.choice([d for d in (1, 1, 2) if case["tp"] == 1 and inside % d == 0
                              and "sliding_window" not in sizes] or [1])
    experts = next(sizes[name] for name in ("num_experts", "n_routed_experts", "num_local_experts") if name in sizes)
    etp = pick.choice((1, case["tp"]))
    degrees = [d for d in divisors(inside // etp) if experts % d == 0]
    case["ep"] = pick.choice(degrees[1:] or [1]) if pick.random() < 0.8 else 1
    case["etp"] = etp if case["ep"] > 1 else 1


def draw(pick: random.Random, number: int, models: tuple[Model, ...]) -> Case:
    width = pick.choice((64, 96, 128, 192, 192, 200))
    case: Case = {"name": f"drawn-{number}", "world": pick.choice((4, 8, 8, 16, 32)), "seq": pick.choice((128, 256)),
                  "model": pick.choice(models)(pick, width), "batch": pick.choice((1, 1, 2))}
    mesh(pick, case)
    rank = pick.choice((0, case["world"] - 1, pick.randrange(case["world"])))
    case["rank"] = rank // case["cp"] * case["cp"]  # of a ring the first: its last one holds an output less
    case["checkpoint"] = pick.choice(("none", "full", "op"))
    if case["checkpoint"] != "none" and pick.random() < 0.3:
        case["early_stop"] = True
    case["reshard"] = pick.choice(("default", "default", "always", "never"))
    return case


def drawn(count: int, seed: int, models: tuple[Model, ...] = (qwen, deepseek)) -> list[Case]:
    pick = random.Random(seed)
    return [draw(pick, number, models) for number in range(count)]


def compiled(count: int, seed: int) -> list[Case]:
    """Layers on one rank, or with experts on several."""
    pick, cases = random.Random(seed), list[Case]()
    for number in range(count):
        model = pick.choice((qwen, llama4))(pick, pick.choice((64, 96, 128, 192)))
        model["num_hidden_layers"] = 1
        if "interleave_moe_layer_step" in model:
            model["interleave_moe_layer_step"] = 1
        case: Case = {"name": f"compiled-{number}", "seq": pick.choice((128, 256, 512)), "model": model,
                      "batch": pick.choice((1, 1, 2)), "checkpoint": pick.choice(("none", "full", "op")),
                      "ep": pick.choice((1, 1, 2, 4))}
        if case["checkpoint"] != "none" and pick.random() < 0.3:
            case["early_stop"] = True
        cases.append(case)
    return cases


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--llama4", action="store_true")
    parser.add_argument("--oss", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    count, seed, models = (LLAMA4_COUNT, LLAMA4_SEED, (llama4,)) if asked.llama4 else (COUNT, SEED, (qwen, deepseek))
    if asked.oss:
        count, seed, models = OSS_COUNT, OSS_SEED, (oss,)
    cases = drawn(asked.count or count, asked.seed or seed, models)
    if asked.compiled:
        cases = compiled(asked.count or COMPILED_COUNT, asked.seed or COMPILED_SEED)
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
