"""One rank of a Megatron job: Bridge's provider, Megatron-Core's builders and DDP buffers, on the meta device.

Case: keys of `megatron.py` and `drawn_megatron.py`; `fields`: all of a configuration.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from . import drawn_megatron as drawn

import torch.distributed as dist  # isort: skip
from megatron.core import parallel_state as ps  # isort: skip

GROUPS = {"tp": ps.get_tensor_model_parallel_group, "pp": ps.get_pipeline_model_parallel_group,
          "cp": ps.get_context_parallel_group, "ep": ps.get_expert_model_parallel_group,
          "etp": ps.get_expert_tensor_parallel_group, "expert_dp": ps.get_expert_data_parallel_group,
          "dp_cp": lambda: ps.get_data_parallel_group(with_context_parallel=True)}


def found(case: dict[str, Any]) -> dict[str, Any]:
    """Tensors of all chunks, communicators of more than one rank, and bytes of gradients and optimizer states."""
    chunks, _ = drawn.built_rank(case)
    tensors = [row for chunk in chunks for row in tensors_of(chunk)]  # before DDP makes views of them
    buffers = drawn.buffers_of(chunks, case)
    return {"versions": {name: version(name) for name in ("megatron-core", "megatron-bridge", "torch")},
            "tensors": tensors, "groups": groups(),
            "sizes": {"gradients": buffers["main_grad_bytes"], "optimizer": 12 * buffers["optimizer_elems"]}}


def tensors_of(chunk: Any) -> list[list[Any]]:
    """With numbers of the whole model's layers; the weights of experts that one module holds are one row."""
    numbers = {str(at): str(layer.layer_number - 1) for at, layer in enumerate(chunk.decoder.layers)}
    rows: dict[str, list[Any]] = {}
    for name, p in chunk.named_parameters():
        if getattr(p, "shared_embedding", False):  # the last stage's copy, of a tied head
            continue
        told = re.sub(r"^decoder\.layers\.(\d+)\.", lambda m: f"decoder.layers.{numbers[m[1]]}.", name)
        told = told.replace(".to_wrap.", ".")  # around what is adapted
        told = re.sub(r"(experts\..*\.(?:weight|bias))\d+$", r"\1", told)
        row = rows.setdefault(told, [told, 0, str(p.dtype).replace("torch.", "")])
        row[1] += p.numel()
    return list(rows.values())


def groups() -> dict[str, list[int]]:
    """Ranks of the communicators that this rank is in, by our names of the axes."""
    told = {axis: dist.get_process_group_ranks(get()) for axis, get in GROUPS.items()}
    return {axis: ranks for axis, ranks in told.items() if len(ranks) > 1}
