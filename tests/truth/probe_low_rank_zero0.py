"""States and temporaries of GaLore's and APOLLO's steps inside DeepSpeed's engine without ZeRO (stage 0).

    PYTHONPATH=... python tests/truth/probe_low_rank_zero0.py < cases > rows     (one JSON object a line)

deepspeed 0.19.6, galore-torch 1.0, apollo-torch 1.0.3, transformers 5.23; one CPU, the process group is torch's fake
one. Cases, models and optimizers are those of `probe_low_rank.py`. In 16 bits the engine hands the optimizer a master
in fp32 of each parameter, and takes one step with zeros when it is made.

`wrapper`: class around the optimizer; `states`: bytes of the storages of each parameter's states; `steps`: of three
steps the most bytes that the optimizer's own step has beyond those before it. `error`: what is raised instead.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from oracle.steps.tracker import Tracker
from probe_low_rank import STEPS, forget, model_of, optimizer_of, tensors_in
from torch.testing._internal.distributed.fake_pg import FakeStore


def most(inner: torch.optim.Optimizer, step: Any, *given: Any) -> int:
    """The most bytes that a step makes and has not yet freed."""
    tracker = Tracker()
    with tracker:
        for p in (p for group in inner.param_groups for p in group["params"]):
            for known in (p, p.grad, *(t for value in inner.state[p].values() for t in tensors_in(value))):
                if known is not None and known.dim():  # numbers are left out
                    tracker.number_of(known)
        start = sum(change for _, change in tracker.events)
        step(*given)
    forget(tracker)
    return max(accumulate(change for _, change in tracker.events)) - start


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """States after three steps, and what each held."""
    import deepspeed

    torch.manual_seed(0)
    model = model_of(case)
    names = dict(model.named_parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer_of(case, model), config={
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": case["dtype"] == "bfloat16"},
        "zero_optimization": {"stage": 0}, "zero_allow_untested_optimizer": True})
    wrapped = case["dtype"] != "float32"
    inner = engine.optimizer.optimizer if wrapped else engine.optimizer
    steps, plain = [], inner.step
    inner.step = lambda *given: steps.append(most(inner, plain, *given))
    for _ in range(STEPS):
        tokens = torch.randint(0, case["model"]["vocab_size"], (1, 8))
        engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
        engine.step()
    groups = engine.optimizer.fp16_groups if wrapped else [group["params"] for group in inner.param_groups]
    masters = {id(ours): master for ours, master in zip(
        (p for group in groups for p in group), (p for group in inner.param_groups for p in group["params"]),
        strict=True)}
    states = {name: {key: sum(t.untyped_storage().nbytes() for t in tensors_in(value) if t.dim())
                     for key, value in inner.state.get(masters.get(id(p)), {}).items()} for name, p in names.items()}
    return {"wrapper": type(engine.optimizer).__name__, "steps": steps, "states": {
        name: {key: size for key, size in each.items() if size} for name, each in states.items()}}


def answered(case: dict[str, Any]) -> dict[str, Any]:
    """The case with what was found, or the error that it raised."""
    try:
        return case | measured(case)
    except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError, AttributeError, KeyError) as error:
        return case | {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12345",
                   "RANK": "0", "WORLD_SIZE": "1", "TORCHDYNAMO_DISABLE": "1"}
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answered(json.loads(line))) + "\n")
        sys.stdout.flush()
