"""Draws steps of GPT-NeoX for the FSDP2 probe (`probe_drawn_fsdp2.py`).

    python tests/truth/draw_neox.py [--count N] [--seed S] > cases

The same seed draws the same cases.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED = 28, 905177


def model(pick: random.Random) -> plain.Case:
    """Sizes of layers with attention beside the MLP or before it, which turn all of a head or a part."""
    count, dim = pick.choice((2, 4, 6, 8)), pick.choice((16, 32, 64))
    return {"preset": "pythia-1.4b", "overrides": {
        "hidden_size": count * dim, "num_attention_heads": count, "vocab_size": pick.choice((257, 500, 777, 1024)),
        "num_hidden_layers": pick.randint(1, 5), "intermediate_size": pick.choice((96, 172, 350, 688, 1001)),
        "rotary_pct": pick.choice((0.25, 0.25, 0.5, 1.0)), "use_parallel_residual": pick.random() < 0.7,
        "attention_bias": pick.random() < 0.8, "hidden_dropout": pick.choice((0.0, 0.0, 0.0, 0.1))}}


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:neox:{number}")
    case: plain.Case = {"name": f"neox-{number:03}", "model": model(pick)}
    plain.mixture(pick, case, 0)
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1."""
    return [draw(seed, number) for number in range(count)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
