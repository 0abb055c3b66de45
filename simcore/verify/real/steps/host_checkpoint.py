"""A decoder layer that runs again in backward and keeps its input on the host, as Unsloth's checkpointer does it.

The rule is that of unsloth-zoo's `gradient_checkpointing.py` and of axolotl's `gradient_checkpointing: offload`: a
function of autograd copies its first argument to the host, runs the layer without a graph, and in backward copies it
back, runs the layer again and differentiates it at once. Here the copy is left away: only its shape is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: nn.Module, hidden: torch.Tensor, keywords: dict[str, Any]) -> torch.Tensor:
        ctx.of_input = (hidden.shape, hidden.dtype, hidden.device)
        with torch.no_grad():
            out = layer(hidden, **keywords)
        ctx.layer, ctx.keywords = layer, keywords
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor | None, None]:  # type: ignore[override]
        shape, dtype, device = ctx.of_input
        hidden = torch.empty(shape, dtype=dtype, device=device).requires_grad_()
        with torch.enable_grad():
            out = ctx.layer(hidden, **ctx.keywords)
        torch.autograd.backward(out, grad)
        return None, hidden.grad, None


class OnHost(nn.Module):
    """The layer behind such a function."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: torch.Tensor, **keywords: Any) -> Any:
        return _Again.apply(self.layer, hidden, keywords)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)
