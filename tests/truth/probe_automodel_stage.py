"""Measures what a pipeline rank of nemo-automodel 0.7.0 holds in a whole step: Qwen3 and Llama with its own code.

    python tests/truth/probe_automodel_stage.py > tests/truth/tape/automodel-stages-0.7.0-torch-2.13.0.json

Fake tensors on a CPU over PyTorch's fake process group: Automodel's `AutoPipeline` (its split, its forward of a stage,
its `parallelize_for_pp`, its static shapes), PyTorch's stages and schedule, the call of its recipe
(`recipes/llm/train_ft.py`, schedule.step without return_outputs), `MaskedCrossEntropy` and fused AdamW, twice; the
second step is told. Cases over tp are asked for one by one, as DTensor keeps the groups of the first. Stand-ins
besides those of `probe_automodel_step.py`: no message is sent, a stage works on what its buffers happen to hold.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import probe_automodel_dense as dense
import probe_automodel_step as steps
import torch
import torch.distributed as dist
from nemo_automodel._transformers.infrastructure import _instantiate_pipeline, parallelize_for_pp
from nemo_automodel.components.distributed.config import FSDP2Config
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes
from nemo_automodel.components.distributed.pipelining import hf_utils, recv_buffer_pool
from nemo_automodel.components.distributed.pipelining.config import PipelineConfig
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from oracle.steps.log import Replay
from oracle.steps.run import summarise_comms
from oracle.steps.setup import fsdp_params, make_optim, optimizer_step
from oracle.steps.tracker import Tracker
from oracle.titan_stage import quiet, watch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining.stage import PipelineStage, _PipelineStageBase
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD, SEQ, LAYERS = 8, 512, 6
CASES: dict[str, dict[str, Any]] = {
    "first": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4},
    "last": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4},
    "first of three microbatches": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 3},
    "last of eight microbatches": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 8},
    "second of four": {"family": "qwen3", "pp": 4, "rank": 2, "microbatches": 6},
    "last of four": {"family": "qwen3", "pp": 4, "rank": 6, "microbatches": 6},
    "first checkpointed": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "checkpoint": True},
    "last checkpointed": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4, "checkpoint": True},
    "first of llama": {"family": "llama", "pp": 2, "rank": 0, "microbatches": 4},
    "last of llama": {"family": "llama", "pp": 2, "rank": 4, "microbatches": 4},
    "first kept": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "reshard_after_forward": False},
    "last reduced at once": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4, "defer_fsdp_grad_sync": False},
    "first reduced at once": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "defer_fsdp_grad_sync": False},
    "first pooled": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 8, "pp_recv_buffer_pool": True},
    "second of four pooled": {"family": "qwen3", "pp": 4, "rank": 2, "microbatches": 8, "pp_recv_buffer_pool": True,
                              "pp_recv_buffer_pool_slack": 1},
    "first of two schedules": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 3, "schedules": 2},
    "last of two schedules": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4, "schedules": 2},
    "last of three schedules, reduced at once": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 2,
                                                 "schedules": 3, "defer_fsdp_grad_sync": False},
    "first over tp": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "tp": 2},
    "last over tp": {"family": "llama", "pp": 2, "rank": 4, "microbatches": 4, "tp": 2},
    "last over tp, checkpointed": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4, "tp": 2,
                                   "checkpoint": True},
    "last over tp, interleaved": {"family": "llama", "pp": 2, "rank": 4, "microbatches": 4, "tp": 2, "chunks": 3},
    "first alone": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "world": 2},
    "last alone": {"family": "qwen3", "pp": 2, "rank": 1, "microbatches": 4, "world": 2},
    "first by transformers": {"family": "qwen2", "hf": True, "pp": 2, "rank": 0, "microbatches": 4},
    "last by transformers": {"family": "qwen2", "hf": True, "pp": 2, "rank": 4, "microbatches": 4},
    "last by transformers, checkpointed": {"family": "llama", "hf": True, "pp": 2, "rank": 4, "microbatches": 4,
                                           "checkpoint": True},
    "first by transformers, interleaved": {"family": "qwen2", "hf": True, "pp": 2, "rank": 0, "microbatches": 4,
                                           "chunks": 3, "checkpoint": True},
    "first of mixtral": {"family": "mixtral", "hf": True, "pp": 2, "rank": 0, "microbatches": 4},
    "last of mixtral": {"family": "mixtral", "hf": True, "pp": 2, "rank": 4, "microbatches": 4},
    "first interleaved": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "chunks": 3},
    "first of two interleaved": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "chunks": 2},
    "last of two interleaved": {"family": "llama", "pp": 2, "rank": 4, "microbatches": 4, "chunks": 2},
    "last interleaved": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4, "chunks": 3},
    "first interleaved and checkpointed": {"family": "qwen3", "pp": 2, "rank": 0, "microbatches": 4, "chunks": 3,
                                           "checkpoint": True},
    "last interleaved and checkpointed": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4, "chunks": 2,
                                          "checkpoint": True},
    "last interleaved in two schedules": {"family": "qwen3", "pp": 2, "rank": 4, "microbatches": 4, "chunks": 3,
                                          "schedules": 2},
}
OF_FSDP = ("reshard_after_forward", "defer_fsdp_grad_sync")
OF_STAGES = ("pp_recv_buffer_pool", "pp_recv_buffer_pool_slack")


def pipeline_of(case: dict[str, Any]) -> Any:
    """The rank's `AutoPipeline`, built as `_transformers/infrastructure.py` builds it."""
    fsdp = FSDP2Config(**{k: case[k] for k in OF_FSDP if k in case})
    sizes = ParallelismSizes(pp_size=case["pp"], tp_size=case.get("tp", 1))
    mesh = MeshContext.build(fsdp, sizes, world_size=case.get("world", WORLD),
                             activation_checkpointing=bool(case.get("checkpoint")))
    chunks = case.get("chunks", 1)
    asked = PipelineConfig(pp_microbatch_size=1, pp_batch_size=case["microbatches"],
                           pp_schedule="1f1b" if chunks == 1 else "interleaved1f1b",
                           layers_per_stage=LAYERS // (3 * case["pp"]) if chunks == 3 else None,  # else 1 or 2 a rank
                           **{k: case[k] for k in OF_STAGES if k in case})
    pipeline = _instantiate_pipeline(asked, mesh, torch.device("cpu"), fsdp)
    model = dense.model_of({"family": case["family"], "layers": LAYERS, "hf": case.get("hf")}).train()
    model.config._experts_implementation = "grouped_mm"
    return pipeline.build(model, loss_fn=MaskedCrossEntropy(), parallelize_fn=partial(parallelize_for_pp,
                                                                                      mesh_context=mesh))


