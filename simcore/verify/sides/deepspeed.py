"""DeepSpeed 0.19's ZeRO around dense models of transformers: whole steps of real tensors, on rank 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Op
from simcore.simulation.simulation import Simulation
from simcore.verify.sides.engine import calls_of, named, stepped
from simcore.verify.sides.found import Found, Tensor
from simcore.verify.sides.settings import Settings
from simcore.verify.sides.side import Side

__all__ = ["SIDES"]

_OPTIONS: Final = ("reduce_bucket_size", "overlap_comm", "contiguous_gradients", "stage3_prefetch_bucket_size",
                   "stage3_param_persistence_threshold", "stage3_max_reuse_distance", "stage3_max_live_parameters",
                   "sub_group_size", "round_robin_gradients")
_TOLD: Final = frozenset({
    "framework", "framework_version", "implementation", "model", "mesh.dp_shard", "training.global_batch_size",
    "training.recompute", "training.precision.compute", "training.optimizer.name",
    *(f"framework_options.{name}" for name in _OPTIONS),
    # of what is not compared
    "training.seq_len", "training.micro_batch_size", "training.loss", "training.optimizer.implementation",
    "framework_options.sdpa_backend"})
_MOST_ELEMENTS: Final = 4_000_000_000
"""Parameters that a laptop holds in 16 bits."""


def _case(stage: int) -> Callable[[Settings, int], dict[str, Any]]:
    def case(settings: Settings, rank: int) -> dict[str, Any]:
        job, scenario = settings.job, settings.job.scenario
        settings.expect("implementation", job.graph.implementation, ("hf",))
        settings.expect("training.precision.compute", settings["training.precision.compute"], ("bf16",))
        settings.expect("training.recompute", scenario.training.recompute, ("none", "full"))
        settings.expect("training.optimizer.name", settings["training.optimizer.name"], ("adamw",))
        if job.has_experts:
            raise settings.not_told("model", "with experts under ZeRO")
        if rank:  # ZeRO-3 compares its record with rank 0's, which only rank 0 survives alone
            raise settings.not_told("--rank", f"{rank} under ZeRO")
        if job.graph.count() > _MOST_ELEMENTS:
            raise settings.not_told("model", f"of {job.graph.count():,} parameters, which ZeRO's side holds: give it "
                                    "fewer --layers, or a smaller model of the family")
        return {"stage": stage, "fields": settings.fields(), "world": job.mesh.size,
                "checkpoint": scenario.training.recompute == "full", "microbatches": scenario.num_microbatches,
                "options": {name: settings.option(name) for name in _OPTIONS if settings.option(name) is not None}}
    return case


def _ours(simulation: Simulation) -> Found:
    """Parts with padding, as DeepSpeed stores them; collectives of the passes, which have no phase there."""
    program, (plan,) = stepped(simulation), simulation.plans
    tensors = tuple(Tensor(named(plan.graph.layers[layer].path, placed), placed.padded, placed.policy.at_rest.dtype)
                    for layer in plan.layers for placed in plan.of_layer(layer) if placed.spec.is_owned)
    calls = calls_of(program, simulation.job.mesh)
    passes = tuple(call.without_phase() for call in calls if call.phase != "opt")
    update = sum(call.num_bytes for call in calls if call.phase == "opt" and call.kind == "all_gather")
    return Found(tensors, passes, {"masters": _masters(program), "update": update}, {}, {})


def _masters(program: Program) -> int:
    """Bytes of fp32 masters on the rank, with what pads them."""
    names = [category for _, category in program.tables.slots]
    return sum(amount for (op, _, slot, amount, _, _), phase in zip(
        program.columns.tolist(), program.phase.tolist(), strict=True)
        if op == Op.ALLOC and phase == Phase.BUILD and names[slot] == "main_param")


def _skipped(settings: Settings) -> dict[str, str]:
    return {"peak": "DeepSpeed runs on real tensors of a CPU, whose kernels keep other things"}


SIDES: Final = {f"zero{stage}": Side(f"DeepSpeed's ZeRO-{stage}", "zero", ("torch", "transformers", "deepspeed"), _TOLD,
                                     _case(stage), _ours, _skipped) for stage in (1, 2, 3)}
