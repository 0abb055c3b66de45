"""Draws small models with a frozen vision tower under torch's `fully_shard`, and measures them.

    python tests/truth/draw_fsdp2_vision.py > tests/truth/fsdp2/drawn-vision-torch-2.13.0.json

Ranks, sizes of decoder and tower, images and checkpoints; each case as `probe_fsdp2_vision.py` measures it. Nothing is
drawn again because of what came out.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import probe_fsdp2_vision as probe
from drawing import by_name, print_apart

SEED, COUNT = 20261129, 40
TILE = 32
"""Pixels of a side that become one token's: two patches."""


def one(rng: random.Random, base: dict[str, Any]) -> dict[str, Any]:
    """A case of the same family as `base`."""
    case = copy.deepcopy(base)
    text, vision = case["fields"]["text_config"], case["fields"]["vision_config"]
    layers, depth = rng.randint(2, 5), rng.randint(1, 4)
    text |= {"num_hidden_layers": layers, "intermediate_size": rng.choice((384, 512, 777)),
             "vocab_size": rng.choice((512, 1001, 1536)), "num_key_value_heads": rng.choice((1, 2, 4))}
    if "layer_types" in text:
        text["layer_types"] = rng.choices(("linear_attention", "full_attention"), k=layers)
    vision |= {"depth": depth, "hidden_size": rng.choice((128, 160, 192)), "intermediate_size": rng.choice((264, 320))}
    if "deepstack_visual_indexes" in vision:
        vision["deepstack_visual_indexes"] = sorted(rng.sample(range(depth), min(depth, rng.choice((1, 1, 2)))))
    case["fields"]["tie_word_embeddings"] = text["tie_word_embeddings"] = rng.random() < 0.5
    rows, columns, images = rng.randint(2, 6), rng.randint(2, 6), rng.choice((1, 1, 2, 3))
    least = images * (rows * columns + 1) + 1
    return case | {"world": rng.choice((1, 2, 2, 3, 4, 5, 6, 8, 12, 16)), "batch": rng.choice((1, 1, 2)),
                   "images": images, "sides": [TILE * rows, TILE * columns], "recompute": rng.random() < 0.5,
                   "seq": rng.choice([seq for seq in (64, 96, 128, 160, 192, 256) if seq >= least])}


def drawn() -> list[dict[str, Any]]:
    """The cases, by the seed."""
    rng = random.Random(SEED)
    bases = [case for case in probe.cases() if not case["recompute"] and case["batch"] == 1]
    return [one(rng, rng.choice(bases)) | {"name": f"v{number}"} for number in range(COUNT)]


if __name__ == "__main__":
    print_apart(by_name(drawn()), probe.measured)
