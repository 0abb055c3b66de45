"""Draws small models and settings of GaLore and APOLLO for `probe_low_rank.py`: Llamas, or of other families.

    python tests/truth/draw_low_rank.py --seed 20261130 --count 56 > cases
    python tests/truth/draw_low_rank.py --seed 20261201 --count 44 --families > cases
"""

from __future__ import annotations

import random
import sys
from typing import Any

from drawing import Case, chosen, numbered, print_cases

_LISTS = (["attn", "mlp"], ["q_proj", "v_proj"], ["mlp"], ["self_attn.o_proj", "down_proj"], ["proj"],
          ["lm_head", "mlp"])

FAMILIES = (("qwen2", "deepseek-r1-distill-qwen-1.5b"), ("qwen3", "qwen3-0.6b"), ("gemma2", "gemma-2-2b"),
            ("mixtral", "mixtral-8x7b"), ("olmo2", "olmo-2-1b"), ("granite", "granite-3.3-2b"),
            ("qwen3_moe", "qwen3-30b-a3b"))
"""Families with a preset of each, whose fields that are not drawn the small model keeps in the simulation."""


def _model(rng: random.Random) -> Case:
    heads = rng.choice((2, 4, 6))
    return {"hidden_size": 16 * heads * rng.choice((1, 2)), "intermediate_size": rng.choice((48, 96, 144, 256)),
            "num_hidden_layers": rng.choice((1, 2, 3)), "num_attention_heads": heads,
            "num_key_value_heads": heads // rng.choice((1, 2)), "vocab_size": rng.choice((64, 200, 512)),
            "tie_word_embeddings": rng.random() < 0.4}


def _settings(rng: random.Random, *, apollo: bool) -> dict[str, Any]:
    given: dict[str, Any] = {"rank": rng.choice((4, 8, 16, 24, 128)), "update_proj_gap": rng.choice((1, 2, 200)),
                             "proj_type": chosen(rng, ("std", 4), ("reverse_std", 1), ("left", 1), ("right", 1),
                                                 ("full", 1))}
    if apollo:
        given |= {"proj": chosen(rng, ("random", 2), ("svd", 1)), "scale_type": rng.choice(("channel", "tensor"))}
    return {key: value for key, value in given.items() if rng.random() < 0.85}


def _one(rng: random.Random) -> Case:
    apollo = rng.random() < 0.5
    case: Case = {"model": _model(rng), "dtype": chosen(rng, ("bfloat16", 3), ("float32", 2), ("float16", 0.5)),
                  "optim": "apollo_adamw" if apollo else "galore_adamw",
                  "targets": chosen(rng, ("all-linear", 2), *((names, 1) for names in _LISTS)),
                  "args": _settings(rng, apollo=apollo)}
    if rng.random() < 0.15:
        case["lora"] = rng.choice((2, 8, 32))
    return case


def _of_family(rng: random.Random) -> Case:
    family, preset = rng.choice(FAMILIES)
    case = _one(rng)
    case["model"] |= {"head_dim": case["model"]["hidden_size"] // case["model"]["num_attention_heads"]}
    if family in ("mixtral", "qwen3_moe"):
        case["model"] |= {"num_local_experts" if family == "mixtral" else "num_experts": rng.choice((2, 4)),
                          "num_experts_per_tok": 2}
    if family == "qwen3_moe":
        case["model"] |= {"moe_intermediate_size": rng.choice((32, 64))}
    return {"family": family, "preset": preset, **{key: case[key] for key in case if key != "lora"}}


if __name__ == "__main__":
    others = "--families" in sys.argv
    if others:
        sys.argv.remove("--families")
    print_cases(numbered("f" if others else "r", _of_family if others else _one), __doc__, 20261130, 56)
