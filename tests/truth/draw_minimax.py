"""Draws steps of MiniMax-M2 for the FSDP2 probe (`probe_drawn_fsdp2.py`).

    python tests/truth/draw_minimax.py [--count N] [--seed S] > cases

The same seed draws the same cases.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED = 40, 664201


def model(pick: random.Random) -> plain.Case:
    """Sizes of layers that turn a part of each head, with experts alone."""
    sizes = plain.heads(pick)
    dim = sizes["head_dim"]
    return {"preset": "minimax-m2", "overrides": {
        **sizes, "hidden_size": pick.choice((96, 128, 192, 256)), "num_hidden_layers": pick.randint(1, 4),
        "rotary_dim": pick.choice((dim // 2, dim // 4)), "vocab_size": pick.choice((512, 777, 1000)),
        "num_local_experts": pick.choice((4, 8, 12)), "num_experts_per_tok": pick.choice((1, 2, 4)),
        "intermediate_size": pick.choice((48, 72, 104))}}


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:minimax:{number}")
    case: plain.Case = {"name": f"minimax-{number:03}", "model": model(pick)}
    plain.mixture(pick, case, case["model"]["overrides"]["num_local_experts"])
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1."""
    return [draw(seed, number) for number in range(count)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
