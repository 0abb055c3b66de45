"""Draws layouts of models that Megatron-Bridge has on main alone: EXAONE 4 without a window, and K-EXAONE.

The cases of placement/drawn-megatron-main-2026-08-22.json:

    python tests/truth/draw_megatron_main.py [--seed 1] [--count 88] > cases.jsonl
    PYTHONPATH=MEGATRON:BRIDGE/src python tests/truth/draw_megatron_main.py --measure      # writes the file

MEGATRON, BRIDGE: Megatron-LM d98e8a64 and Megatron-Bridge 067f987d. The first 48 were looked at
blind: one was placed though Bridge refuses it. The others were drawn, by another seed, after that was mended: two were
wrong, a pattern of adapters that hits a norm inside a linear, and the groups of experts of main where etp is not tp.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from draw_megatron import EXCLUDED, SPARSE_TARGETS, TARGETS, layout, stages, stored_otherwise
from drawing import Case, chosen, heads, main, maybe, numbered

STORED = Path(__file__).parent / "placement" / "drawn-megatron-main-2026-08-22.json"
SEED, COUNT, BLIND, LATER = 520021, 88, 48, 613007
PRESETS = {"exaone4": "exaone-4.0-1.2b", "exaone_moe": "k-exaone-236b-a23b"}
WHOLE, SLIDING = "full_attention", "sliding_attention"


def small(rng: random.Random, family: str, count: int) -> dict[str, Any]:
    """Fields of a small model of the family, with `count` layers."""
    fields: dict[str, Any] = {
        "hidden_size": rng.choice((96, 128, 256)), "num_hidden_layers": count,
        "vocab_size": chosen(rng, (512, 3), (1024, 3), (1536, 2), (1003, 0.5)),
        "intermediate_size": rng.choice((176, 240, 344, 352)), **heads(rng)}
    if family == "exaone4":
        return fields | {"layer_types": [WHOLE] * count, "tie_word_embeddings": rng.random() < 0.6}
    first, further = rng.choice((0, 1, 1, 2)), rng.choice((0, 0, 1, 1, 2))
    fields |= {"layer_types": rng.choices((WHOLE, SLIDING), k=count), "tie_word_embeddings": rng.random() < 0.15,
               "mlp_layer_types": (["dense"] * first + ["sparse"] * count)[:count],
               "num_experts": rng.choice((4, 6, 8)), "num_experts_per_tok": 2,
               "moe_intermediate_size": rng.choice((48, 64, 72)),
               "num_shared_experts": rng.choice((1, 1, 2)), "num_nextn_predict_layers": further}
    return fields | ({"mtp_num_layers": further} if further else {})


def one(rng: random.Random) -> Case:
    """A full-size preset, or a small model whose layers suit the pipeline."""
    family = rng.choice(("exaone4", "exaone_moe", "exaone_moe"))
    sparse = family == "exaone_moe"
    case = layout(rng, sparse=sparse)
    count, cut = stages(rng, case, hybrid=False)
    if rng.random() < 0.15:
        case |= {"preset": PRESETS[family]}
        if sparse:
            case["fields"] = {"num_nextn_predict_layers": 0}
    else:
        case |= {"preset": PRESETS[family], "fields": small(rng, family, count), **cut}
    if rng.random() < 0.5:
        case["lora"] = rng.choice((4, 4, 8, 16, 6))
        draw = rng.random()
        if draw < 0.55:
            case["target_modules"] = rng.choice((*TARGETS, *(SPARSE_TARGETS if sparse else ())))
        elif draw < 0.85:
            case["exclude_modules"] = rng.choice(EXCLUDED)
    if case.get("tp", 1) > 1:
        maybe(rng, case, 0.04 if sparse else 0.2, sp=False)
    return stored_otherwise(rng, case)


def drawn(seed: int, count: int) -> list[Case]:
    """The first ones by `seed`, those behind `BLIND` by another."""
    later = numbered("y", one)(LATER + seed - SEED, max(count - BLIND, 0))
    return [*numbered("x", one)(seed, min(count, BLIND)), *later]


if __name__ == "__main__":
    main(drawn, "megatron", STORED, SEED, COUNT)