def one_schedule(pipeline: Any, tr: Tracker, case: dict[str, Any], *, begins: bool) -> None:
    tr.phase = "fwd"
    shape = case["microbatches"], SEQ
    ids, labels = (torch.randint(0, dense.SHAPE["vocab_size"], shape) for _ in range(2))
    for given in (ids, labels):
        tr.tag(given, "input")
    if begins:
        tr.mark("fwd:begin")
    info, losses = pipeline.info, []
    pipeline.update_seq_len(SEQ)
    info.schedule.step(*[ids] * info.has_first_stage, target=labels if info.has_last_stage else None,
                       losses=losses if info.has_last_stage else None)
    for p in (p for part in pipeline.parts for p in fsdp_params(part)):
        tr.tag(p._sharded_param_data, "sharded_param")
        tr.tag(p.sharded_param, "sharded_param")
    del ids, labels
    gc.collect()


def measure(case: dict[str, Any]) -> dict[str, Any]:
    world = case.get("world", WORLD)
    os.environ["WORLD_SIZE"] = str(world)
    dist.init_process_group(backend="fake", rank=case["rank"], world_size=world, store=FakeStore())
    pipeline = pipeline_of(case)
    quiet(pipeline.info.schedule)
    model, tr = nn.ModuleList(pipeline.parts), Tracker()
    for stage in pipeline.info.stages:
        watch(stage, tr)
    with FakeTensorMode(allow_non_fake_inputs=True), tr:
        model.to_empty(device="cpu")
        gc.collect()
        for buffer in model.buffers():
            tr.tag(buffer, "buffer")
        optimizer = make_optim(model, {"optim": "adamw_fused", "optim_groups": "one"})
        for _ in range(2):
            gc.collect()
            sent = len(tr.comms)
            for number in range(case.get("schedules", 1)):
                one_schedule(pipeline, tr, case, begins=number == 0)
            tr.mark("bwd:end")
            comms = tr.comms[sent:]
            optimizer_step(optimizer, tr)
    dist.destroy_process_group()
    start, end = (max(place for place, label in tr.markers if label == at) for at in ("fwd:begin", "bwd:end"))
    replay = Replay(tr)
    peak = replay.segment(start, end)
    return {"case": case, "parameters": len(list(model.parameters())), "peak": peak["peak"],
            "breakdown": peak["breakdown"], "begins": replay.breakdown(start), "ends": replay.breakdown(end),
            "traffic": summarise_comms(comms)}


@contextlib.contextmanager
def unpooled() -> Iterator[None]:
    """Takes back what a pool of buffers has put in place for the whole process."""
    forward, backward = PipelineStage._setup_forward_recv_info, _PipelineStageBase._setup_backward_recv_info
    yield
    PipelineStage._setup_forward_recv_info, _PipelineStageBase._setup_backward_recv_info = forward, backward
    recv_buffer_pool._INSTALLED = False


def measured(name: str) -> dict[str, Any]:
    with unpooled():
        return measure(CASES[name])


def main() -> str:
    os.environ.update(WORLD_SIZE=str(WORLD), RANK="0", LOCAL_RANK="0")
    asked = sys.argv[1:] or list(CASES)
    return dense.lines({name: measured(name) for name in asked})


def stand_in() -> None:
    steps.stand_in()
    made = dense.config
    dense.config = lambda family, **given: made(family, num_hidden_layers=LAYERS, **given)
    hf_utils._build_or_reuse_pp_causal_mask = lambda *_: {}


if __name__ == "__main__":
    stand_in()
    with contextlib.redirect_stdout(sys.stderr):
        text = main()
    print(text)
