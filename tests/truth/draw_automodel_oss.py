"""Draws layouts of GPT-OSS under NeMo Automodel, by its own layers.

The cases of placement/drawn-automodel-oss-0.7.0.json:

    python tests/truth/draw_automodel_oss.py [--seed 1] [--count 60] > cases.jsonl
    python tests/truth/draw_automodel_oss.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_automodel import adapters
from drawing import Case, chosen, heads, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-automodel-oss-0.7.0.json"
SEED, COUNT = 22, 60
FULL = ("gpt-oss-20b", "gpt-oss-120b")
WINDOW, WHOLE = "sliding_attention", "full_attention"


def small(rng: random.Random) -> dict[str, Any]:
    """Fields of a small model, of even and of odd sizes."""
    layers = rng.randint(2, 5)
    fields: dict[str, Any] = {"hidden_size": rng.choice((96, 100, 128, 160)), **heads(rng), "num_hidden_layers": layers,
                              "vocab_size": chosen(rng, (512, 3), (1000, 3), (1003, 1)),
                              "intermediate_size": rng.choice((40, 48, 72)),
                              "num_local_experts": rng.choice((4, 6, 8, 8)), "num_experts_per_tok": 2,
                              "layer_types": rng.choices((WINDOW, WHOLE), k=layers)}
    maybe(rng, fields, 0.1, tie_word_embeddings=True)
    return fields


def layout(rng: random.Random) -> Case:
    """Degrees of parallelism, and one of the ranks."""
    case = {"pp": chosen(rng, (1, 16), (2, 1)), "dp_replicate": chosen(rng, (1, 6), (2, 3)),
            "cp": chosen(rng, (1, 16), (2, 1)), "tp": chosen(rng, (1, 16), (2, 1))}
    shard = chosen(rng, (1, 1), (2, 3), (3, 1), (4, 3), (6, 1), (8, 3), (16, 2))
    stage = case["dp_replicate"] * case["cp"] * case["tp"] * shard
    fitting = [ep for ep in (2, 4, 8) if stage % ep == 0]
    if rng.random() < 0.75:
        case["ep"] = rng.choice(fitting) if fitting and rng.random() < 0.9 else rng.choice((3, stage))
    world = stage * case["pp"]
    return {"world": world, "rank": rng.randrange(world), **{k: v for k, v in case.items() if v > 1}}


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model."""
    case: Case = {"preset": rng.choice(FULL)} if rng.random() < 0.15 else {
        "preset": "gpt-oss-20b", "fields": small(rng)}
    case |= layout(rng) | adapters(rng)
    maybe(rng, case, 0.15, dtype="float32")
    maybe(rng, case, 0.15, reshard_after_forward=rng.choice((True, False)))
    return case


if __name__ == "__main__":
    main(numbered("o", one), "automodel", STORED, SEED, COUNT)
