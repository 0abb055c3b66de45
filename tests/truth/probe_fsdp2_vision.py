"""Measures whole steps of small models with a frozen vision tower under torch's `fully_shard`, on one CPU.

    python tests/truth/probe_fsdp2_vision.py > tests/truth/fsdp2/vision-torch-2.13.0.json

Models and images of `sees.py`, stored in fp32 over a fake group of 8 ranks (or `world`), gathered in bf16; each layer
of the tower and of the decoder is a unit, the rest the root's (`_no_split_modules`), resharded after forward but for
the root. `peaks`: bytes above what is there before, of the second step; `comms`: its collectives with their bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from oracle import logs
from oracle.steps import delta
from oracle.whole_step import second_step

delta.put_in_place()  # the decoder of Qwen 3.5, of which nothing is told

from sees import FAMILIES  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

HERE = Path(__file__).resolve().parent
WORLD = 8


def sharded(case: dict[str, Any]) -> Any:
    """The model around its units, checkpointed as transformers does it if the case asks for that."""
    torch.manual_seed(0)
    model = FAMILIES[case["fields"]["model_type"]].built(case).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(case["frozen"])))
    if case["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    mesh = init_device_mesh("cpu", (case.get("world", WORLD),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    inner = model.model
    for unit in (*inner.visual.blocks, *inner.language_model.layers, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    return model


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The second step, without its update."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.get("world", WORLD))
    model = sharded(case)
    return second_step(model, FAMILIES[case["fields"]["model_type"]].inputs(case))


def cases() -> list[dict[str, Any]]:
    """Cases of `cases-vision.json` whose towers are served, checkpointed or not."""
    rows = json.loads((HERE / "tape" / "cases-vision.json").read_text(encoding="utf-8"))
    return [row | {"name": f"{row['name']}{', replayed' * replayed}", "recompute": replayed}
            for row in rows if row["name"] in ("qwen3-vl", "qwen3-vl-b2", "qwen3.5") for replayed in (False, True)]


if __name__ == "__main__":
    logs.main(__file__, measured, cases())
