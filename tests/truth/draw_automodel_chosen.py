"""Draws dense layers of GLM-5 whose indexer chooses keys, and runs them through nemo-automodel 0.7.0.

    python tests/truth/draw_automodel_chosen.py --write tests/truth/tape/drawn-chosen-0.7.0-torch-2.13.0.json

By a seed, the same for the same seed: sizes, keys of a layer's own or borrowed, rotation, adapters, checkpoints, a
dense mask or TileLang's kernels on one rank or two. As `probe_automodel_chosen.py` and `probe_automodel_absorbed.py`; a
row has the highest allocation inside the layer, what forward leaves, and how many bytes each pass allocates.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import probe_automodel_absorbed as absorbed
import probe_automodel_chosen as chosen
import probe_automodel_mla as mla

SEED, COUNT = 20261130, 48


def drawn(draw: random.Random) -> dict[str, Any]:
    """One layer: the sizes that differ, and how it runs."""
    heads, sparse = draw.choice((2, 4, 6, 8)), draw.random() < 0.5
    shape = {"hidden_size": 32 * draw.randint(3, 12), "intermediate_size": 16 * draw.randint(4, 40),
             "num_attention_heads": heads, "num_key_value_heads": heads, "q_lora_rank": 8 * draw.randint(4, 16),
             "kv_lora_rank": 8 * draw.randint(4, 14), "qk_nope_head_dim": 8 * draw.randint(2, 6),
             "qk_rope_head_dim": 16, "v_head_dim": 8 * draw.randint(2, 6), "index_n_heads": draw.choice((2, 4, 8)),
             "index_head_dim": 32, "index_topk": draw.choice((16, 40, 96))}
    case: dict[str, Any] = {"shape": shape, "sparse": sparse, "checkpoint": draw.random() < 0.5,
                            "borrows": draw.random() < 0.3, "interleaves": draw.random() < 0.5}
    case |= {"lora": draw.choice((4, 8, 16))} if draw.random() < 0.3 else {}
    tokens = 16 * draw.randint(2, 14)
    if sparse:
        return case | {"tokens": tokens} | ({"cp": 2} if draw.random() < 0.4 else {})
    return case | {"family": "glm_moe_dsa", "batch": draw.randint(1, 3), "seq": tokens}


def ran(case: dict[str, Any]) -> dict[str, Any]:
    chosen.SHAPE.update(case["shape"])
    mla.SHAPE.update(case["shape"])
    asked = {key: value for key, value in case.items() if key != "shape" and value is not False}
    made = absorbed.measured(asked) if case["sparse"] else chosen.events(asked)
    forward, backward = made["forward"], made["backward"]
    left = sum(forward)
    return {"case": case, "peak": max(accumulate([*forward, *backward])), "left": left,
            "allocated": [sum(x for x in part if x > 0) for part in (forward, backward)]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True)
    where = parser.parse_args().write
    absorbed.stand_in()
    draw = random.Random(SEED)
    rows = [ran(drawn(draw)) for _ in range(COUNT)]
    around = {"seed": SEED, "shape": chosen.SHAPE, "targets": absorbed.TARGETS}
    text = json.dumps(around)[:-1] + ', "rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n"
    where.write_text(text, encoding="utf-8")
