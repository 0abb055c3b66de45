"""Draws mixtures of experts for the probe of transformers' own plans of tensor parallelism.

    python tests/truth/draw_hf_mixtures.py [--count N] [--seed S] > cases

The same seed draws the same cases. Widths and vocabularies are cut evenly, no head is tied, and experts run grouped
products, whose rows are of whole 16 bytes.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED = 44, 20261201
MODELS = ("qwen3-30b-a3b", "qwen3-30b-a3b", "mixtral-8x7b", "mixtral-8x7b", "qwen1.5-moe-a2.7b", "glm-4.5-air")
"""Presets whose sizes are drawn."""


def attention(pick: random.Random, of_keys: int) -> plain.Case:
    """Sizes of attention with `of_keys` heads of keys."""
    count, dim = of_keys * pick.choice((1, 2, 3)), pick.choice((16, 32, 48))
    return {"num_attention_heads": count, "num_key_value_heads": of_keys, "hidden_size": count * dim, "head_dim": dim,
            "tie_word_embeddings": False, "num_hidden_layers": pick.randint(1, 3)}


def experts(pick: random.Random, preset: str, width: int) -> plain.Case:
    """Sizes of experts whose width is a multiple of `width`, by the words of a model's configuration."""
    number, ffn = pick.choice((4, 6, 8, 12)), width * pick.choice((16, 24, 56))
    sizes: plain.Case = {"num_experts_per_tok": pick.choice((1, 2, 4))}
    if preset.startswith("mixtral"):
        return {**sizes, "num_local_experts": number, "intermediate_size": ffn}
    sizes.update(moe_intermediate_size=ffn, intermediate_size=width * pick.choice((48, 57, 116)))
    if preset.startswith("glm"):
        return {**sizes, "n_routed_experts": number, "n_group": 1, "topk_group": 1, "use_qk_norm": False,
                "n_shared_experts": 1, "first_k_dense_replace": pick.choice((0, 1)), "partial_rotary_factor": 0.5}
    if preset.startswith("qwen1.5"):
        return {**sizes, "num_experts": number, "shared_expert_intermediate_size": pick.choice((40, 96, 130))}
    return {**sizes, "num_experts": number, "mlp_only_layers": pick.choice(([], [], [0]))}


def model(pick: random.Random, tp: int) -> plain.Case:
    """A small mixture that `tp` ranks can share."""
    preset = pick.choice(MODELS)
    sizes = attention(pick, tp * pick.choice((1, 1, 2)))
    if preset.startswith("qwen1.5"):  # its heads are cut from the hidden size
        del sizes["head_dim"]
    return {"preset": preset, "overrides": {**sizes, "vocab_size": tp * pick.choice((129, 250, 333, 512)),
                                            **experts(pick, preset, tp)}}


def workload(pick: random.Random, case: plain.Case, shards: int) -> plain.Case:
    """`case` with what runs on it, transformers' grouped products among it."""
    plain.reshard(pick, case)
    if isinstance(case.get("reshard"), int) and not isinstance(case["reshard"], bool):
        case["reshard"] = pick.choice(plain.divisors(shards))
    plain.precision(pick, case)
    if "bfloat16" not in (case["mp_param"] or case["store_dtype"]):
        case["mp_param"] = "bfloat16"  # on fake tensors torch's grouped products take no other type
    plain.workload(pick, case, small=True)
    case.pop("optim_in_bwd", None)
    plain.wrapping(pick, case)
    return {**case, "experts_implementation": "grouped_mm"}


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:mixtures:{number}")
    tp, shards, copies = pick.choice((2, 2, 2, 3, 4)), pick.choice((2, 2, 3, 4, 5)), pick.choice((1, 1, 1, 2))
    world, made = tp * shards * copies, model(pick, tp)
    case: plain.Case = {"name": f"tp-{number:03}-{made['preset'].split('-')[0]}", "model": made, "tp": tp,
                        "world": world, "dp_replicate": copies, "rank": pick.randrange(world)}
    return workload(pick, case, shards)


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1."""
    return [draw(seed, number) for number in range(count)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
