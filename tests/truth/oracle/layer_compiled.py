"""A decoder layer of transformers as torch.compile has it, alone: forward and backward by a backend that is given.

The layer is compiled inside of what checkpoints it, as `nn.Module.compile` on each layer does (torchtune bd2a0fc7
`training/_compile.py`, accelerate 1.15.0 `utils/other.py` compile_regions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from . import inductor
from .inductor import Compiler
from .steps.models import build_meta

Case = dict[str, Any]


def measured(case: Case) -> dict[str, Any]:
    """What is kept and the events of both passes of the case's layer."""
    return inductor.measured(layer(case))


def layer(case: Case) -> Callable[[Compiler], None]:
    """A step of one layer."""
    torch.set_default_dtype(torch.bfloat16)
    model = build_meta(case["preset"], case["overrides"])
    if "lora" in case:
        adapted(model, case["lora"])
    body, batch, seq = model.model.layers[0].train(), case.get("batch", 1), case["seq"]
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def step(compiler: Compiler) -> None:
        body.to_empty(device="cpu")
        x = torch.empty(batch, seq, config.hidden_size, requires_grad=True)
        tables = torch.empty(1, seq, dim), torch.empty(1, seq, dim)
        run = torch.compile(body, backend=compiler, fullgraph=True)
        run(x, attention_mask=None, position_embeddings=tables, position_ids=None).sum().backward()

    return step


def adapted(model: nn.Module, lora: dict[str, Any]) -> None:
    """Adapters of PEFT, in the type of the frozen base."""
    inject_adapter_in_model(LoraConfig(r=lora["r"], target_modules=lora["targets"]), model)
    for name, param in model.named_parameters():
        param.requires_grad_("lora_" in name)
