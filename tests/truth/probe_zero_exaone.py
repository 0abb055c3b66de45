"""Measures ZeRO-2's and ZeRO-3's messages over EXAONE 4 and K-EXAONE, on one CPU, as `probe_zero_families.py` does.

    python tests/truth/probe_zero_exaone.py > tests/truth/deepspeed/exaone-0.19.6.json

DeepSpeed 0.19.6, transformers 5.23.0; the process group is torch's fake one. Cases by a seed, none of which is drawn
again because of what came out.
"""

from __future__ import annotations

import contextlib
import random
import sys

import probe_zero_families as families
from json_lines import with_cases
from oracle.apart import run_apart

SEED, COUNT = 520777, 24
WHOLE, SLIDING = "full_attention", "sliding_attention"
families.FAMILIES["exaone4"] = {"sliding_window": 16}


def drawn():
    """Stages, ranks, heads, widths, layers and their kinds, buckets, what is prefetched and stays, adapters."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        stage, keys, layers = rng.choice((2, 3, 3)), rng.choice((1, 2)), rng.choice((1, 2, 3, 5))
        heads, window = keys * rng.choice((2, 3)), rng.choice((None, 16, 16))
        sizes = {"hidden_size": heads * 64, "num_attention_heads": heads, "num_key_value_heads": keys,
                 "intermediate_size": rng.choice((300, 512, 700)), "num_hidden_layers": layers,
                 "vocab_size": rng.choice((1_000, 3_001, 4_000)), "tie_word_embeddings": rng.random() < 0.4,
                 "sliding_window": window,
                 "layer_types": [rng.choice((WHOLE, SLIDING)) if window else WHOLE for _ in range(layers)]}
        options = {"reduce_bucket_size": rng.choice((100_000, 300_000, 1_000_000))}
        if stage == 3:
            options |= {"stage3_prefetch_bucket_size": rng.choice((0, 50_000, 200_000, 600_000)),
                        "stage3_param_persistence_threshold": rng.choice((0, 100, 1_000)),
                        "stage3_max_reuse_distance": rng.choice((0, 300_000, 1_000_000)),
                        "stage3_max_live_parameters": rng.choice((1_000_000, 3_000_000))}
        linears = families.LINEARS
        targets = rng.sample(linears, rng.randint(1, len(linears))) if rng.random() < 0.3 else ()
        found[f"e{number}"] = families.case(
            stage, "exaone4", checkpoint=rng.random() < 0.5, ranks=rng.choice((2, 3, 4, 8)), steps=rng.choice((1, 2)),
            options=options, targets=sorted(targets), **sizes)
    return found


def main():
    families.base.SHARDED = True
    families.base.prepare()
    with contextlib.redirect_stdout(sys.stderr):
        rows = run_apart(drawn(), families.run)
    print(with_cases({"deepspeed": "0.19.6", "transformers": "5.23.0"}, rows, compact=True, indent=" "))


if __name__ == "__main__":
    main()
