"""Measures steps of transformers' mixtures under their own expert parallelism and FSDP2: `draw_hf_experts.py`.

    python tests/truth/draw_hf_experts.py | python tests/truth/probe_hf_ep.py > rows

A step of `probe_fsdp2.py` of a model that transformers 5.23.0 itself has distributed: its plans
(`_resolve_parallel_plans`), `apply_tensor_parallelism`, `apply_expert_parallelism` (`ep_dispatch_experts`,
`AllToAllEP`) and `apply_fully_sharded_data_parallelism`, on the meshes that its `initialize_distributed_mesh` makes.
`ep`: ranks that hold different experts; `tp`: ranks that share a batch. Experts run grouped products. A policy of
mixed precision is the case's, not transformers' only one. Routing is balanced: numbers of rows that are read back to
the host, which fake tensors do not have, are equal.
"""

from __future__ import annotations

from typing import Any

import torch
from oracle.rows import drawn_step_row, of_functional
from oracle.steps import models, run, setup
from oracle.worker import serve
from probe_hf_tp import split_at_the_end
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers.distributed import fsdp
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.expert_parallel import AllToAllEP, apply_expert_parallelism
from transformers.distributed.tensor_parallel import TensorParallelLayer, apply_tensor_parallelism
from transformers.distributed.utils import TransformersDeviceMesh

NAMES = (("pp", "dp_replicate", "fsdp", "tp"), ("pp", "dp_replicate", "efsdp", "ep"))


def evenly(dispatch: Any) -> Any:
    """`AllToAllEP._dispatch_tokens` where each rank's experts get as many rows."""
    def dispatched(self: Any, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> Any:
        ranks = self.ep_mesh.size()
        rows = -(-index.shape[0] // self.tp_mesh.size()) * index.shape[1] // ranks
        FakeTensor.tolist = lambda x: [[rows] * ranks] * 2
        return dispatch(self, hidden, index, weights)
    return dispatched


def distribute(model: nn.Module, spec: dict[str, Any]) -> None:
    """As `DistributedMixin.maybe_distribute_model` does it, then checkpoints as the Trainer sets them."""
    copies, tp, ep = spec["dp_replicate"], spec.get("tp", 1), spec["ep"]
    config = DistributedConfig(tp_size=tp, fsdp_size=spec["world"] // copies // tp, dp_replicate_size=copies,
                               ep_size=ep)
    shapes = ((1, copies, config.fsdp_size, tp), (1, copies, config.efsdp_size, ep))
    meshes = [init_device_mesh("cpu", shape, mesh_dim_names=names) for shape, names in zip(shapes, NAMES, strict=True)]
    manager = TransformersDeviceMesh(*meshes)
    model.config.distributed_config, model.config._experts_implementation = config, "grouped_mm"
    plans = model._resolve_parallel_plans(config)
    if tp > 1:
        apply_tensor_parallelism(model, manager.get_mesh("tp"), plans[0])
    apply_expert_parallelism(model, manager.get_mesh("ep"), manager.get_mesh("tp"), plans[1])
    policy = MixedPrecisionPolicy(param_dtype=setup.dt(spec["mp_param"]), reduce_dtype=setup.dt(spec["mp_reduce"]))
    fsdp._get_fsdp_policy_kwargs = lambda _: {"mp_policy": policy}
    fsdp.apply_fully_sharded_data_parallelism(model, manager, plans[2], plans[1])
    setup.checkpoint(model, models.decoder_layers(model), spec)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    run.wrap = distribute
    AllToAllEP._dispatch_tokens = evenly(AllToAllEP._dispatch_tokens)
    TensorParallelLayer._from_local_last_dim_shard = staticmethod(split_at_the_end)
    row = run.measure(case)
    row["calls"] = of_functional(row["calls"])
    return row


if __name__ == "__main__":
    serve(measure, drawn_step_row)
