"""Draws layouts of models that NeMo Automodel takes from transformers: Gemma 2 and 3, Granite 3.

The cases of placement/drawn-automodel-hf-0.7.0.json:

    python tests/truth/draw_automodel_hf.py [--seed 1] [--count 40] > cases.jsonl
    python tests/truth/draw_automodel_hf.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_automodel import adapters
from drawing import Case, chosen, heads, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-automodel-hf-0.7.0.json"
SEED, COUNT = 7, 40
PRESETS = {"gemma2": "gemma-2-2b", "gemma3_text": "gemma-3-270m", "granite": "granite-3.3-2b"}
FULL = ("gemma-2-9b", "gemma-3-270m", "gemma-3-1b", "granite-3.3-2b")
WINDOW, WHOLE = "sliding_attention", "full_attention"


def small(rng: random.Random, family: str) -> dict[str, Any]:
    """Fields of a small model of the family, of even and of odd sizes."""
    given = heads(rng)
    layers = rng.randint(3, 6)
    fields: dict[str, Any] = {"hidden_size": given["num_attention_heads"] * rng.choice((12, 16, 25)), **given,
                              "vocab_size": chosen(rng, (512, 3), (1000, 3), (1003, 1)), "num_hidden_layers": layers,
                              "intermediate_size": rng.choice((176, 250, 352))}
    maybe(rng, fields, 0.3, tie_word_embeddings=rng.random() < 0.5)
    if family == "granite":
        del fields["head_dim"]
    else:
        fields |= {"layer_types": rng.choices((WINDOW, WHOLE), k=layers), "sliding_window": rng.choice((64, 512))}
    return fields


def layout(rng: random.Random) -> Case:
    """Degrees of parallelism, and one of the ranks; experts are asked for seldom, though there are none."""
    case = {"dp_replicate": chosen(rng, (1, 6), (2, 3), (4, 1))}
    shard = chosen(rng, (1, 1), (2, 3), (3, 1), (4, 3), (6, 1), (8, 3), (16, 1))
    maybe(rng, case, 0.05, ep=2)
    world = case["dp_replicate"] * shard
    return {"world": world, "rank": rng.randrange(world), **{k: v for k, v in case.items() if v > 1}}


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model."""
    family = rng.choice(tuple(PRESETS))
    case: Case = {"preset": rng.choice(FULL)} if rng.random() < 0.15 else {
        "preset": PRESETS[family], "fields": small(rng, family)}
    case |= layout(rng) | adapters(rng)
    maybe(rng, case, 0.15, dtype="float32")
    maybe(rng, case, 0.15, reshard_after_forward=rng.choice((True, False)))
    return case


if __name__ == "__main__":
    main(numbered("h", one), "automodel", STORED, SEED, COUNT)
