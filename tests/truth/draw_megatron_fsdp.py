"""Draws jobs of Megatron-FSDP with adapters and with pipeline stages.

    python tests/truth/draw_megatron_fsdp.py > tests/truth/megatron_fsdp/drawn-core-0.16.1.json

With main (d98e8a64) on `PYTHONPATH` it draws and measures main's, whose steps have adapters too. Nothing is drawn
again because of what came out; what upstream raises is the row's `error`.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

from drawing import chosen, maybe

Case = dict[str, Any]
SEED = 20261130
COUNTS = {"buckets": 18, "steps": 26, "stages": 22}
"""Cases of each version; buckets with adapters are core's (main groups parameters alike), their steps main's."""
DENSE = (["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"], ["linear_qkv"], ["linear_fc1", "linear_fc2"],
         ["linear_proj"], ["*layers.*.mlp.linear_fc2"])
SPARSE = (*DENSE[:4], ["*mlp.experts.linear_fc1"], ["linear_proj", "*mlp.experts.linear_fc2"])
LATENT = (["linear_proj", "linear_fc1", "linear_fc2"], ["linear_kv_up_proj"], ["linear_kv_down_proj", "linear_fc2"],
          ["*shared_experts.linear_fc1"])
FAMILIES = {"gpt2": DENSE, "qwen2": DENSE, "qwen3_moe": SPARSE, "mixtral": SPARSE, "deepseek_v2": LATENT,
            "deepseek_v3": LATENT}


def bucket_case(rng: random.Random) -> Case:
    """One rank of a small model with adapters."""
    family = rng.choice(sorted(FAMILIES))
    tp = chosen(rng, (1, 3), (2, 3), (4, 1))
    ep = rng.choice((1, 2, 4, 8)) if family not in ("gpt2", "qwen2") else 1
    return {"family": family, "tp": tp, "ep": ep, "rank": rng.randrange(8),
            "bucket_size": rng.choice((None, 40_000_000, 100_000, 300_000)), "lora": rng.choice((4, 6, 8, 16)),
            "targets": rng.choice(FAMILIES[family])}


def _plain(rng: random.Random, layers: int) -> list[int]:
    return sorted(rng.sample(range(layers), rng.randrange(layers)))


def step_case(rng: random.Random) -> Case:
    """A step on one stage, with adapters in some layers."""
    layers = rng.randint(2, 5)
    case: Case = {"layers": layers, "microbatches": rng.randint(1, 3), "unit_size": rng.choice((None, 1, 5120)),
                  "plain": _plain(rng, layers)}
    if rng.random() < 0.25:
        case |= {"plain": [], "recompute": True}
    if rng.random() < 0.2:
        return case | {"copies": rng.choice((2, 4))}
    maybe(rng, case, 0.3, gathers_first=False)
    maybe(rng, case, 0.3, double_buffer=True)
    return case


def stage_case(rng: random.Random, *, is_main: bool) -> Case:
    """A step of one of several stages."""
    stages, layers = rng.choice((2, 2, 4, 8)), rng.randint(1, 5)
    case: Case = {"stage": rng.randrange(stages), "stages": stages, "layers": layers,
                  "microbatches": rng.randint(1, 7), "unit_size": rng.choice((None, 1, 4000, 8000, 12000))}
    if is_main and rng.random() < 0.4:
        return case | {"unit_size": rng.choice((None, 1, 4000)), "plain": _plain(rng, layers)}
    maybe(rng, case, 0.3, recompute=True)
    maybe(rng, case, 0.25, double_buffer=True)
    maybe(rng, case, 0.1, frees_outputs=True)
    return case


def drawn(seed: int, *, is_main: bool) -> dict[str, list[Case]]:
    """Cases of one version by what is asked of them."""
    rng = random.Random(f"{seed} {is_main}")
    first = {"steps": [step_case(rng) for _ in range(COUNTS["steps"])]} if is_main else {
        "buckets": [bucket_case(rng) for _ in range(COUNTS["buckets"])]}
    return first | {"stages": [stage_case(rng, is_main=is_main) for _ in range(COUNTS["stages"])]}


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--seed", type=int, default=SEED)
    asked.add_argument("--cases", action="store_true", help="print the cases alone")
    given = asked.parse_args()
    if given.cases:
        print(json.dumps({version: drawn(given.seed, is_main=version == "main") for version in ("core", "main")}))
        return
    import probe_megatron_fsdp as probe
    from oracle.apart import run_apart

    def run(case: Case) -> Any:
        try:
            return probe.asked(case)
        except Exception as error:  # noqa: BLE001  (reported in the row, never hidden)
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}

    rows = {kind: list(run_apart({str(number): case for number, case in enumerate(cases)}, run).values())
            for kind, cases in drawn(given.seed, is_main=probe.IS_MAIN).items()}
    print(probe.text(rows))


if __name__ == "__main__":
    main()
