"""Messages of DeepSpeed's ZeRO over small models whose vision tower is frozen, in bf16 on one CPU.

    python tests/truth/probe_zero_vision.py > tests/truth/deepspeed/vision-0.19.6.json

As `probe_deepspeed.py`, with models and images of `sees.py`; transformers' checkpoints where a case has them. `calls`:
collectives of the fourth step, each with the bytes of its largest tensor.
"""

from __future__ import annotations

import json
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import probe_deepspeed as plain
from oracle import logs

HERE = Path(__file__).resolve().parent
STAGES = {"zero2": {"reduce_bucket_size": 300_000, "overlap_comm": False},
          "zero3": {"reduce_bucket_size": 300_000, "overlap_comm": False, "stage3_prefetch_bucket_size": 100_000,
                    "stage3_param_persistence_threshold": 1_000, "stage3_max_reuse_distance": 1_000_000}}
RANKS = 4


prepare = lru_cache(maxsize=1)(plain.prepare)  # collectives are noted once, also by a process that is forked later


def started(case: dict[str, Any]) -> Any:
    """The engine around a model without gradients of its tower."""
    prepare()
    import deepspeed
    import torch
    import torch.distributed as dist
    from sees import FAMILIES
    from torch.testing._internal.distributed.fake_pg import FakeStore
    ranks = case.get("world", RANKS)
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(ranks)}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    model = FAMILIES[case["fields"]["model_type"]].built(case).to(torch.bfloat16).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(case["frozen"])))
    if case["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(trained, fused=True), config={
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": int(case["zero"][-1]), **STAGES[case["zero"]]}})
    return engine


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Collectives of the fourth step."""
    engine = started(case)
    from sees import FAMILIES
    given = FAMILIES[case["fields"]["model_type"]].inputs(case)
    for _ in range(4):
        plain.CALLS.clear()
        loss = engine(**given, labels=given["input_ids"], use_cache=False).loss
        forward = list(plain.CALLS)
        plain.CALLS.clear()
        engine.backward(loss)
        backward = list(plain.CALLS)
        plain.CALLS.clear()
        engine.step()
    return {"forward": forward, "backward": backward, "step": list(plain.CALLS), "sections": []}


def cases() -> list[dict[str, Any]]:
    """Cases of `cases-vision.json` under two stages, checkpointed or not, but ZeRO-3's whose tower has a backward."""
    rows = json.loads((HERE / "tape" / "cases-vision.json").read_text(encoding="utf-8"))
    return [row | {"name": f"{row['name']}, {zero}{', replayed' * replayed}", "zero": zero,
                   "recompute": replayed}
            for row in rows if row["name"] in ("qwen3-vl", "qwen2.5-vl")
            for zero in STAGES for replayed in (False, True)
            if not (replayed and zero == "zero3" and row["name"] != "qwen3-vl")]


if __name__ == "__main__":
    sys.argv[2:] = sys.argv[2:] if sys.argv[1:2] == ["--one"] else []
    logs.main(__file__, measured, cases())
