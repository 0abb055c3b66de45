"""Measures whole steps of transformers' models as NeMo RL's workers wrap them over tensor parallelism.

    python tests/truth/probe_automodel_policy.py > tests/truth/tape/automodel-policies-torch-2.13.0.json

Fake tensors on a CPU over PyTorch's fake process group: parameters in fp32, the plan of nemo-automodel 0.7.0, which is
that of the pin for these families, `fully_shard` of layers and root as Automodel 24b47e856
`distributed/parallelizer.py` DefaultParallelizationStrategy calls it, transformers' `tie_weights` afterwards as its
`checkpoint/checkpointing.py:720` and NeMo RL 7ea279ab `models/automodel/setup.py:794` do, forward, `MaskedCrossEntropy`
in the place of NeMo RL's loss, backward and fused AdamW, twice; the second step is told. Stand-ins: those of
`probe_automodel_step.py`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import probe_automodel_dense as dense
import probe_automodel_step as step
import torch
import torch.distributed as dist
from nemo_automodel.components.distributed.parallelizer import (
    _attention_is_head_sharded,
    _get_parallel_plan,
    _update_attention_head_counts_for_tp,
    validate_tp_mesh,
)
from oracle.steps.tracker import Tracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

WIDE = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
CASES: dict[str, dict[str, Any]] = {
    f"{family}{' tied' * tied}, tp {tp} of {world}": {"family": family, "tied": tied, "tp": tp, "world": world}
    for family in ("qwen3", "llama") for tied in (False, True) for tp, world in ((2, 8), (2, 2))} | {
    "mistral, tp 2 of 8": {"family": "mistral", "tied": False, "tp": 2, "world": 8}}


def wrapped(case: dict[str, Any]) -> Any:
    """The model, cut over tp, which gives a tied head a parameter of its own, and wrapped."""
    model = dense.model_of({**case, "hf": True}).float().train()
    mesh = init_device_mesh("cpu", (case["world"] // case["tp"], case["tp"]), mesh_dim_names=("dp", "tp"))
    validate_tp_mesh(model, mesh["tp"])
    plan = _get_parallel_plan(model, tp_size=case["tp"])
    parallelize_module(model, mesh["tp"], plan)
    if _attention_is_head_sharded(plan):
        _update_attention_head_counts_for_tp(model, case["tp"])
    layers = model.model.layers
    for number, layer in enumerate(layers):
        fully_shard(layer, mesh=mesh["dp"], mp_policy=WIDE, reshard_after_forward=number < len(layers) - 1)
    fully_shard(model, mesh=mesh["dp"], mp_policy=WIDE, reshard_after_forward=False)
    return model


def gradients(model: Any) -> int:
    """Bytes of the storages that gradients are parts of."""
    storages = [p.grad.to_local().untyped_storage() for p in model.parameters()]
    return sum({one._cdata: one.nbytes() for one in storages}.values())


def measure(case: dict[str, Any]) -> dict[str, Any]:
    model, left = wrapped(case), []
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)

    def micro(tr: Tracker, first: bool) -> None:
        step.micro_step(model, tr, first)
        left.append(gradients(model))

    halves, traffic = step.two_steps(model, micro, model.tie_weights)
    return {"case": case, **halves, "parameters": len(list(model.parameters())), "gradients": left[-1],
            "traffic": traffic}


def start(world: int) -> None:
    """Makes this process the first of so many ranks."""
    os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=0, world_size=world, store=FakeStore())


def main() -> str:
    made = {}
    for name in sys.argv[1:] or CASES:
        start(CASES[name]["world"])
        made[name] = measure(CASES[name])
        dist.destroy_process_group()
    return dense.lines(made)


if __name__ == "__main__":
    step.stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
