"""Measures messages of ZeRO-3 over fewer ranks than all (hpZ), over drawn small models on one CPU.

    python tests/truth/probe_zero_groups.py CHECKOUT > tests/truth/deepspeed/drawn-hpz-0.19.6.json

CHECKOUT: DeepSpeed's own source at edaa72212 (0.19.6), as for `probe_deepspeed.py`; the process group is torch's fake
one. Each collective with its bytes, the ranks of its group and how often it comes in a row, in the microbatches of the
third step (the order of modules is recorded by then) and in its update; `parts`: elements of a rank's shards;
`secondary`: of the second shards that it has before the update. Cases are drawn by a seed, none of which is drawn again
because of what came out.
"""

from __future__ import annotations

import random
import sys
from itertools import groupby

import probe_deepspeed as base
from json_lines import with_cases
from oracle.apart import run_apart

SEED, COUNT = 20261203, 44


def drawn():
    """Ranks, groups, sizes, and how far ZeRO-3 looks ahead."""
    rng, found = random.Random(SEED), {}
    for number in range(COUNT):
        size, heads = rng.choice((2, 2, 3, 4, 8)), rng.choice((2, 4, 6))
        model = base.LLAMA | {
            "hidden_size": 32 * heads, "num_attention_heads": heads, "num_key_value_heads": rng.choice((heads, 2)),
            "head_dim": rng.choice((16, 32, 64)), "intermediate_size": rng.choice((400, 512, 777)),
            "num_hidden_layers": rng.choice((1, 2, 3, 6)), "vocab_size": rng.choice((1003, 2000, 4000)),
            "tie_word_embeddings": rng.random() < 0.25}
        options = {"reduce_bucket_size": rng.choice((50_000, 300_000, 2_000_000)),
                   "stage3_prefetch_bucket_size": rng.choice((0, 10_000, 100_000, 400_000)),
                   "stage3_param_persistence_threshold": rng.choice((0, 1_000, 20_000)),
                   "stage3_max_reuse_distance": rng.choice((0, 100_000, 1_000_000)),
                   "stage3_max_live_parameters": rng.choice((400_000, 1_000_000_000)),
                   "zero_hpz_partition_size": size}
        found[f"h{number}"] = base.case(3, model, size * rng.choice((1, 2, 3, 4)), 0,
                                        rng.choice(("llama", "qwen2")), rng.random() < 0.5, **options) | {
                                            "steps": rng.choice((1, 2, 3))}
    return found


def adapted():
    """The first of them with PEFT's adapters of query and value: frozen parameters keep their second shards."""
    return {f"l{number}": case | {"lora": 8} for number, case in enumerate(list(drawn().values())[:6])}


def counted(calls):
    """Each call with how often it comes in a row: [name, bytes, ranks, times]."""
    return [[*one, len(list(alike))] for one, alike in groupby(calls)]


def run(row):
    import torch
    engine, config = base.started(row)
    found = {"parts": [p.ds_tensor.numel() for p in engine.module.parameters()]}
    for _ in range(3):
        found["microbatches"] = []
        for _ in range(row["steps"]):
            base.CALLS.clear()
            tokens = torch.randint(0, config.vocab_size, (1, 32))
            engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
            found["microbatches"].append(counted(base.CALLS))
            base.CALLS.clear()
            found["secondary"] = [0 if p.ds_secondary_tensor is None else p.ds_secondary_tensor.numel()
                                  for p in engine.module.parameters()]
            engine.step()
        found["step"] = counted(base.CALLS)
    return found


def main():
    sys.path.insert(0, sys.argv[1])
    asked = drawn() | adapted()
    if sys.argv[2:]:
        asked = {name: asked[name] for name in sys.argv[2:]}
    sys.argv[2:] = []
    base.SHARDED = True
    base.prepare()
    print(with_cases({"deepspeed": "0.19.6 edaa72212", "transformers": "5.23.0"}, run_apart(asked, run), indent=" "))


if __name__ == "__main__":
    main()
