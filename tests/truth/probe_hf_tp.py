"""Measures steps of transformers' models under their own tensor parallel plans and FSDP2: cases of `draw_hf_tp.py`.

    python tests/truth/draw_hf_tp.py | python tests/truth/probe_hf_tp.py > rows

A step of `probe_fsdp2.py` after transformers 5.23.0's own `apply_tensor_parallelism` with the model's `tp_plan`, on the
mesh of its `initialize_distributed_mesh`: FSDP2 wraps what it left, over the ranks that hold the same part. `tp`: ranks
that share matrices. Strides of a whole tensor, which transformers reads off a tensor on the meta device, are computed:
the tracker would count it.
"""

from __future__ import annotations

from typing import Any

import torch
from oracle.rows import drawn_step_row, of_functional
from oracle.steps import run, setup
from oracle.worker import serve
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from transformers.distributed.tensor_parallel import TensorParallelLayer, apply_tensor_parallelism

NAMES = ("dp_replicate", "dp_shard", "tp")


def grid(spec: dict[str, Any]) -> DeviceMesh:
    copies, tp = spec["dp_replicate"], spec["tp"]
    return init_device_mesh("cpu", (copies, spec["world"] // copies // tp, tp), mesh_dim_names=NAMES)


def split_at_the_end(local: torch.Tensor, mesh: DeviceMesh, size: int) -> DTensor:
    """`TensorParallelLayer._from_local_last_dim_shard` without a tensor on the meta device."""
    shape = torch.Size((*local.shape[:-1], size))
    strides = tuple(shape[n + 1:].numel() for n in range(len(shape)))
    return DTensor.from_local(local, mesh, [Shard(-1)], run_check=False, shape=shape, stride=strides)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    build, meshes = run.build, []

    def built(spec: dict[str, Any]) -> nn.Module:
        model = build(spec)
        meshes.append(grid(spec))
        return apply_tensor_parallelism(model, meshes[0]["tp"], model._expand_parallel_plan(dict(model.tp_plan)))

    run.build = built
    TensorParallelLayer._from_local_last_dim_shard = staticmethod(split_at_the_end)
    setup.dp_mesh = lambda spec: meshes[0][NAMES[:2]] if spec["dp_replicate"] > 1 else meshes[0]["dp_shard"]
    row = run.measure(case)
    row["calls"] = of_functional(row["calls"])
    return row


if __name__ == "__main__":
    serve(measure, drawn_step_row)
