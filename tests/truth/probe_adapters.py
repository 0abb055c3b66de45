"""What one linear with PEFT's adapter allocates, event by event: dropout, DoRA and rsLoRA, over 16, 32 and 4 bits.

    python tests/truth/probe_adapters.py > tests/truth/adapters/peft-0.21.2.json

Runs on a CPU with real tensors. Dropout is `native_dropout`, which torch 2.13 `aten/src/ATen/native/Dropout.cpp`
(is_fused_kernel_acceptable) takes on CUDA; products of 4 bits are CUDA's fallback, as in `probe_qlora.py`.
`forward`, `backward`: signed bytes of storages in order, after a first pass; `parameters`: trained ones, name to
[shape, dtype].
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import probe_qlora
import torch
from json_lines import with_cases
from oracle.steps.tracker import Tracker
from torch.utils.checkpoint import checkpoint

WIDE, NARROW, BATCH, SEQ = 96, 64, 2, 24
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {}, "dropout": {"dropout": 0.05}, "rslora": {"rslora": True}, "dora": {"dora": True},
    "dora, dropout": {"dora": True, "dropout": 0.05}}
BASES: dict[str, dict[str, Any]] = {
    "bf16": {}, "bf16, adapters in fp32": {"adapters": "fp32"},
    "fp32": {"base": "fp32", "adapters": "fp32", "x": "fp32"},
    "nf4": {"base": "nf4"}, "nf4, adapters in fp32": {"base": "nf4", "adapters": "fp32"},
    "nf4, single": {"base": "nf4", "double_quant": False}}
WAYS: dict[str, dict[str, Any]] = {"": {}, ", replayed": {"recompute": True}, ", first": {"first": True}}
AUTOCAST: dict[str, dict[str, Any]] = {
    f"{name}, autocast, {x}": base | {"autocast": True, "x": x}
    for name, base in (("fp32", {"base": "fp32", "adapters": "fp32"}), ("nf4", {"base": "nf4", "adapters": "fp32"}))
    for x in ("bf16", "fp32")}
CASES = {f"{variant}; {name}": what | base for variant, what in VARIANTS.items() for name, base in (
    *((f"{base}{way}", of | more) for base, of in BASES.items() for way, more in WAYS.items()),
    *AUTOCAST.items())} | {
    f"{variant}; bias, {name}": what | BASES[name] | {"bias": True}
    for variant, what in VARIANTS.items() for name in ("bf16", "nf4")}


class Source(torch.autograd.Function):  # type: ignore[misc]
    """Makes an input that is no leaf and takes a gradient."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(BATCH, SEQ, WIDE, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None]:
        return None, None


class Only(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.one = linear


def fused_dropout(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(x, self.p, self.training)[0]


def base_of(case: dict[str, Any]) -> Any:
    kind, bias = case.get("base", "bf16"), case.get("bias", False)
    if kind != "nf4":
        return torch.nn.Linear(WIDE, NARROW, bias=bias, dtype=TYPES[kind])
    plain = torch.nn.Linear(WIDE, NARROW, bias=bias, dtype=torch.bfloat16)
    double = case.get("double_quant", True)
    packed = bnb.nn.Linear4bit(WIDE, NARROW, bias=bias, compute_dtype=torch.bfloat16, compress_statistics=double,
                               quant_type="nf4")
    packed.weight = bnb.nn.Params4bit(plain.weight.data, requires_grad=False, compress_statistics=double,
                                      quant_type="nf4", module=packed).to("cpu")
    packed.bias = plain.bias
    return packed


def built(case: dict[str, Any]) -> Any:
    """The linear as PEFT adapts it; its adapter in 16 bits as TRL casts it, or in fp32 as PEFT leaves it."""
    torch.manual_seed(0)
    model = Only(base_of(case))
    model.is_loaded_in_4bit = case.get("base") == "nf4"
    lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["one"], lora_dropout=case.get("dropout", 0.0),
                           use_dora=case.get("dora", False), use_rslora=case.get("rslora", False))
    adapted = peft.get_peft_model(model, lora)
    for p in adapted.parameters():
        p.data = p.data.to(TYPES[case.get("adapters", "bf16")]) if p.requires_grad else p.data
    return adapted.train().base_model.model.one


def measured(case: dict[str, Any]) -> dict[str, Any]:
    module = built(case)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    tracker, marks = Tracker(), []
    first, dtype = case.get("first", False), TYPES[case.get("x", "bf16")]
    leaf = torch.zeros(1, requires_grad=True)
    torch.is_autocast_enabled = lambda *_: case.get("autocast", False)
    with tracker:
        for p in module.parameters():
            tracker.number_of(p)
        for _ in range(2):
            x = torch.ones(BATCH, SEQ, WIDE, dtype=dtype) if first else Source.apply(leaf, dtype)
            for p in trained.values():
                p.grad = None
            gc.collect()
            marks.append(len(tracker.events))
            with probe_qlora.Autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
                out = checkpoint(module, x, use_reentrant=False) if case.get("recompute") else module(x)
            marks.append(len(tracker.events))
            grad = torch.ones_like(out)
            marks.append(len(tracker.events))
            node = out.grad_fn
            del out, x
            gc.collect()
            with probe_qlora.Autocast("cpu", torch.bfloat16, enabled=False):
                torch.autograd.graph._engine_run_backward((torch.autograd.graph.GradientEdge(node, 0),), (grad,), False,
                                                          False, (), allow_unreachable=True, accumulate_grad=True)
            del node, grad
            gc.collect()
            marks.append(len(tracker.events))
    changes = [change for _, change in tracker.events]
    start, made, seeded, end = marks[4:]
    return {"forward": changes[start:made], "backward": changes[seeded:end],
            "parameters": {name: [list(p.shape), str(p.dtype)] for name, p in trained.items()}}


def prepare() -> None:
    """Operators as CUDA has them; objects of the imports are not looked at again."""
    warnings.simplefilter("ignore")
    torch.nn.Dropout.forward = fused_dropout
    functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})  # type: ignore[attr-defined]
    gc.freeze()


if __name__ == "__main__":
    prepare()
    made = {"peft": peft.__version__, "bitsandbytes": bnb.__version__, "torch": torch.__version__,
            "rows": BATCH * SEQ, "shape": [NARROW, WIDE]}
    print(with_cases(made, {name: case | {"found": measured(case)} for name, case in CASES.items()}))
