"""A rank of torchtitan's pipeline: its own split, PyTorch's stages and schedules, on fake tensors.

Stand-ins besides those of `titan.py`: no message is sent, a stage works on what its buffers happen to hold; shapes of
what crosses a border are told instead of found out.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import InferenceMode, PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import titan
from .steps.setup import fsdp_params, two_steps
from .steps.tracker import Tracker

from torchtitan.distributed.pipeline_parallel import (  # isort: skip  # after what `titan` puts in place
    generate_llm_fqn_per_model_part,
    pipeline_module_split,
)

Case = dict[str, Any]


def stages_of(case: Case, mesh: Any) -> list[PipelineStage]:
    """The rank's model parts, wrapped, as stages that know what they receive."""
    names = generate_llm_fqn_per_model_part(case["pp"] * case.get("virtual", 1), case["model"]["num_hidden_layers"])
    kind = case.get("schedule", "1F1B" if case.get("virtual", 1) == 1 else "Interleaved1F1B")
    found, _ = pipeline_module_split(titan.build(case), mesh["pp"], kind, torch.device("cpu"), names)
    made = []
    for stage in found:
        titan.wrap(stage.submod, case, mesh["fsdp"])
        hidden = torch.empty(1, case["seq"], case["model"]["hidden_size"], dtype=torch.bfloat16, device="meta")
        logits = torch.empty(1, case["seq"], case["model"]["vocab_size"], dtype=torch.bfloat16, device="meta")
        ids = torch.empty(1, case["seq"], dtype=torch.int64, device="meta")
        made.append(PipelineStage(
            stage.submod, stage.stage_index, stage.num_stages, torch.device("cpu"), group=mesh["pp"].get_group(),
            input_args=ids if stage.is_first else hidden.requires_grad_(),
            output_args=(logits if stage.is_last else hidden.clone()).requires_grad_()))
    return made


def quiet(schedule: Any) -> None:
    """No messages."""
    def warmed(stages: list[PipelineStage], *_: Any) -> None:
        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = warmed
    schedules._batch_p2p = lambda *_, **__: []
    schedules._wait_batch_p2p = lambda *_, **__: None


def watch(stage: PipelineStage, tracker: Tracker) -> None:
    """What is born in a pass is the pass's."""
    def noting(run: Any, phase: str) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            tracker.phase = phase
            return run(*args, **kwargs)
        return noted

    for name, phase in (("forward_one_chunk", "fwd"), ("backward_one_chunk", "bwd"),
                        ("backward_weight_one_chunk", "bwd")):
        setattr(stage, name, noting(getattr(stage, name), phase))


def logged(case: Case) -> tuple[Tracker, dict[str, tuple[int, ...]]]:
    """The log of two steps, and the local shape of every parameter."""
    dist.init_process_group("fake", store=FakeStore(), rank=case["rank"], world_size=case["world"])
    mesh = {name: titan.dims_of(case).get_mesh(name) for name in ("pp", "fsdp")}
    stages, count = stages_of(case, mesh), case["microbatches"]
    make = schedules.get_schedule_class(case.get("schedule", "1F1B" if len(stages) == 1 else "Interleaved1F1B"))
    single, loss = issubclass(make, schedules.PipelineScheduleSingle), titan.cross_entropy_loss
    schedule = make(stages[0] if single else stages, count, loss_fn=lambda *a: loss(*a) / 1000.0, scale_grads=False)
    quiet(schedule)
    model, tracker = nn.ModuleList(stage.submod for stage in stages), Tracker()
    titan.TRACKERS.append(tracker)
    for stage in stages:
        watch(stage, tracker)

    def step() -> None:
        tracker.phase = "fwd"
        ids, labels = (torch.randint(0, case["model"]["vocab_size"], (count, case["seq"])) for _ in range(2))
        for tensor in (ids, labels):
            tracker.tag(tensor, "input")
        tracker.mark("fwd:begin")
        first, last = any(s.is_first for s in stages), any(s.is_last for s in stages)
        schedule.step(*[ids] * first, target=labels if last else None, losses=[] if last else None,
                      return_outputs=case.get("return_outputs", False))
        for p in fsdp_params(model):
            tracker.tag(p._sharded_param_data, "sharded_param")
            tracker.tag(p.sharded_param, "sharded_param")
        del ids, labels
        gc.collect()
        tracker.mark("bwd:end")

    with FakeTensorMode(allow_non_fake_inputs=True), tracker:
        model.to_empty(device="cpu")
        gc.collect()
        for buffer in model.buffers():
            tracker.tag(buffer, "buffer")
        return tracker, two_steps(model, tracker, step)
