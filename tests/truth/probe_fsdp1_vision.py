"""Measures whole steps of small models with a vision tower under torch's FullyShardedDataParallel, on one CPU.

    python tests/truth/probe_fsdp1_vision.py > tests/truth/fsdp1/vision-torch-2.13.0.json

Models and images of `sees.py`, as verl b178a3cd has them (`workers/fsdp_workers.py`): stored in fp32 over a fake group
of 8 ranks, gathered in bf16, reduced in fp32; each layer of the tower and of the decoder is a unit, the rest the root's
(`_no_split_modules`). `use_orig_params` where the tower is frozen, without which torch takes no such unit.
`peaks`: bytes above what is there before, of the second step; `forward`, `backward`: its collectives with their bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from oracle import logs
from oracle.whole_step import second_step
from sees import FAMILIES
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

HERE = Path(__file__).resolve().parent


def sharded(case: dict[str, Any]) -> Any:
    """The model around its units, checkpointed as transformers does it if the case asks for that."""
    torch.manual_seed(0)
    model = FAMILIES[case["fields"]["model_type"]].built(case).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(case["frozen"])))
    if case["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    units = {type(part) for part in (*model.model.visual.blocks, *model.model.language_model.layers)}
    return FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=ModuleWrapPolicy(units), use_orig_params=bool(case["frozen"]),
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.float32))


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The second step, without its update."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    model = sharded(case)
    return second_step(model, FAMILIES[case["fields"]["model_type"]].inputs(case))


def cases() -> list[dict[str, Any]]:
    """Cases of `cases-vision.json` whose towers are served, frozen or not, checkpointed or not."""
    rows = json.loads((HERE / "tape" / "cases-vision.json").read_text(encoding="utf-8"))
    return [row | {"name": f"{row['name']}{', trained' * trained}{', replayed' * replayed}", "recompute": replayed,
                   "frozen": [] if trained else row["frozen"]}
            for row in rows if row["name"] in ("qwen2.5-vl", "qwen2.5-vl-b2") for trained in (False, True)
            for replayed in (False, True)]


if __name__ == "__main__":
    logs.main(__file__, measured, cases())
