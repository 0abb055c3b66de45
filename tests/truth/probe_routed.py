"""One MoE block of Nemotron-3-Nano's repository under autocast, its experts in 16 bits or packed, adapted by PEFT.

    PYTHONPATH=tests/truth python tests/truth/probe_routed.py > tests/truth/bitsandbytes/routed-0.50.2.json

Runs on a CPU, real tensors: bytes of every birth in order, each pass apart, what is kept when forward and its region of
autocast are over, and the most in either pass, as `probe_experts.py loop`. Router and loop are written here as
NemotronHTopkRouter and NemotronHMOE run them. Adapters are fp32, as Unsloth has them, but in the control without
autocast. Autocast of CUDA makes sums and powers in fp32 (torch 2.13 `ATen/autocast_mode.h`, AT_FORALL_FP32), that of a
CPU does not: the router's sum and the experts' squares are asked for in fp32. With packed experts torch then stops, and
its words are stored. Every expert gets its even share of rows: the numbers of the chosen ones are written over where
torch has put its own. Dropout as in `probe_adapters.py`.
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Any

import bitsandbytes as bnb
import bitsandbytes.autograd._functions as functions
import peft
import probe_qlora
import torch
from oracle.steps.tracker import Tracker
from probe_adapters import fused_dropout
from probe_experts import EXPERTS, FFN, HIDDEN, TOKENS, TOP_K, even, packed, passes
from probe_hub import moe
from torch import nn

BOTH = ["up_proj", "down_proj"]
CASES: dict[str, dict[str, Any]] = {
    "without autocast": {"autocast": False, "targets": BOTH, "packed": True},
    "packed, frozen": {"packed": True}, "packed, adapted": {"targets": BOTH, "packed": True},
    "frozen": {}, "adapted": {"targets": BOTH}, "one linear adapted": {"targets": ["down_proj"]},
    "adapted, dropout": {"targets": BOTH, "dropout": 0.1}}


class Router(nn.Module):
    """NemotronHTopkRouter with one group of experts; the bias of its choice is fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN).to(torch.bfloat16), requires_grad=False)
        self.register_buffer("bias", torch.zeros(EXPERTS))

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = hidden.view(-1, HIDDEN)
        logits = nn.functional.linear(hidden.type(torch.float32), self.weight.type(torch.float32))
        scores = logits.sigmoid()
        indices = self.chosen(scores)
        weights = scores.gather(1, indices)
        wide = torch.float32 if torch.is_autocast_enabled("cpu") else None
        denominator = weights.sum(dim=-1, keepdim=True, dtype=wide) + 1e-20
        weights /= denominator
        weights = weights * 2.5
        return indices, weights

    @torch.no_grad()
    def chosen(self, scores: torch.Tensor) -> torch.Tensor:
        choice = scores.view(-1, EXPERTS) + self.bias.unsqueeze(0)
        group_scores = choice.view(-1, 1, EXPERTS).topk(2, dim=-1)[0].sum(dim=-1)
        group = torch.topk(group_scores, k=1, dim=-1, sorted=False)[1]
        group_mask = torch.zeros_like(group_scores)
        group_mask.scatter_(1, group, 1)
        mask = group_mask.unsqueeze(-1).expand(-1, 1, EXPERTS).reshape(-1, EXPERTS)
        choice = choice.masked_fill(~mask.bool(), 0.0)
        indices = torch.topk(choice, k=TOP_K, dim=-1, sorted=False)[1]
        indices.data.copy_(NUMBERS)
        return indices


NUMBERS = even(TOKENS)


class Expert(nn.Module):
    def __init__(self, *, is_packed: bool) -> None:
        super().__init__()
        kind = partial(bnb.nn.Linear4bit, compute_dtype=torch.bfloat16) if is_packed else partial(
            nn.Linear, dtype=torch.bfloat16)
        self.up_proj, self.down_proj = kind(HIDDEN, FFN, bias=False), kind(FFN, HIDDEN, bias=False)
        self.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = nn.functional.relu(self.up_proj(x))
        return self.down_proj(torch.square(kept.float() if torch.is_autocast_enabled("cpu") else kept))


class Block(nn.Module):
    def __init__(self, *, is_packed: bool) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert(is_packed=is_packed) for _ in range(EXPERTS))
        self.gate = Router()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        shape = hidden.shape
        indices, weights = self.gate(hidden)
        hidden = hidden.view(-1, hidden.shape[-1])
        return moe(self.experts, hidden, indices, weights).view(*shape)


def measured(case: dict[str, Any]) -> dict[str, Any]:
    is_packed = case.get("packed", False)
    block, wide = Block(is_packed=is_packed), case.get("autocast", True)
    torch.is_autocast_enabled = lambda *_: wide  # PEFT asks for that of CUDA
    weights = {name: torch.randn_like(p, dtype=torch.bfloat16) for name, p in block.named_parameters()}
    packed(block, weights, case.get("double_quant", True))
    if "targets" in case:
        block.is_loaded_in_4bit = is_packed  # type: ignore[assignment]  # what PEFT asks for
        peft.get_peft_model(block, peft.LoraConfig(r=8, lora_alpha=16, target_modules=case["targets"],
                                                   lora_dropout=case.get("dropout", 0.0)))
    for name, p in block.named_parameters():
        p.data = p.data.to(torch.float32 if wide else torch.bfloat16) if "lora_" in name else p.data
    hidden = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    seed, tracker = torch.ones_like(hidden), Tracker()
    with tracker:
        for p in (hidden, seed, NUMBERS, *block.parameters(), *block.buffers()):
            tracker.number_of(p)
        start = len(tracker.events)
        with torch.autocast("cpu", torch.bfloat16) if wide else contextlib.nullcontext():
            try:
                out = block(hidden)
            except RuntimeError as stopped:
                return {"stops": str(stopped)}
        forward = len(tracker.events)
        out.backward(seed)
    return passes([change for _, change in tracker.events], start, forward)


def main() -> None:
    functions.torch = type("torch", (), {**vars(torch), "ops": probe_qlora.Ops})  # type: ignore[attr-defined]
    nn.Dropout.forward = fused_dropout  # type: ignore[method-assign]
    rows = {name: case | {"found": measured(case)} for name, case in CASES.items()}
    print(json.dumps({"version": bnb.__version__, "peft": peft.__version__,
                      "torch": torch.__version__.partition("+")[0], "cases": rows}))


if __name__ == "__main__":
    main()
