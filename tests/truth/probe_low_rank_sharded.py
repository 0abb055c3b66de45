"""What two steps of GaLore and APOLLO do under frameworks that shard parameters: the error that they raise, or none.

    python tests/truth/probe_low_rank_sharded.py > tests/truth/optimizers/low-rank-sharded.json

FSDP2 and FSDP1 of torch over two processes of gloo, ZeRO of DeepSpeed over one; two linears, all of whose weights are
projected to rank 4. DeepSpeed runs with `zero_allow_untested_optimizer`, which accelerate sets.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from apollo_torch import APOLLOAdamW
from galore_torch import GaLoreAdamW
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

_SHARED = {"rank": 4, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "galore": (GaLoreAdamW, _SHARED),
    "apollo random": (APOLLOAdamW, {**_SHARED, "proj": "random", "scale_type": "channel"}),
    "apollo svd": (APOLLOAdamW, {**_SHARED, "proj": "svd", "scale_type": "channel"})}
WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "fsdp2": fully_shard,
    "fsdp1 use_orig_params": lambda model: FullyShardedDataParallel(
        model, use_orig_params=True, device_id=torch.device("cpu")),
    "fsdp1": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"))}


def linears() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False))


def raised(steps: Callable[[], None]) -> str:
    """The error of the steps; "" if they run."""
    try:
        steps()
    except (RuntimeError, IndexError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _wrapped(wrap: Callable[[nn.Module], nn.Module], name: str) -> None:
    model, (made, group) = wrap(linears()), OPTIMIZERS[name]
    optimizer = made([{"params": list(model.parameters()), **group}], lr=1e-3)
    for _ in range(2):
        model(torch.randn(3, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _zero(stage: int, name: str, *, half: bool) -> None:
    import deepspeed

    model, (made, group) = linears(), OPTIMIZERS[name]
    optimizer = made([{"params": list(model.parameters()), **group}], lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": half}, "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True})
    for _ in range(2):
        engine.backward(engine(torch.randn(3, 16).to(next(model.parameters()).dtype)).sum())
        engine.step()


def rows(rank: int) -> Iterator[dict[str, str]]:
    """One row for each optimizer and way to shard; ZeRO on the first process alone."""
    for name in OPTIMIZERS:
        for way, wrap in WRAPPED.items():
            yield {"framework": way, "optimizer": name, "error": raised(partial(_wrapped, wrap, name))}
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        return
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29743", "RANK": "0", "WORLD_SIZE": "1",
                   "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}
    for name in OPTIMIZERS:
        for stage in range(4):
            for half in (True, False):
                error = raised(partial(_zero, stage, name, half=half))
                yield {"framework": f"zero{stage}{' bf16' * half}", "optimizer": name, "error": error}


def run(rank: int, rendezvous: str, out: str) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=2)
    found = list(rows(rank))
    if not rank:
        Path(out).write_text(json.dumps({"torch": torch.__version__, "cases": found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/rows.json"
        torch.multiprocessing.spawn(run, (f"{folder}/group", out), 2)
        sys.stdout.write(Path(out).read_text("utf-8"))
