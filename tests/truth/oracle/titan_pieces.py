"""Layers with experts of torchtitan (0.2.2) under its own `apply_compile`, over fake tensors (torch 2.13).

`models/llama4/infra/parallelize.py`: attention and both norms of the block, router, reorderer and shared expert of its
MoE are compiled each by itself, and `_run_experts_grouped_mm`; what is between them is eager, and the checkpoint of the
block is around all. Inductor's code for each part is run as it is (`inductor.py`), the rest is eager, and every storage
is logged. Two halves of a rotated head are joined inside the kernel, as Inductor does on a GPU
(`_inductor/lowering.py`, cat: not on a CPU).
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._inductor import compile_fx, config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import inductor, titan
from .inductor import Part, Written
from .steps.tracker import Tracker

Case = dict[str, Any]
LOG: list[Tracker] = [Tracker()]
"""The log of now; the first one is of the step that compiles."""


def backend(graph: Any, inputs: Any) -> Any:
    """Inductor up to its code, which is run as it is."""
    def inner(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        part = Part(graph, [getattr(end, "name", None) for end in inductor.ends(graph)])

        def codegen(lowering: Any) -> Any:
            part.code = str(inductor.WRITE(lowering)[0].value)
            raise Written

        with (mock.patch.object(inductor.GraphLowering, "codegen", codegen), contextlib.suppress(Exception)):
            inductor.INNER(graph, inputs, **options)
        assert part.code, "Inductor wrote nothing"

        def run(given: Any) -> Any:
            return inductor.run(part.code, given, LOG[-1])[0]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    with config.patch(force_pointwise_cat=True):
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)


class Log(Tracker):
    """A log that parts that are compiled run under."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class Seen(torch.autograd.Function):
    """Where the layer's output is, and where backward of it begins and ends."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, at: list[int], tracker: Tracker | None) -> torch.Tensor:
        ctx.at, ctx.tracker = at, tracker
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        if ctx.tracker is not None:
            ctx.at.append(len(ctx.tracker.events))
        return grad, None, None


def measured(case: Case) -> dict[str, Any]:
    """Events of both passes of the last layer."""
    from torchtitan.config.job_config import Compile  # behind the modules that `titan` replaces

    torch.set_default_dtype(torch.bfloat16)
    torch._dynamo.config.capture_scalar_outputs = True
    model, ranks = titan.build(case), case.get("ep", 1)
    if ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        titan.put_on_ranks(model, {**case, "world": ranks})
    titan.checkpointed(model, case)
    titan.experts_plan.apply_compile(model, Compile(enable=True, backend=backend), ep_enabled=ranks > 1)  # type: ignore[arg-type]
    layer = model.layers[str(case["model"]["num_hidden_layers"] - 1)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        for name in ("expert_bias", "tokens_per_expert"):
            moe = layer.moe
            setattr(moe, name, getattr(moe, name).float())
        step(layer, case, None)
        model.zero_grad(set_to_none=True)
        tracker = Log()
        titan.TRACKERS.append(tracker)
        LOG.append(tracker)
        tracker.phase = "fwd"
        with tracker:
            for known in (*model.parameters(), *model.buffers()):
                tracker.tag(known, "input")
            at = step(layer, case, tracker)
    changes = [change for _, change in tracker.events]
    return {"sections": [{"at": "forward", "events": changes[at[0]:at[1]]},
                         {"at": "backward", "events": changes[at[2]:at[3]]}]}


def step(layer: Any, case: Case, tracker: Tracker | None) -> list[int]:
    """Moments in the log: before and behind forward, before and behind backward."""
    m, seq = case["model"], case["seq"]
    dim = m.get("head_dim") or m["hidden_size"] // m["num_attention_heads"]
    x = torch.empty(case.get("batch", 1), seq, m["hidden_size"], requires_grad=True)
    qwen = titan.is_qwen3(case)
    table = torch.empty(seq, 2 * dim if qwen else dim // 2, dtype=torch.float32 if qwen else torch.complex64)
    if tracker is not None:
        tracker.tag(x, "input")
        tracker.tag(table, "input")
    gc.collect()
    at = [len(tracker.events) if tracker else 0]
    first: list[int] = []
    out = layer(Seen.apply(x, first, tracker), table.bfloat16() if qwen else table, None)  # as FSDP2 casts it
    at.append(len(tracker.events) if tracker else 0)
    behind: list[int] = []
    top = Seen.apply(out, behind, tracker)
    del out
    grad = torch.empty_like(top)
    top.backward(grad)
    del top
    return [*at, *(behind or [0]), *(first or [0])]
