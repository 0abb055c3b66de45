"""Time of a step with phases: that of its training, extended to all phases; parts add up to the whole step.

[Note: rates of a step with phases]
NeMo RL main of 2026-08-22 (7ea279ab) `algorithms/utils.py:519` print_performance_metrics: tokens/s per GPU are those of
all sequences, over the whole step and all GPUs, those that only generate too (E2E). Its FLOPs (:861) are those of
training alone; it divides them by the time of training, here they are divided by the time of the step. FLOPs of
generation and of passes without gradients are not counted, so the MFU says how much of a step is spent on learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simcore.hardware.topology import Topology
from simcore.inputs.training import Training
from simcore.results.time import CommunicationTime, KernelTime, StepTime
from simcore.rl.step.journal import COPIES, Moment
from simcore.timing.throughput import cost

__all__ = ["Batch", "whole_step"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Amounts of one step with phases: `steps` of the optimizer, `sequences` trained on, `samples` of the data set.

    A sample is a prompt of GRPO, or a pair of DPO. `length`: tokens of a sequence in the mean.
    """

    steps: int
    sequences: int
    samples: int
    length: int


def whole_step(time: StepTime, phases: Sequence[Moment], batch: Batch, training: Training, topology: Topology,
               num_gpus: tuple[int, int]) -> StepTime:
    """Time of a step with phases, without a roofline; see [Note: rates of a step with phases].

    `time`: of one training step, of which the phase "training" has `batch.steps`; `phases`: of a class of ranks that
    ends last. `num_gpus`: of those that train, and of all. Copies between device and host are one part, phases without
    their copies are one each.
    """
    total_s, steps, (training_gpus, all_gpus) = sum(phase.ns for phase in phases) / 1e9, batch.steps, num_gpus
    parts = {name: steps * seconds for name, seconds in time.parts.items()}
    for phase in phases:
        if phase.phase != "training":
            parts[phase.phase] = (phase.ns - phase.copied_ns) / 1e9
    parts[COPIES] = sum(phase.copied_ns for phase in phases) / 1e9
    tokens = batch.sequences * batch.length
    share = steps * time.step_s / total_s * training_gpus / all_gpus
    return time.model_copy(update={
        "step_s": total_s, "parts": parts, "tokens_per_s_per_gpu": tokens / total_s / all_gpus,
        "forward_s": steps * time.forward_s, "backward_s": steps * time.backward_s,
        "optimizer_s": steps * time.optimizer_s, "exposed_communication_s": steps * time.exposed_communication_s,
        "model_tflops_per_gpu": time.model_tflops_per_gpu * share, "mfu": time.mfu * share,
        "convention": f"{time.convention} (training)", "executed_tflops_per_gpu": None, "bubble_share": None,
        "communication": tuple(_repeated_calls(row, steps) for row in time.communication),
        "kernels": tuple(_repeated_work(row, steps) for row in time.kernels), "roofline": None,
        "cost": cost(topology, total_s, tokens, all_gpus, training.run_steps(tokens, batch.samples))})


def _repeated_calls(row: CommunicationTime, steps: int) -> CommunicationTime:
    return row.model_copy(update={"calls": steps * row.calls, **{
        name: steps * getattr(row, name) for name in ("alone_s", "exposed_s", "hidden_s")}})


def _repeated_work(row: KernelTime, steps: int) -> KernelTime:
    return row.model_copy(update={name: steps * getattr(row, name) for name in (
        "forward_s", "backward_s", "optimizer_s", "flops", "bytes_moved")})
