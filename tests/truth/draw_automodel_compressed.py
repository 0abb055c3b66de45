"""Draws layers of DeepSeek-V4, and runs them through nemo-automodel 0.7.0.

    python tests/truth/draw_automodel_compressed.py --write tests/truth/tape/drawn-compressed-0.7.0-torch-2.13.0.json

By a seed, the same for the same seed: sizes, the kind of attention, whether a table routes, TileLang's kernels or
torch's operators, checkpoints, lengths that leave tokens over. As `probe_automodel_compressed.py`; a row has the
highest allocation inside the layer, what forward leaves, and how many bytes each pass allocates.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import probe_automodel_compressed as compressed

SEED, COUNT = 20280103, 24


def drawn(draw: random.Random) -> dict[str, Any]:
    """One layer: the sizes that differ, and how it runs."""
    size = draw.choice((32, 64, 128, 256))
    heads = draw.choice((4, 8, 12, 20, 24)) if size < 256 else draw.choice((8, 16, 24))
    overrides = {
        "hidden_size": 32 * draw.randint(3, 10), "head_dim": size, "num_attention_heads": heads,
        "qk_rope_head_dim": draw.choice((8, 16, 32)), "q_lora_rank": 8 * draw.randint(4, 14),
        "o_lora_rank": 8 * draw.randint(2, 8), "o_groups": draw.choice((1, 2, 4)),
        "moe_intermediate_size": 16 * draw.randint(2, 6), "num_experts_per_tok": draw.choice((1, 2, 4)),
        "sliding_window": draw.choice((16, 48, 128)), "hc_mult": draw.choice((2, 3, 4)),
        "hc_sinkhorn_iters": draw.randint(2, 6), "index_head_dim": draw.choice((32, 64)),
        "index_n_heads": draw.choice((2, 4, 8)), "index_topk": draw.choice((8, 32, 96)),
        "num_hash_layers": draw.choice((0, 4)),
    }
    seq = 4 * draw.randint(33, 80) + draw.choice((0, 0, 1, 3))
    return {"overrides": overrides, "layer": draw.choice((0, 1, 2)), "backend": draw.choice(("torch", "tilelang")),
            "batch": draw.choice((1, 2)), "seq": seq, "checkpoint": draw.random() < 0.4}


def ran(case: dict[str, Any]) -> dict[str, Any]:
    made = compressed.events({key: value for key, value in case.items() if value is not False})
    load = 8 * compressed.SHAPE["n_routed_experts"]
    forward, backward = ([change for change in made[part] if abs(change) != load] for part in ("forward", "backward"))
    return {"case": case, "peak": max(accumulate([*forward, *backward])), "left": sum(forward),
            "allocated": [sum(x for x in part if x > 0) for part in (forward, backward)]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True)
    where = parser.parse_args().write
    compressed.stand_in()
    draw = random.Random(SEED)
    cases, rows = [drawn(draw) for _ in range(COUNT)], list[dict[str, Any]]()
    for case in cases:
        rows.append(ran(case))
        text = json.dumps({"seed": SEED, "shape": compressed.SHAPE})[:-1] + ', "rows": [\n' + ",\n".join(
            map(json.dumps, rows)) + "\n]}\n"
        where.write_text(text, encoding="utf-8")
