"""Measures steps of transformers' models under accelerate's context parallelism: cases of `draw_accelerate_cp.py`.

    python tests/truth/draw_accelerate_cp.py | python tests/truth/probe_accelerate_cp.py > rows

A step of `probe_fsdp2.py` inside of accelerate 1.15.0's hooks and torch 2.13.0's `context_parallel`, with the inputs
that transformers 5.23.0's Trainer prepares (`trainer.py`, _prepare_context_parallel_inputs). FSDP2's group has the
ranks that share a sequence too (`parallelism_config.py`, dp_shard_cp). `cp`: ranks that share one, here the first.

Fake tensors have no values: that no token is padding, and so no mask is made, is told to both functions that ask. With
real tensors (`REAL=1`) they find it themselves, and forward is the same; backward is not, as the tracker counts
wrappers of what is not awaited yet (AsyncCollectiveTensor) that have no memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from functools import partial
from typing import Any

import oracle.ring  # noqa: F401 - the ring around the CPU's kernel
import torch
from accelerate.big_modeling import _attach_context_parallel_hooks
from oracle.rows import drawn_step_row, of_functional
from oracle.steps import run, setup
from oracle.worker import serve
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from transformers import Trainer, trainer


class Accelerator:
    """Stand-in for accelerate's, as far as `_prepare_context_parallel_inputs` asks."""

    class parallelism_config:
        cp_enabled, cp_backend = True, "torch"

    def __init__(self, mesh: Any) -> None:
        self.maybe_context_parallel = partial(context_parallel, mesh)


def micro_step(model: nn.Module, spec: dict[str, Any], tr: Any, bounds: dict[str, int], first: bool,
               ignored: set[Any]) -> None:
    shape = (spec["batch"], spec["seq"])
    asked = Trainer.__new__(Trainer)
    asked.accelerator = Accelerator(model.cp_mesh)
    tr.phase = "fwd"
    inputs = {name: torch.randint(0, model.config.vocab_size, shape) for name in ("input_ids", "labels")}
    inputs["attention_mask"] = torch.ones(shape, dtype=torch.int64)  # as collators give it
    entered, inputs = asked._prepare_context_parallel_inputs(model, inputs)
    for one in inputs.values():
        tr.tag(one, "input")
    del one
    with entered():
        for one in inputs.values():  # `resize_` is no operator that the tracker sees
            tr.resized(one.untyped_storage(), one.untyped_storage().size())
        del one
        tr.mark("fwd:begin")
        out = model(**inputs, use_cache=False)
        loss = out.loss
        if spec["loss"] == "hf_drop_logits":
            del out
        tr.mark("fwd:end")
        bounds["fwd_end"] = len(tr.events)
        if first:
            setup.tag_shards(tr, model)
        tr.phase, tr.layer = "bwd", "loss"
        tr.mark("bwd:begin")
        loss.backward()
        del loss, inputs
        out = None
        gc.collect()
    del entered
    gc.collect()
    tr.mark("bwd:end")
    bounds["bwd_end"] = len(tr.events)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    set_rotate_method("allgather")
    build = run.build

    def built(spec: dict[str, Any]) -> nn.Module:
        model = build(spec)
        if not os.environ.get("REAL"):
            trainer.is_attention_mask_causal = lambda mask: True
            vars(sys.modules[type(model).__module__])["create_causal_mask"] = lambda **_: None
        _attach_context_parallel_hooks(model)
        model.cp_mesh = init_device_mesh("cpu", (spec["world"] // spec["cp"], spec["cp"]),
                                         mesh_dim_names=("others", "cp"))["cp"]
        return model

    run.build, run.micro_step = built, micro_step
    if os.environ.get("REAL"):
        run.FakeTensorMode = lambda **_: contextlib.nullcontext()  # type: ignore[assignment,misc]
    row = run.measure(case)
    row["calls"] = of_functional(row["calls"])
    return row


if __name__ == "__main__":
    serve(measure, drawn_step_row)
