"""Draws layouts of FSDP1 in which each matrix of an adapter is a unit, as PEFT's own wrap policy makes them.

The cases of fsdp1/drawn-peft-units-torch-2.13.0.json:

    python tests/truth/draw_fsdp1_units.py [--seed 1] [--count 40] > cases.jsonl
    python tests/truth/draw_fsdp1_units.py --measure      # the same, measured: writes the file

Nothing is drawn again because of what came out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from drawing import Case, main, maybe, numbered

STORED = Path(__file__).parent / "fsdp1" / "drawn-peft-units-torch-2.13.0.json"
SEED, COUNT = 20261129, 40
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def sizes(rng: random.Random) -> dict[str, Any]:
    """Fields of a small Llama, of even and of odd sizes."""
    heads = rng.choice((2, 4, 6))
    fields = {"num_hidden_layers": rng.randint(1, 4), "num_attention_heads": heads,
              "num_key_value_heads": rng.choice((1, heads)), "hidden_size": 16 * heads,
              "intermediate_size": rng.choice((96, 128, 172)), "vocab_size": rng.choice((1001, 1024, 1500))}
    maybe(rng, fields, 0.2, tie_word_embeddings=True)
    return fields


def one(rng: random.Random) -> Case:
    """A layout of a base in 4 bits or bf16, or in fp32 as verl has it, and one of its ranks."""
    ranks = rng.choice((1, 2, 2, 3, 4, 4, 5, 6, 8))
    found = sorted(rng.sample(LINEARS, rng.choice((1, 2, 3, 7))), key=LINEARS.index)
    case: Case = {"ranks": ranks, "rank": rng.randrange(ranks), "peft_wrap": True,
                  "backward_prefetch": rng.choice(("NO_PREFETCH", "NO_PREFETCH", "BACKWARD_PRE")),
                  "lora": [rng.choice((1, 3, 4, 8)), found], "model": sizes(rng)}
    base = rng.random()
    if base < 0.5:
        case["storage"] = "bfloat16"
    elif base < 0.7:
        case |= {"base": "float32", "reduce": "float32"}
    if ranks % 2 == 0 and ranks > 2:
        maybe(rng, case, 0.25, shard=2, strategy="HYBRID_SHARD")
    maybe(rng, case, 0.5, checkpoint=True)
    maybe(rng, case, 0.3, use_orig_params=True)
    if rng.random() < 0.3:
        case["microbatches"] = rng.choice((2, 3))
        maybe(rng, case, 0.5, no_sync=True)
    return case


if __name__ == "__main__":
    main(numbered("u", one), "fsdp1", STORED, SEED, COUNT)
