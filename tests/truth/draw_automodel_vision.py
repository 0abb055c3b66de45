"""Draws small models with a vision tower under Automodel, and measures their steps.

    python tests/truth/draw_automodel_vision.py > tests/truth/tape/automodel-drawn-vision-0.7.0-torch-2.13.0.json

Families, ranks, copies, sizes of decoder and tower, images, what is frozen, adapters and checkpoints; each case as
`probe_automodel_vision.py` measures it. Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import copy
import random
import sys

import image_stand_ins as stand
import probe_automodel_vision as probe
from drawing import Case, by_name, maybe, numbered, print_apart

SEED, COUNT = 20261211, 88
MODELS = ("gemma3-vision", "gemma4-vision", "mistral3", "qwen2.5-vl", "qwen3-vl", "qwen3.5")
TILES = {"gemma4": 24, "mistral3": 28, "qwen2_5_vl": 28, "qwen3_vl": 32, "qwen3_5": 32}
"""Pixels of a side that become one token's."""
OUTSIDE = ["*vision*", "*visual*", "*projector*", "*embed_vision*", "*lm_head*"]
"""Modules without adapters, as recipes write them."""


def decoder(rng: random.Random, kind: str, text: Case) -> Case:
    """The sizes of a decoder that are drawn."""
    layers = rng.randint(2, 5)
    made = text | {"num_hidden_layers": layers, "intermediate_size": rng.choice((384, 512, 776)),
                   "vocab_size": rng.choice((512, 1000, 1536)), "num_key_value_heads": rng.choice((1, 2, 4))}
    if kind == "gemma4":
        made["layer_types"] = [*rng.choices(("sliding_attention", "full_attention"), k=layers - 1), "full_attention"]
    if kind == "qwen3_5":
        made["layer_types"] = rng.choices(("linear_attention", "full_attention"), k=layers)
    return made


def tower(rng: random.Random, kind: str, vision: Case) -> Case:
    """The sizes of a tower that are drawn."""
    depth, width = rng.randint(1, 4), rng.choice((96, 128, 192))
    made = vision | {"intermediate_size": rng.choice((264, 320))}
    if not kind.startswith("qwen"):
        made |= {"num_hidden_layers": depth, "hidden_size": width}
        made |= {"head_dim": width // 4} if "head_dim" in vision else {}
        return made | ({"image_size": 56 * rng.choice((1, 2, 3, 4))} if kind == "gemma3" else {})
    made |= {"depth": depth, "hidden_size": width}
    if kind == "qwen2_5_vl":
        made["fullatt_block_indexes"] = sorted(rng.sample(range(depth), rng.randint(0, depth)))
    if kind == "qwen3_vl":
        made["deepstack_visual_indexes"] = sorted(rng.sample(range(depth), min(depth, rng.choice((1, 1, 2)))))
    return made


def one(rng: random.Random) -> Case:
    """A case of any of the families."""
    name = rng.choice(MODELS)
    fields = copy.deepcopy(probe.MODELS[name]["fields"])
    kind = fields["model_type"]
    fields |= {"text_config": decoder(rng, kind, fields["text_config"]),
               "vision_config": tower(rng, kind, fields["vision_config"])}
    if not kind.startswith("gemma"):
        fields["tie_word_embeddings"] = fields["text_config"]["tie_word_embeddings"] = rng.random() < 0.5
    batch, images, most = rng.choice((1, 1, 2)), rng.choice((1, 1, 2, 3)), 4 if kind == "gemma4" else 8
    rows, columns = (rng.randint(2, most) for _ in range(2))
    tokens = fields["mm_tokens_per_image"] if kind == "gemma3" else rows * columns
    case: Case = {"model": name, "fields": fields, "world": rng.choice((2, 3, 4, 4, 6, 8, 8, 16)), "batch": batch,
                  "images": images, "freeze": dict(probe.FROZEN),
                  "seq": rng.choice([seq for seq in (64, 96, 128, 192, 256, 384) if seq > images * (tokens + 1)])}
    if kind != "gemma3":
        case["sides"] = [TILES[kind] * rows, TILES[kind] * columns]
    if case["world"] % 2 == 0:
        maybe(rng, case, 0.2, replicas=2)
    if rng.random() < 0.35:
        case |= {"lora": rng.choice((4, 8, 16)), "exclude_modules": OUTSIDE}
    else:
        maybe(rng, case, 0.2, freeze={**probe.FROZEN, "freeze_language_model": True})
        maybe(rng, case, 0.25, freeze=dict(probe.TRAINED))
    maybe(rng, case, 0.3, checkpoint=True)
    return case


def measured(case: Case) -> Case:
    """Measured values of a case."""
    probe.start(case["world"])
    return probe.measure(case)


if __name__ == "__main__":
    stand.stand_in()
    print_apart(by_name(numbered("a", one)(SEED, COUNT)), measured, only=sys.argv[1:])
