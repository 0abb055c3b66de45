"""What torchao's Float8Linear allocates without torch.compile, event by event, with a scale a tensor.

    python tests/truth/probe_float8_linear.py > tests/truth/tape/float8-linear-torchao-0.18.0-torch-2.13.0.json

Runs on a CPU with real tensors; operands of a product are prepared as for CUDA's (`float8/float8_ops.py`,
preprocess_addmm), and the product itself makes its output and nothing else.
The weight is as FSDP2 gathers it with `enable_fsdp_float8_all_gather`: data in fp8 and a scale. `forward`, `backward`:
signed bytes of storages in order, after a first pass; those of up to 8 bytes, such as scales, are left out.
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import probe_adapters
import torch
import torchao
from json_lines import with_cases
from oracle.steps.tracker import Tracker
from torch.utils.checkpoint import checkpoint
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_training_tensor import Float8TrainingTensor, GemmInputRole

WIDE, NARROW, BATCH, SEQ = 96, 64, 2, 40
SCALARS = 8
CASES: dict[str, dict[str, Any]] = {
    f"{bias}{way}": of | what for bias, of in (("plain", {}), ("bias", {"bias": True}))
    for way, what in (("", {}), (", replayed", {"recompute": True}), (", first", {"first": True}))}


class Float8Tracker(Tracker):  # type: ignore[misc]
    """Looks inside torchao's tensors: their storage is that of their data."""

    def number_of(self, t: torch.Tensor, op: str = "?") -> int:
        return int(super().number_of(t._data if isinstance(t, Float8TrainingTensor) else t, op))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, Float8TrainingTensor) for t in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


def product(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype, **_: Any) -> torch.Tensor:
    return torch.empty(a.shape[0], b.shape[1], dtype=out_dtype)


def built(case: dict[str, Any]) -> Any:
    linear = torch.nn.Linear(WIDE, NARROW, bias=case.get("bias", False), dtype=torch.bfloat16)
    module = Float8Linear.from_float(linear, Float8LinearConfig())
    data = torch.zeros(NARROW, WIDE, dtype=torch.float8_e4m3fn)
    module.weight = torch.nn.Parameter(Float8TrainingTensor(
        data, torch.ones(()), torch.bfloat16, module.linear_mm_config, GemmInputRole.WEIGHT))
    return module


def passed(module: Any, case: dict[str, Any], tracker: Tracker) -> tuple[list[int], list[int]]:
    leaf = torch.zeros(1, requires_grad=True)
    x = probe_adapters.Source.apply(leaf, torch.bfloat16)
    x = x.detach() if case.get("first") else x
    for p in module.parameters():
        p.grad = None
    gc.collect()
    start = len(tracker.events)
    out = checkpoint(module, x, use_reentrant=False) if case.get("recompute") else module(x)
    made = len(tracker.events)
    grad = torch.ones_like(out)
    node = out.grad_fn
    seeded = len(tracker.events)
    del out, x
    gc.collect()
    torch.autograd.graph._engine_run_backward((torch.autograd.graph.GradientEdge(node, 0),), (grad,), False, False, (),
                                              allow_unreachable=True, accumulate_grad=True)
    del node, grad
    gc.collect()
    changes = [change for _, change in tracker.events]
    return changes[start:made], changes[seeded:]


def measured(case: dict[str, Any]) -> dict[str, Any]:
    module, tracker = built(case), Float8Tracker()
    with tracker:
        for p in module.parameters():
            tracker.number_of(p)
        passed(module, case, tracker)
        forward, backward = passed(module, case, tracker)
    return {"forward": [change for change in forward if abs(change) > SCALARS],
            "backward": [change for change in backward if abs(change) > SCALARS]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch._scaled_mm = product
    probe_adapters.WIDE, probe_adapters.SEQ = WIDE, SEQ
    gc.freeze()
    made = {"torchao": torchao.__version__, "torch": torch.__version__, "rows": BATCH * SEQ, "shape": [WIDE, NARROW]}
    print(with_cases(made, {name: case | measured(case) for name, case in CASES.items()}))
