"""Pipeline stages of trainers around torch 2.13 `distributed/pipelining`: 1F1B, and interleaved with virtual stages."""

from __future__ import annotations

from simcore.job import Job
from simcore.schedule import Schedule
from simcore.stages import contiguous, remainder_first, stage_layers

__all__ = ["even_stages", "pipeline_schedule", "weighed_stages"]

_RULE = "torch 2.13 distributed/pipelining/schedules.py"
_SPLIT = "torchtitan 0.2.2 distributed/pipeline_parallel.py generate_llm_fqn_per_model_part"


def pipeline_schedule(job: Job) -> Schedule:
    """Of the mesh's stages; a rank takes as many microbatches through a chunk in a row as a round has."""
    pipeline, pp, count = job.scenario.training.pipeline, job.mesh.pp, job.scenario.num_microbatches
    if pp == 1:
        return Schedule()
    if pipeline.virtual_stages == 1:
        if count < pp:
            raise job.illegal("training.global_batch_size", f"Number of microbatches ({count}) must be greater than or "
                              f"equal to the number of stages ({pp})", f"{_RULE} Schedule1F1B")
        return Schedule(num_stages=pp)
    rounds = max(1, count // pp)
    if count % rounds:
        raise job.illegal("training.global_batch_size", "Interleaved 1F1B requires the number of microbatches to be a "
                          f"multiple of the number of rounds ({rounds}), but got {count}",
                          f"{_RULE} ScheduleInterleaved1F1B")
    job.autos["parameters of a rank's chunks"] = (
        "gathered when they run first", f"an assumption: {_RULE} UNSHARD gathers all of them when a step begins, while "
        "neither activations nor gradients are there")
    return Schedule("looped", pp, pipeline.virtual_stages, count // rounds)


def even_stages(job: Job) -> tuple[tuple[int, ...], ...]:
    """As many layers on every stage, the remainder one each to the first (KempnerForge's compute_layer_assignment)."""
    count, layers = job.mesh.pp * job.scenario.training.pipeline.virtual_stages, job.graph.num_blocks
    if layers < count:
        raise job.illegal("mesh.pp", f"pp_size ({count}) cannot exceed n_layers ({layers})",
                          "KempnerForge 5666d0d16153 distributed/pipeline_parallel.py")
    return stage_layers(job.graph, contiguous(remainder_first(layers, count))) if count > 1 else (
        tuple(range(len(job.graph.layers))),)


def weighed_stages(job: Job) -> tuple[tuple[int, ...], ...]:
    """The embedding counts as a layer, and norm and output together as one; the remainder goes to the first stages."""
    count, layers = job.mesh.pp * job.scenario.training.pipeline.virtual_stages, job.graph.num_blocks
    if count == 1:
        return (tuple(range(len(job.graph.layers))),)
    each, rest = divmod(layers + 2, count)
    if each < 2:
        raise job.not_yet("mesh.pp", f"{layers} layers on {count} stages: no layer beside the embedding or the output "
                          f"({_SPLIT})")
    counts = [each + (stage < rest) for stage in range(count)]
    counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    return stage_layers(job.graph, contiguous(counts))
