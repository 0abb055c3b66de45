"""One rank of an Automodel job: its own model code, LoRA patcher, parallelizer and pipeline, on the meta device.

Case: keys of `automodel.py` and `drawn_automodel.py`; `fields`: all of a configuration.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch.distributed as dist
from nemo_automodel.components.distributed.mesh_utils import get_flat_mesh
from torch.distributed.device_mesh import DeviceMesh

from . import automodel as nano
from .drawn_automodel import built_rank
from .drawn_automodel import found as sizes_of

AXES = {"pp": "pp", "dp_replicate": "dp_replicate", "dp_shard_cp": "dp_shard_cp", "cp": "cp", "tp": "tp"}
EXPERT_AXES = {"ep": "ep", "ep_shard": "expert_dp"}


def found(case: dict[str, Any]) -> dict[str, Any]:
    """Tensors of all chunks, communicators of more than one rank, and bytes of storage, gradients and states."""
    parts, refusal, context = built_rank(case)
    if refusal:
        return {"error": refusal}
    sizes = sizes_of(parts)
    tensors = [[name.replace("_checkpoint_wrapped_module.", ""), nano.local_of(p).numel(), nano.short(p.dtype)]
               for part in parts for name, p in part.named_parameters()]
    return {"versions": {name: version(name) for name in ("nemo-automodel", "torch", "transformers")},
            "tensors": tensors, "groups": groups(context),
            "sizes": {"storage": sizes["storage_bytes"], "gradients": sizes["grad_bytes"],
                      "optimizer": sizes["adam_bytes"]}}


def groups(context: Any) -> dict[str, list[int]]:
    """Ranks of the communicators that this rank is in, by our names of the axes."""
    told = {ours: ranks_of(context.device_mesh, theirs) for theirs, ours in AXES.items()}
    if context.moe_mesh is not None:
        told |= {ours: ranks_of(context.moe_mesh, theirs) for theirs, ours in EXPERT_AXES.items()}
    return {axis: ranks for axis, ranks in told.items() if len(ranks) > 1}


def ranks_of(mesh: DeviceMesh, axis: str) -> list[int]:
    return dist.get_process_group_ranks(get_flat_mesh(mesh, axis).get_group())
