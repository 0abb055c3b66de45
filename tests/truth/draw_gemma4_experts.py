"""Draws steps of Gemma 4 with experts for the FSDP2 probe (`probe_drawn_fsdp2.py`).

    PYTHONHASHSEED=1 python tests/truth/draw_gemma4_experts.py [--count N] [--seed S] > cases

The same seed draws the same cases. The model makes rotary tables in the order of a set of words: the probe too is run
with that hash seed, by which layers with a window come first.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED = 44, 20261203
TYPES = ("sliding_attention", "full_attention")


def model(pick: random.Random) -> plain.Case:
    """Sizes of layers with a window and whole ones, experts beside an MLP in each."""
    sizes = plain.heads(pick)
    heads, dim = sizes["num_attention_heads"], sizes["head_dim"]
    kept = plain.divisors(heads)
    layers = pick.randint(2, 4)
    types = [*[pick.choice(TYPES) for _ in range(layers - 1)], TYPES[1]]
    return {"preset": "gemma-4-26b-a4b-text", "overrides": {
        **sizes, "hidden_size": pick.choice((96, 128, 192, 256)), "num_hidden_layers": layers, "layer_types": types,
        "num_global_key_value_heads": pick.choice(kept), "global_head_dim": pick.choice((dim, 2 * dim)),
        "tie_word_embeddings": True, "num_experts": pick.choice((4, 8, 12)), "top_k_experts": pick.choice((1, 2, 4)),
        "moe_intermediate_size": pick.choice((48, 72, 104))}}


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:gemma4 experts:{number}")
    case: plain.Case = {"name": f"gemma4-experts-{number:03}", "model": model(pick)}
    plain.mixture(pick, case, case["model"]["overrides"]["num_experts"])
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1."""
    return [draw(seed, number) for number in range(count)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
