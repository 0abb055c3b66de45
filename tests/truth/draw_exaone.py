"""Draws steps of EXAONE 4 and K-EXAONE for the FSDP2 probe (`probe_drawn_fsdp2.py`).

    python tests/truth/draw_exaone.py [--count N] [--seed S] > cases

The same seed draws the same cases. Windows are longer than the sequences: of masks a CPU has other kernels.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED = 42, 520431
WHOLE, SLIDING = "full_attention", "sliding_attention"


def model(pick: random.Random) -> plain.Case:
    """Sizes of one of the three published models' kinds: without a window, with one, with experts."""
    sizes = plain.heads(pick)
    layers = sizes["num_hidden_layers"]
    kind = pick.choice(("exaone-4.0-1.2b", "exaone-4.0-32b", "exaone-4.0-32b", "k-exaone-236b-a23b"))
    types = [WHOLE] * layers if kind.endswith("1.2b") else [pick.choice((WHOLE, SLIDING)) for _ in range(layers)]
    made = {**sizes, "hidden_size": pick.choice((96, 128, 192, 256)), "layer_types": types}
    if kind.startswith("k-"):
        dense = pick.randint(0, 1)
        made |= {"mlp_layer_types": (["dense"] * dense + ["sparse"] * layers)[:layers],
                 "num_experts": pick.choice((4, 8)), "num_experts_per_tok": pick.choice((1, 2)),
                 "moe_intermediate_size": pick.choice((48, 72, 104)), "num_shared_experts": pick.choice((1, 1, 2))}
    return {"preset": kind, "overrides": made}


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:exaone:{number}")
    case: plain.Case = {"name": f"exaone-{number:03}", "model": model(pick)}
    plain.mixture(pick, case, case["model"]["overrides"].get("num_experts", 0))
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1."""
    return [draw(seed, number) for number in range(count)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
