"""Measures whole steps of a small Qwen 2.5 VL as NeMo RL's workers of DTensor wrap it, its tower trained.

    python tests/truth/probe_policy_vision.py > tests/truth/tape/policy-vision-torch-2.13.0.json

As `probe_automodel_vision.py`, but in fp32 at rest, with layers and root that put out fp32 (NeMo RL 7ea279ab
`models/automodel/setup.py`:485 output_dtype) under autocast, and the model's output dropped when the loss is there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import image_stand_ins as stand
import probe_automodel_dense as dense
import probe_automodel_step as steps
import probe_automodel_vision as vision
import torch
import torch.distributed as dist
from nemo_automodel.components.distributed.config import FSDP2Config
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from oracle.steps.setup import tag_shards
from probe_automodel_policy import WIDE
from sees import FAMILIES
from torch.testing._internal.distributed.fake_pg import FakeStore

CASES: dict[str, dict[str, Any]] = {
    "qwen2.5-vl": {"freeze": vision.TRAINED, "images": 1, "model": "qwen2.5-vl"},
    "qwen2.5-vl, a large image": {
        "freeze": vision.TRAINED, "images": 1, "sides": [588, 672], "model": "qwen2.5-vl"}}


def micro_step(model: Any, tr: Any, case: dict[str, Any], *, first: bool) -> None:
    """One microbatch; the model's output is dropped when the loss is there."""
    tr.phase = "fwd"
    given = FAMILIES["qwen2_5_vl"].inputs(case)
    given = {name: given[name] for name in ("input_ids", "pixel_values")}
    labels = given["input_ids"].clone()
    for one in (*given.values(), labels):
        tr.tag(one, "input")
    stand.stand_in_for_grids(case)
    grids = stand.Numbers([stand.grid(case)] * case["images"])
    out = model(**given, image_grid_thw=grids, mm_token_type_ids=torch.empty(0), use_cache=False)
    loss = MaskedCrossEntropy()(logits=out.logits, labels=labels)
    del out
    if first:
        tag_shards(tr, model)
    tr.phase, tr.layer = "bwd", "loss"
    tr.mark("bwd:begin")
    loss.backward()
    tr.mark("bwd:end")


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Peaks and traffic of the second step."""
    named, case = case, vision.whole(case)
    model = vision.built(case).float().train()
    mesh = MeshContext.build(FSDP2Config(mp_policy=WIDE), ParallelismSizes(), world_size=8)
    model = parallelize_model(model, mesh)
    wrapped = vision.units(model)
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    halves, traffic = steps.two_steps(model, lambda tr, first: micro_step(model, tr, case, first=first))
    return {"case": named, "units": wrapped, **halves, "traffic": traffic}


def main() -> str:
    """Text of the file."""
    os.environ.update(WORLD_SIZE="8", RANK="0", LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=0, world_size=8, store=FakeStore())
    return dense.lines({name: measure(CASES[name]) for name in sys.argv[1:] or list(CASES)})


if __name__ == "__main__":
    stand.stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
