"""Draws layouts of models that predict further tokens under Megatron: with stages, experts and adapters.

The cases of placement/drawn-megatron-mtp-core-0.16.1.json:

    python tests/truth/draw_megatron_mtp.py [--seed 1] [--count 44] > cases.jsonl
    python tests/truth/draw_megatron_mtp.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path

from draw_megatron import EXCLUDED, LATENT, LATENT_TARGETS, PRESETS, SPARSE_TARGETS, TARGETS, layout, small, stages
from drawing import Case, main, maybe

STORED = Path(__file__).parent / "placement" / "drawn-megatron-mtp-core-0.16.1.json"
SEED, COUNT = 20261129, 44
KNOWN = (*TARGETS, *SPARSE_TARGETS, *LATENT_TARGETS, ["eh_proj"], ["eh_proj", "linear_proj"], ["*mtp*"])


def one(rng: random.Random) -> Case:
    """A small model with one or two modules behind its layers."""
    family = rng.choice(LATENT)
    case = layout(rng, sparse=True)
    count, cut = stages(rng, case, hybrid=False)
    fields = small(rng, family, count) | {"mtp_num_layers": rng.choice((1, 1, 2))}
    case |= {"preset": PRESETS[family], "fields": fields, **cut}
    if rng.random() < 0.55:
        case["lora"] = rng.choice((4, 8, 6))
        draw = rng.random()
        if draw < 0.6:
            case["target_modules"] = rng.choice(KNOWN)
        elif draw < 0.8:
            case["exclude_modules"] = rng.choice(EXCLUDED)
    maybe(rng, case, 0.1, dtype="float16")
    maybe(rng, case, 0.15, grad_fp32=False)
    maybe(rng, case, 0.12, distributed=False)
    return case


def drawn(seed: int, count: int) -> list[Case]:
    """`count` cases; the first ones of a longer list are those of a shorter."""
    rng = random.Random(seed)
    return [{"name": f"p{number}", **one(rng)} for number in range(count)]


if __name__ == "__main__":
    main(drawn, "megatron", STORED, SEED, COUNT)
