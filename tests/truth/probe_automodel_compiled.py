"""Measures what layers of nemo-automodel 0.7.0's dense models keep, allocate and send with `enable_compile`.

    python tests/truth/probe_automodel_compiled.py CASE... > \\
        tests/truth/tape/automodel-compiled-0.7.0-torch-2.13.0.json
    python tests/truth/probe_automodel_compiled.py --draw SEED COUNT > cases.json   # random cases, not measured
    python tests/truth/probe_automodel_compiled.py --wide SEED COUNT > cases.json   # also of sizes that are trained

A case is a JSON object with `name` and the keys of `tape/README.md`; without cases those of
`tape/cases-automodel-compiled.json`.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from oracle import logs

CASES = Path(__file__).resolve().parent / "tape" / "cases-automodel-compiled.json"
SPLIT = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def measured(case: dict[str, Any]) -> dict[str, Any]:
    from oracle import automodel_compiled

    return automodel_compiled.measured(case)


def drawn(rng: random.Random, number: int) -> dict[str, Any]:
    """A layer of random family, size, batch, checkpointing, adapters and split."""
    heads = rng.choice((8, 8, 16))
    dim = rng.choice((32, 64))
    hidden = rng.choice((256, 384, 512, 768, 1024))
    fields = {"hidden_size": hidden, "num_attention_heads": heads, "head_dim": dim,
              "num_key_value_heads": heads // rng.choice((1, 2, 4)),
              "intermediate_size": 16 * rng.randint(hidden // 10, hidden // 4)}
    case: dict[str, Any] = {"name": f"c{number}", "family": rng.choice(("llama", "qwen2", "qwen3")), "fields": fields,
                            "seq": 64 * rng.randint(2, 24), "batch": rng.choice((1, 1, 2, 3)),
                            "checkpoint": rng.random() < 0.6, "tp": rng.choice((1, 1, 2, 2))}
    if rng.random() < 0.5:
        targets = [name for name in SPLIT if rng.random() < 0.7] or ["q_proj"]
        case |= {"lora": rng.choice((8, 16, 32)), "targets": list(SPLIT) if rng.random() < 0.6 else targets}
    if case["family"] != "qwen3":  # Automodel's rotation takes heads of hidden_size / heads
        fields["head_dim"] = hidden // heads
    return case


def widened(rng: random.Random, number: int) -> dict[str, Any]:
    """A layer as `drawn` has it, half of them of sizes that are trained, some of those on one rank by transformers."""
    case = drawn(rng, number)
    fields = case["fields"]
    if rng.random() < 0.5:
        dim = rng.choice((64, 128))
        heads = rng.choice((16, 32, 40, 64))
        hidden = dim * heads
        fields |= {"hidden_size": hidden, "num_attention_heads": heads, "head_dim": dim,
                   "num_key_value_heads": heads // rng.choice((1, 4, 8)),
                   "intermediate_size": 256 * rng.randint(hidden // 128, hidden // 64)}
        ways = [tp for tp in (1, 1, 2, 4, 8) if fields["num_key_value_heads"] % tp == 0]
        case |= {"seq": 512 * rng.randint(1, 16), "tp": rng.choice(ways)}
    if case["tp"] == 1 and rng.random() < 0.4:
        case |= {"hf": True, "family": rng.choice(("llama", "mistral", "qwen2", "qwen3"))}
    return case


if __name__ == "__main__":
    draws = {"--draw": drawn, "--wide": widened}
    if sys.argv[1:2] and sys.argv[1] in draws:
        dice = random.Random(int(sys.argv[2]))
        print("[\n" + ",\n".join(json.dumps(draws[sys.argv[1]](dice, n)) for n in range(int(sys.argv[3]))) + "\n]")
    else:
        logs.main(__file__, measured, CASES)
