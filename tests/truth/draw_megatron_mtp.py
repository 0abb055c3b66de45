"""Draws layouts of models that predict further tokens under Megatron: with stages, experts and adapters.

The cases of placement/drawn-megatron-mtp-core-0.16.1.json:

    python tests/truth/draw_megatron_mtp.py [--seed 1] [--count 44] > cases.jsonl
    python tests/truth/draw_megatron_mtp.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path

from draw_megatron import (
    EXCLUDED,
    LATENT,
    LATENT_TARGETS,
    PRESETS,
    SPARSE_TARGETS,
    TARGETS,
    layout,
    small,
    stages,
    stored_otherwise,
)
from drawing import Case, main, numbered

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
    return stored_otherwise(rng, case)


if __name__ == "__main__":
    main(numbered("p", one), "megatron", STORED, SEED, COUNT)
