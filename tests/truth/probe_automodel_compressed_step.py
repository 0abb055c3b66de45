"""Measures whole steps of DeepSeek-V4 that nemo-automodel 0.7.0 wraps over experts on 8 ranks, and its FSDP2 units.

    python tests/truth/probe_automodel_compressed_step.py > \\
        tests/truth/tape/automodel-compressed-steps-0.7.0-torch-2.13.0.json

As `probe_automodel_step.py`, with the stand-ins of `probe_automodel_compressed.py`. Each rank has two routed experts a
layer, outside FSDP2; their forward is a stand-in that multiplies a token by the sum of its weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import probe_automodel_compressed as layers
import probe_automodel_step as steps
import torch
import torch.distributed as dist
from json_lines import by_name
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.models.deepseek_v4 import model as v4
from nemo_automodel.components.moe.experts import GroupedExperts
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore

SHAPE = {"n_routed_experts": 16}
CASES: dict[str, dict[str, Any]] = {
    f"{backend}{name}": {"backend": backend} | more for backend in ("torch", "tilelang") for name, more in {
        "": {}, ", checkpointed": {"checkpoint": True}}.items()}


def measure(case: dict[str, Any]) -> dict[str, Any]:
    with torch.device("meta"):
        model = v4.DeepseekV4ForCausalLM(layers.config(SHAPE), backend=layers.backend_of(case["backend"])).train()
        layers.utils.cast_model_to_dtype(model, torch.bfloat16)
    mesh = MeshContext.build(FSDP2Config(), ParallelismSizes(ep_size=8), world_size=8,
                             moe_parallel_config=MoEParallelizerConfig(),
                             activation_checkpointing=bool(case.get("checkpoint")))
    model = parallelize_model(model, mesh)
    units = [[name, sum(one.sharded_param.numel() for one in group.fsdp_params) if group else 0]
             for name, module in model.named_modules() if isinstance(module, FSDPModule)
             for group in (module._get_fsdp_state()._fsdp_param_group,)]
    halves, traffic = steps.two_steps(model, lambda tr, first: steps.micro_step(model, tr, first))
    return {"case": case, **halves, "traffic": traffic, "units": units}


if __name__ == "__main__":
    layers.stand_in()
    FakeTensor.item = FakeTensor.__bool__ = lambda _self: False  # no token is an image's, none is below zero
    GroupedExperts.forward = lambda _self, x, _mask, weights, _indices: x * weights.sum(-1, keepdim=True)
    made = {}
    with contextlib.redirect_stdout(sys.stderr):
        for name in sys.argv[1:] or CASES:
            os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
            dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
            made[name] = measure(CASES[name])
            dist.destroy_process_group()
    print(json.dumps({"shape": layers.SHAPE | SHAPE})[:-1] + ', "steps": {')
    print(by_name(made, compact=True))
    print("}}")
