"""Draws small Kimi-VLs under Automodel, and measures their steps, or the units of those with experts.

    python tests/truth/draw_automodel_kimi.py > tests/truth/tape/automodel-drawn-kimi-0.7.0-torch-2.13.0.json

Ranks, copies, experts, sizes of decoder and tower, images, what is frozen; each case as `probe_automodel_kimi.py`
measures it. Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
import sys

import probe_automodel_kimi as probe
import probe_automodel_vision as vision
from drawing import Case, by_name, maybe, numbered, print_apart

SEED, COUNT = 20261263, 48


def one(rng: random.Random) -> Case:
    """A case with experts, of which units are told, or without, of which a step is."""
    placed, world, layers = rng.random() < 0.5, rng.choice((2, 4, 4, 8, 8, 16)), rng.randint(2, 4)
    heads, width = rng.choice((2, 4, 8)), rng.choice((96, 128, 192))
    text = {**probe.TEXT, "num_hidden_layers": layers, "vocab_size": rng.choice((512, 1000, 1536)),
            "intermediate_size": rng.choice((384, 640, 776)), "num_attention_heads": heads,
            "num_key_value_heads": heads, "q_lora_rank": rng.choice((None, 96)),
            "kv_lora_rank": rng.choice((48, 80)), "n_routed_experts": 16,
            "first_k_dense_replace": rng.randint(0, layers - 1) if placed else layers,
            "n_shared_experts": rng.choice((1, 2))}
    tower = {**probe.VISION, "hidden_size": width, "num_attention_heads": rng.choice((2, 4, 8)),
             "num_hidden_layers": rng.randint(1, 4), "intermediate_size": rng.choice((264, 320)),
             "init_pos_emb_height": rng.choice((6, 12)), "init_pos_emb_width": rng.choice((8, 12))}
    rows, columns, images = rng.randint(2, 8), rng.randint(2, 8), rng.choice((1, 1, 2, 3))
    case: Case = {"text": text, "vision": tower, "world": world, "batch": rng.choice((1, 1, 2)), "images": images,
                  "sides": [28 * rows, 28 * columns], "freeze": dict(vision.FROZEN),
                  "seq": rng.choice([seq for seq in (64, 96, 128, 192, 256, 384) if seq > images * (rows * columns)]),
                  "ep": rng.choice([ep for ep in (2, 4, 8, 16) if world % ep == 0])}
    maybe(rng, case, 0.4, freeze=dict(vision.TRAINED))
    if world > 2:
        maybe(rng, case, 0.2, replicas=2)
    return case | ({"placed": True} if placed else {})


def measured(case: Case) -> Case:
    """Measured values of a case."""
    vision.start(case["world"])
    return probe.measure(case)


if __name__ == "__main__":
    probe.stand_in()
    print_apart(by_name(numbered("k", one)(SEED, COUNT)), measured, only=sys.argv[1:])
