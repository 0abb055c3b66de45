"""Draws layouts of MiMo-V2-Flash under NeMo Automodel.

The cases of placement/drawn-automodel-mimo-0.7.0.json:

    python tests/truth/draw_automodel_mimo.py [--seed 1] [--count 42] > cases.jsonl
    python tests/truth/draw_automodel_mimo.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_automodel_stages import WHOLE, WINDOW, layout
from drawing import Case, chosen, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-automodel-mimo-0.7.0.json"
SEED, COUNT = 20264117, 42


def small(rng: random.Random) -> dict[str, Any]:
    """Fields of a small model: whole layers and such with a window, dense ones and such with experts."""
    layers, groups = rng.randint(3, 8), rng.choice((1, 2))
    return {"hidden_size": rng.choice((96, 128, 200)), "num_attention_heads": 2 * groups * rng.choice((1, 2)),
            "num_key_value_heads": groups, "head_dim": rng.choice((24, 48)), "v_head_dim": rng.choice((16, 32, 48)),
            "num_hidden_layers": layers, "layer_types": rng.choices((WINDOW, WHOLE), k=layers),
            "mlp_layer_types": ["dense", *rng.choices(("dense", "sparse", "sparse"), k=layers - 2), "sparse"],
            "vocab_size": chosen(rng, (512, 3), (1000, 3), (1003, 1)), "intermediate_size": rng.choice((176, 250)),
            "n_routed_experts": rng.choice((4, 6, 8, 8)), "num_experts_per_tok": 2,
            "moe_intermediate_size": rng.choice((48, 72))}


def one(rng: random.Random) -> Case:
    """A small model, seldom the published one."""
    case: Case = {"preset": "mimo-v2-flash", "fields": {} if rng.random() < 0.04 else small(rng)}
    case |= layout(rng)
    maybe(rng, case, 0.2, lora=rng.choice((4, 8)), target_modules=["*_proj"])
    maybe(rng, case, 0.15, dtype="float32")
    maybe(rng, case, 0.1, reshard_after_forward=rng.choice((True, False)))
    return case


if __name__ == "__main__":
    main(numbered("m", one), "automodel", STORED, SEED, COUNT)
