"""Stand-in for flash-attn 2 on fake tensors: what its kernels allocate, by their source."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations import flash_attention


def kept_for_backward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Output like `q` [batch, heads, sequence, d] of flash-attn's forward, which saves it with its input and a sum."""
    out = q.new_empty(q.shape)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    ctx.save_for_backward(q, k, v, out, lse)
    return out


class Flash(torch.autograd.Function):
    """Allocations of flash-attn 2 for heads of one size (0251105a `csrc/flash_attn/flash_api.cpp`, mha_fwd, mha_bwd).

    Transcribed from its source, not measured: rows are rounded up to 128, dq is accumulated in fp32.
    """

    forward = staticmethod(kept_for_backward)

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, *_rest = ctx.saved_tensors
        grads = tuple(x.new_empty(x.shape) for x in (q, k, v))
        batch, seq, heads, dim = q.shape
        rows, wide = batch * -(-seq // 128) * 128, -(-dim // 32) * 32 if dim <= 128 else -(-dim // 64) * 64
        scratch = [torch.empty(shape, dtype=torch.float32, device=q.device)
                   for shape in ((heads, rows), (rows, heads, wide))]
        del scratch
        return grads


def put_in_place(config: Any) -> None:
    """Lets layers of a model with this configuration run `flash_attention_forward`, and that the stand-in."""
    config._attn_implementation = "flash_attention_2"
    flash_attention._flash_attention_forward = lambda q, k, v, *_, **__: Flash.apply(q, k, v)
