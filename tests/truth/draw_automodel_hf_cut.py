"""Draws layouts of transformers' models under NeMo Automodel that tensor parallelism or stages cut.

The cases of placement/drawn-automodel-hf-cut-0.7.0.json:

    python tests/truth/draw_automodel_hf_cut.py [--seed 1] [--count 100] > cases.jsonl
    python tests/truth/draw_automodel_hf_cut.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_automodel import adapters
from draw_automodel_tp import small as whole_heads
from drawing import Case, chosen, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-automodel-hf-cut-0.7.0.json"
SEED, COUNT = 20261129, 100
PRESETS = {"llama": "llama-tiny", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "mistral": "mistral-7b-v0.3"}
FULL = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "mistral-7b-v0.3")


def small(rng: random.Random, family: str) -> dict[str, Any]:
    """Fields of a small model of the family, with layers for some stages."""
    return whole_heads(rng, family) | {"num_hidden_layers": rng.randint(4, 8)}


def layout(rng: random.Random) -> Case:
    """Degrees of parallelism, and one of the ranks: tp, stages, seldom both."""
    cut = chosen(rng, ("tp", 6), ("pp", 4), ("both", 1))
    case = {"tp": 1 if cut == "pp" else chosen(rng, (2, 5), (4, 3), (8, 1)),
            "pp": 1 if cut == "tp" else chosen(rng, (2, 5), (3, 2), (4, 2)),
            "dp_replicate": chosen(rng, (1, 5), (2, 2))}
    shard = chosen(rng, (1, 1), (2, 4), (3, 1), (4, 3), (6, 1), (8, 1))
    world = case["tp"] * case["pp"] * case["dp_replicate"] * shard
    return {"world": world, "rank": rng.randrange(world), **{k: v for k, v in case.items() if v > 1}}


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model."""
    family = rng.choice(tuple(PRESETS))
    case: Case = {"preset": rng.choice(FULL)} if rng.random() < 0.15 else {
        "preset": PRESETS[family], "fields": small(rng, family)}
    case |= layout(rng) | (adapters(rng) if rng.random() < 0.25 else {}) | {"force_hf": True}
    maybe(rng, case, 0.15, dtype="float32")
    maybe(rng, case, 0.15, reshard_after_forward=rng.choice((True, False)))
    return case


if __name__ == "__main__":
    main(numbered("c", one), "automodel", STORED, SEED, COUNT)
