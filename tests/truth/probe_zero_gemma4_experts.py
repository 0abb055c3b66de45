"""Measures ZeRO-1's, 2's and 3's messages of Gemma 4 with experts beside an MLP, on one CPU.

    python tests/truth/probe_zero_gemma4_experts.py > tests/truth/deepspeed/gemma4-experts-0.19.6.json
    python tests/truth/probe_zero_gemma4_experts.py drawn > tests/truth/deepspeed/drawn-gemma4-experts-0.19.6.json

DeepSpeed 0.19.6 as released, with transformers 5.23.0; what is found of a case is told in `probe_zero_families.py`.
`drawn`: cases by a seed, none of which is drawn again because of what came out.
"""

from __future__ import annotations

import contextlib
import random
import sys

import probe_deepspeed as base
import probe_zero_families as families
from json_lines import with_cases
from oracle.apart import run_apart

SEED, COUNT = 20261907, 44
EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96}
GATHERED = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
TYPES = ("sliding_attention", "full_attention")


def case(stage, **given):
    return families.case(stage, "gemma4_text", **EXPERTS | given)


CASES = {
    **{f"{stage}{how}": case(stage, checkpoint=not how) for stage in (1, 2, 3) for how in ("", ", plain")},
    **{f"3, all gathered{how}": case(3, checkpoint=not how, options=GATHERED) for how in ("", ", plain")},
    **{f"3, lora{how}": case(3, checkpoint=not how, targets=families.LINEARS) for how in ("", ", plain")},
}


def drawn():
    """Stages, ranks, heads, widths, layers of both types, experts, buckets, what is prefetched and stays, adapters."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        stage = rng.choice((1, 2, 3, 3))
        keys = rng.choice((1, 2))
        heads, layers = keys * rng.choice((2, 3)), rng.choice((1, 2, 3, 4))
        experts = rng.choice((2, 4, 6))
        sizes = {"hidden_size": heads * 64, "num_attention_heads": heads, "num_key_value_heads": keys,
                 "num_global_key_value_heads": keys, "intermediate_size": rng.choice((300, 512)),
                 "num_hidden_layers": layers, "vocab_size": rng.choice((1_000, 3_001)),
                 "layer_types": [*(rng.choice(TYPES) for _ in range(layers - 1)), TYPES[1]],
                 "num_experts": experts, "top_k_experts": rng.choice((1, 2)),
                 "moe_intermediate_size": rng.choice((40, 96, 160))}
        options = {"reduce_bucket_size": rng.choice((100_000, 300_000, 1_000_000))}
        if stage == 3:
            options |= {"stage3_prefetch_bucket_size": rng.choice((0, 50_000, 200_000, 600_000)),
                        "stage3_param_persistence_threshold": rng.choice((0, 5, 100, 1_000)),
                        "stage3_max_reuse_distance": rng.choice((0, 300_000, 1_000_000)),
                        "stage3_max_live_parameters": rng.choice((1_000_000, 3_000_000))}
        targets = rng.sample(families.LINEARS, rng.randint(1, 7)) if rng.random() < 0.3 else ()
        found[f"e{number}"] = case(stage, checkpoint=rng.random() < 0.5, ranks=rng.choice((2, 3, 4, 8)),
                                   steps=rng.choice((1, 2)), options=options, targets=sorted(targets), **sizes)
    return found


def main():
    asked = drawn() if sys.argv[1:2] == ["drawn"] else CASES
    sys.argv[1:] = []
    base.SHARDED = True
    base.prepare()
    with contextlib.redirect_stdout(sys.stderr):
        rows = run_apart(asked, families.run)
    print(with_cases({"deepspeed": "0.19.6", "transformers": "5.23.0"}, rows, compact=True, indent=" "))


if __name__ == "__main__":
    main()
