"""Measures what a pipeline rank of nemo-automodel 0.7.0 holds in a step of a model with experts and a vision tower.

    cd tests/truth
    python probe_automodel_stage_vision.py > tape/automodel-stages-vision-0.7.0-torch-2.13.0.json

As `probe_automodel_stage.py`, with a model of `probe_automodel_vision.py`: Automodel's own class of Qwen 3 VL with
experts, whose layers have an MLP in the place of experts, which run on a GPU alone, and a frozen tower. The first
stage has the images of all microbatches of a run, as `stage_vlm_media_for_pp` hands them over; every stage is given
the mask of tokens (`recipes/vlm/finetune.py`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from functools import partial
from typing import Any

import image_stand_ins as stand
import probe_automodel_dense as dense
import probe_automodel_stage as stages
import probe_automodel_vision as vision
import torch
from nemo_automodel._transformers.infrastructure import _instantiate_pipeline, parallelize_for_pp
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.pipelining.config import PipelineConfig
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.utils.model_utils import apply_parameter_freezing
from oracle.steps.setup import fsdp_params
from oracle.steps.tracker import Tracker

LAYERS = 6


TEXT = {**vision.SPARSE["text_config"], "num_hidden_layers": LAYERS, "mlp_only_layers": list(range(LAYERS))}
MODEL = {"freeze": vision.FROZEN, "images": 1, "model": "qwen3-vl", "fields": {**vision.SPARSE, "text_config": TEXT}}
"""The case of `probe_automodel_vision` with more layers."""
CASES: dict[str, dict[str, Any]] = {
    f"{at} of qwen3-vl-moe{words}": {**MODEL, "pp": 2, "rank": rank, "microbatches": 4, **given}
    for at, rank in (("first", 0), ("last", 4))
    for words, given in (("", {}), (", checkpointed", {"checkpoint": True}), (", interleaved", {"chunks": 3}))}


def pipeline_of(case: dict[str, Any], made: dict[str, Any]) -> Any:
    """As `probe_automodel_stage.pipeline_of`, over expert parallel ranks."""
    fsdp = FSDP2Config()
    mesh = MeshContext.build(fsdp, ParallelismSizes(pp_size=case["pp"], ep_size=4), world_size=stages.WORLD,
                             moe_parallel_config=MoEParallelizerConfig(),
                             activation_checkpointing=bool(case.get("checkpoint")))
    chunks = case.get("chunks", 1)
    asked = PipelineConfig(pp_microbatch_size=1, pp_batch_size=case["microbatches"],
                           pp_schedule="1f1b" if chunks == 1 else "interleaved1f1b",
                           layers_per_stage=LAYERS // (3 * case["pp"]) if chunks == 3 else None,
                           patch_inner_model=False, patch_causal_lm_model=False)
    pipeline = _instantiate_pipeline(asked, mesh, torch.device("cpu"), fsdp)
    model = vision.built(made).train()
    apply_parameter_freezing(model, made["freeze"])
    return pipeline.build(model, loss_fn=MaskedCrossEntropy(), parallelize_fn=partial(parallelize_for_pp,
                                                                                      mesh_context=mesh))


def one_schedule(pipeline: Any, tr: Tracker, case: dict[str, Any], *, begins: bool) -> None:
    tr.phase = "fwd"
    made, count = vision.whole(case), case["microbatches"]
    ids, labels, mask = (torch.ones((count, made["seq"]), dtype=torch.int64) for _ in range(3))
    info, losses = pipeline.info, []
    given = [ids, labels, mask]
    if info.has_first_stage:
        patches = vision.FAMILIES["qwen3_vl"].inputs(made)["pixel_values"].to(torch.bfloat16)
        images = [torch.empty_like(patches) for _ in range(count)]
        given += images
        del patches
        stand.stand_in_for_grids(made)
        first = pipeline.parts[0]
        first._vlm_pixel_values_chunks = images
        first._vlm_image_grid_hws_chunks = [Grids([stand.grid(made)])] * count
        first._vlm_chunk_idx = 0
    for one in given:
        tr.tag(one, "input")
    if begins:
        tr.mark("fwd:begin")
    pipeline.update_seq_len(made["seq"])
    info.schedule.step(*[ids] * info.has_first_stage, target=labels if info.has_last_stage else None,
                       losses=losses if info.has_last_stage else None, attention_mask=mask)
    for p in (p for part in pipeline.parts for p in fsdp_params(part)):
        tr.tag(p._sharded_param_data, "sharded_param")
        tr.tag(p.sharded_param, "sharded_param")
    if info.has_first_stage:
        assert pipeline.parts[0]._vlm_chunk_idx == count
        pipeline.parts[0]._vlm_pixel_values_chunks = None
        images.clear()
    del ids, labels, mask, given
    gc.collect()


class Grids(stand.Numbers):
    """Sides of the images of a microbatch, as a model asks them."""

    shape = (1, 3)

    def numel(self) -> int:
        return 3


def main() -> str:
    os.environ.update(WORLD_SIZE=str(stages.WORLD), RANK="0", LOCAL_RANK="0")
    stages.pipeline_of = lambda case: pipeline_of(case, vision.whole(case))
    stages.one_schedule = one_schedule
    asked = sys.argv[1:] or list(CASES)
    stages.CASES = CASES
    return dense.lines({name: stages.measured(name) for name in asked})


if __name__ == "__main__":
    stages.stand_in()
    stand.stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
