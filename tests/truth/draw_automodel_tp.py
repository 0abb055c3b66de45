"""Draws layouts of NeMo Automodel's own Llama, Qwen2 and Qwen3 with tensor parallelism.

The cases of placement/drawn-automodel-tp-0.7.0.json:

    python tests/truth/draw_automodel_tp.py [--seed 1] [--count 56] > cases.jsonl
    python tests/truth/draw_automodel_tp.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_automodel import PRESETS, adapters
from drawing import Case, chosen, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-automodel-tp-0.7.0.json"
SEED, COUNT = 31, 56
FAMILIES = ("llama", "qwen2", "qwen3")
FULL = ("llama-3.1-8b", "llama-3-70b", "qwen2.5-7b", "qwen2.5-32b", "qwen3-8b", "qwen3-32b")


def small(rng: random.Random, family: str) -> dict[str, Any]:
    """Fields of a small model of the family, of even and of odd sizes."""
    count = rng.choice((8, 8, 8, 16))
    fields: dict[str, Any] = {"num_attention_heads": count, "num_key_value_heads": count // rng.choice((1, 2, 2, 4)),
                              "vocab_size": chosen(rng, (512, 3), (1000, 3), (1024, 3), (1003, 1)),
                              "hidden_size": count * rng.choice((12, 16, 20)), "num_hidden_layers": rng.randint(2, 5),
                              "intermediate_size": chosen(rng, (176, 3), (344, 2), (352, 3), (250, 1))}
    fields["head_dim"] = 16 if family == "qwen3" else fields["hidden_size"] // count
    maybe(rng, fields, 0.1, tie_word_embeddings=True)
    return fields


def layout(rng: random.Random) -> Case:
    """Degrees of parallelism, and one of the ranks."""
    case = {"tp": chosen(rng, (2, 5), (4, 3), (8, 1)), "dp_replicate": chosen(rng, (1, 4), (2, 2)),
            "cp": chosen(rng, (1, 14), (2, 1)), "pp": chosen(rng, (1, 14), (2, 1))}
    shard = chosen(rng, (1, 1), (2, 4), (3, 1), (4, 4), (6, 1), (8, 2))
    world = case["tp"] * case["dp_replicate"] * case["cp"] * case["pp"] * shard
    return {"world": world, "rank": rng.randrange(world), **{k: v for k, v in case.items() if v > 1}}


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model."""
    family = rng.choice(FAMILIES)
    case: Case = {"preset": rng.choice(FULL)} if rng.random() < 0.12 else {
        "preset": PRESETS[family], "fields": small(rng, family)}
    case |= layout(rng) | (adapters(rng) if rng.random() < 0.1 else {})
    maybe(rng, case, 0.15, dtype="float32")
    maybe(rng, case, 0.15, reshard_after_forward=rng.choice((True, False)))
    return case


if __name__ == "__main__":
    main(numbered("t", one), "automodel", STORED, SEED, COUNT)
