"""Draws small Llamas and settings of GaLore and APOLLO for `probe_low_rank.py`.

    python tests/truth/draw_low_rank.py --seed 20261201 --count 48 > cases
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from drawing import Case, chosen, numbered, print_cases

_LISTS = (["attn", "mlp"], ["q_proj", "v_proj"], ["mlp"], ["self_attn.o_proj", "down_proj"], ["proj"],
          ["lm_head", "mlp"])


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


drawn = numbered("r", _one)
STORED = Path(__file__).parent / "optimizers"

if __name__ == "__main__":
    print_cases(drawn, __doc__, 20261130, 24)
