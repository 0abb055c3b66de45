"""What an engine of ZeRO-3 without an optimizer has gathered at every call of a module, in a forward alone.

    python tests/truth/probe_zero_reference.py CHECKOUT > tests/truth/deepspeed/reference-0.19.6.json

CHECKOUT, models and limits: as `probe_zero_fetched.py`. The engine is that of a reference model, as TRL's
prepare_deepspeed makes it. `fetched`: of the fourth forward, as there.
"""

from __future__ import annotations

import sys
from typing import Any

import probe_zero_qlora
from json_lines import with_cases
from oracle.apart import run_apart
from oracle.zero3_calls import watch
from probe_zero_fetched import LAYER, LIMITS, QWEN2, QWEN3, built, case

CASES = {
    "qwen2": case("qwen2", QWEN2, checkpoint=False), "qwen3": case("qwen3", QWEN3, checkpoint=False),
    "qwen3, few live": case("qwen3", QWEN3, checkpoint=False, stage3_max_live_parameters=6 * LAYER),
    "qwen3, far ahead": case("qwen3", QWEN3, checkpoint=False, stage3_prefetch_bucket_size=4 * LAYER),
    "qwen2, one by one": case("qwen2", QWEN2, checkpoint=False, stage3_max_reuse_distance=0,
                              stage3_prefetch_bucket_size=0),
}


def run(row: dict[str, Any]) -> dict[str, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    fetched: list[list[int]] = []
    model = built(row)
    watch(fetched, set())
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, **row["options"]}})
    engine.eval()
    for _ in range(4):
        fetched.clear()
        with torch.no_grad():
            engine(input_ids=torch.randint(0, row["model"]["vocab_size"], (1, 4)), use_cache=False)
    return {"fetched": fetched}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    probe_zero_qlora.prepare()
    print(with_cases({"deepspeed": "0.19.6 edaa72212"}, run_apart(CASES, run), compact=True, indent=" "))


if __name__ == "__main__":
    assert LIMITS
    main()
