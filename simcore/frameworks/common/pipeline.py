"""Pipeline stages of trainers around torch 2.13 `distributed/pipelining`: 1F1B, interleaved, zero bubble."""

from __future__ import annotations

from simcore.pipeline.schedule import ZERO_BUBBLE, Schedule
from simcore.placement.job import Draft, Job
from simcore.placement.stages import contiguous, remainder_first, stage_layers

__all__ = ["check_schedule", "even_stages", "note_chunks", "pipeline_schedule", "rounds_of", "weighed_stages"]

_RULE = "torch 2.13 distributed/pipelining/schedules.py"
_SPLIT = "torchtitan 0.2.2 distributed/pipeline_parallel.py generate_llm_fqn_per_model_part"


def pipeline_schedule(job: Draft) -> Schedule:
    """Returns the job's pipeline schedule: name, number of ranks, chunks on each, microbatches of a group.

    A rank runs all microbatches of a group through a chunk in a row. `Schedule()`, of one rank, without pipeline
    stages. Raises IllegalLayout for a number of microbatches that torch's schedule refuses.
    """
    pipeline, pp, count = job.scenario.training.pipeline, job.mesh.pp, job.scenario.num_microbatches
    if pp == 1:
        return Schedule()
    chunks, zero = pipeline.virtual_stages, pipeline.schedule in ZERO_BUBBLE
    if chunks == 1 and not zero:
        if count < pp:
            raise job.illegal("training.global_batch_size", f"Number of microbatches ({count}) must be greater than or "
                              f"equal to the number of stages ({pp})", f"{_RULE} Schedule1F1B")
        return Schedule(num_stages=pp)
    note_chunks(job)
    if pipeline.schedule == "zbv":
        return Schedule("zbv", pp, chunks)
    rounds = rounds_of(job, count)
    return Schedule(pipeline.schedule if zero else "looped", pp, chunks, count // rounds if chunks > 1 else 1)


def note_chunks(job: Draft) -> None:
    """Notes when the parameters of a rank's several chunks are gathered."""
    job.note("parameters of a rank's chunks",
        "gathered when they run first", f"an assumption: {_RULE} UNSHARD gathers all of them when a step begins, while "
        "neither activations nor gradients are there")


def rounds_of(job: Job, count: int) -> int:
    """Rounds of an interleaved schedule, in each of which a chunk takes equally many of `count` microbatches.

    Raises IllegalLayout where they are not equally many.
    """
    rounds = max(1, count // job.mesh.pp)
    if count % rounds:
        zero = job.scenario.training.pipeline.schedule in ZERO_BUBBLE
        what, rule = ("Zero bubble", "ZeroBubble") if zero else ("Interleaved 1F1B", "1F1B")
        raise job.illegal("training.global_batch_size", f"{what} requires the number of microbatches to be a multiple "
                          f"of the number of rounds ({rounds}), but got {count}", f"{_RULE} ScheduleInterleaved{rule}")
    return rounds


def check_schedule(job: Job, *, splits: bool) -> None:
    """Raises IllegalLayout or NotYet for a zero-bubble schedule that the job cannot run.

    NotYet for other schedules than 1F1B. `splits`: backward of the layers can run in two halves, for inputs and for
    weights.
    """
    pipeline, at = job.scenario.training.pipeline, "training.pipeline.schedule"
    if pipeline.schedule not in ZERO_BUBBLE:
        job.refuse_given({at: "1f1b"})
        return
    if not splits:
        raise job.not_yet(at, f"{pipeline.schedule} in the layers of {job.graph.implementation}")
    if job.mesh.pp == 1:
        raise job.illegal(at, f"{pipeline.schedule} without pipeline stages", _RULE)
    chunks = pipeline.virtual_stages
    if pipeline.schedule == "zbv" and chunks != 2:
        raise job.illegal("training.pipeline.virtual_stages", "ZBV requires exactly 2 stages per rank, but got "
                          f"{chunks}", f"{_RULE} ScheduleZBVZeroBubble")
    if (chunks > 1) != (pipeline.schedule != "zb_h1"):
        raise job.illegal("training.pipeline.virtual_stages", f"{chunks} under {pipeline.schedule}: with one stage a "
                          "rank ScheduleInterleavedZeroBubble is zb_h1, with more interleaved_zb", _RULE)
    if job.scenario.training.recompute != "none":
        raise job.not_yet("training.recompute", "what is replayed where backward passes are split")


def even_stages(job: Job) -> tuple[tuple[int, ...], ...]:
    """Returns the layer numbers, in the whole model, of each stage, with several chunks a rank of each chunk.

    Each has as many transformer layers, the first ones one more if there is a remainder; the embedding is on the first,
    norm, head and loss on the last. IllegalLayout with fewer layers than stages. KempnerForge's
    compute_layer_assignment.
    """
    count, layers = job.mesh.pp * job.scenario.training.pipeline.virtual_stages, job.graph.num_blocks
    if layers < count:
        raise job.illegal("mesh.pp", f"pp_size ({count}) cannot exceed n_layers ({layers})",
                          "KempnerForge 5666d0d16153 distributed/pipeline_parallel.py")
    return stage_layers(job.graph, contiguous(remainder_first(layers, count))) if count > 1 else (
        tuple(range(len(job.graph.layers))),)


def weighed_stages(job: Job) -> tuple[tuple[int, ...], ...]:
    """Returns the layer numbers, in the whole model, of each stage, with several chunks a rank of each chunk.

    Stages are equal if the embedding counts as one layer, and norm and output together as one; the remainder goes to
    the first stages. NotYet if a stage would have no layer beside them.
    """
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
