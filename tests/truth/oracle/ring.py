"""torch's ring of context parallelism on a CPU: its own templates around the CPU's flash kernel, which has no rule.

torch 2.13 `distributed/tensor/experimental/_context_parallel/_attention.py`, _sdpa_handler, call_maps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.experimental._context_parallel._attention import (
    _templated_ring_attention,
    _templated_ring_attention_backward,
)

CPU_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
CPU_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def ring_forward(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DTensor, ...]:
    """`_sdpa_handler` for the CPU's flash kernel, which DTensor has no rule for."""
    q, k, v = args[:3]
    made = _templated_ring_attention(q.device_mesh.get_group(), 2, CPU_FLASH, *(x.to_local() for x in (q, k, v)),
                                     is_causal=True, scale=kwargs.get("scale"))
    return tuple(DTensor.from_local(x, q.device_mesh, q.placements, run_check=False) for x in made)


def ring_backward(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DTensor, ...]:
    mesh, placements = args[1].device_mesh, args[1].placements
    grad, *saved = (x.to_local() for x in args[:6])
    made = _templated_ring_attention_backward(mesh.get_group(), 2, cpu_flash_backward, grad, "grad_out", *saved,
                                              is_causal=True, scale=kwargs.get("scale"))
    return tuple(DTensor.from_local(x, mesh, placements, run_check=False) for x in made)


def cpu_flash_backward(*, grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                       out: torch.Tensor, logsumexp: torch.Tensor, is_causal: bool, scale: float | None) -> Any:
    return CPU_FLASH_BACKWARD(grad_out, query, key, value, out, logsumexp, 0.0, is_causal, scale=scale)


_attention.custom_ops.update({CPU_FLASH: ring_forward, CPU_FLASH_BACKWARD: ring_backward})
