"""Draws layouts for the probe of accelerate's context parallelism: models, ranks, precision, steps.

    python tests/truth/draw_accelerate_cp.py [--count N] [--seed S] > cases

The same seed draws the same cases. Every case is one that upstream runs: sequences are cut evenly, from head and tail.
"""

from __future__ import annotations

import random

import draw_fsdp2 as plain
from drawing import print_cases

COUNT, SEED = 52, 20261130
MODELS = (plain.llama, plain.llama, plain.qwen2, plain.qwen3, plain.mistral, plain.phi3, plain.qwen3_moe, plain.mixtral)


def draw(seed: int, number: int) -> plain.Case:
    """Case `number` depends on nothing but its number and the seed."""
    pick = random.Random(f"{seed}:cp:{number}")
    model = pick.choice(MODELS)(pick)
    case: plain.Case = {"name": f"cp-{number:03}-{model['preset'].split('-')[0]}", "model": model}
    shared = pick.choice((2, 2, 2, 3, 4, 4, 6, 8))
    shards = shared * pick.choice((1, 1, 2, 2, 3, 4))
    copies = pick.choice((1, 1, 1, 2))
    case.update(cp=shared, world=shards * copies, dp_replicate=copies)
    case["rank"] = shared * pick.randrange(shards * copies // shared)  # the first of those that share a sequence
    plain.reshard(pick, case)
    if isinstance(case.get("reshard"), int) and not isinstance(case["reshard"], bool):
        case["reshard"] = pick.choice(plain.divisors(shards))
    plain.precision(pick, case)
    if case["mp_param"] != "bfloat16":  # torch's kernels take grouped heads in 16 bits alone
        case.update(store_dtype="bfloat16", mp_param=None)
    plain.lora(pick, case)
    plain.workload(pick, case, small=True)
    case.pop("optim_in_bwd", None)
    case["seq"] = 2 * shared * (plain.experts_of(model)[0] or 1) * pick.choice((1, 2, 3, 5, 8))
    plain.wrapping(pick, case)
    return case


def drawn(seed: int, count: int) -> list[plain.Case]:
    """Cases 0 to `count` - 1."""
    return [draw(seed, number) for number in range(count)]


if __name__ == "__main__":
    print_cases(drawn, __doc__, SEED, COUNT)
