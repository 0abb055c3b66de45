"""Megatron-Core's cut of the model into pipeline stages, and the order of passes (core 0.16.1 unless said otherwise).

With v virtual stages each of p ranks holds v chunks: chunk k of the model, in order, lies on rank k mod p.
"""

from __future__ import annotations

from simcore.frameworks.megatron.families.glm5 import chooses_keys
from simcore.frameworks.megatron.pipeline_layout import OPTION as LAYOUT
from simcore.frameworks.megatron.pipeline_layout import chunks_of
from simcore.inputs.training import Recompute
from simcore.models.blocks import Mamba2
from simcore.pipeline.schedule import Schedule
from simcore.placement.job import Draft, Job
from simcore.placement.stages import contiguous, stage_layers

__all__ = ["KEEPS_OUTPUT", "OVERLAP", "frees_outputs", "overlaps", "paired", "schedule", "stages"]

OVERLAP = "overlap_moe_expert_parallel_comm"
KEEPS_OUTPUT = "deallocate_pipeline_outputs"
"""False: a stage keeps what it has sent until its backward."""

Counts = list[int]
SPLITS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
          "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", LAYOUT)


def schedule(job: Draft, options: dict[str, object]) -> Schedule:
    """Returns the pipeline schedule: 1F1B, or interleaved 1F1B if ranks have several virtual stages.

    `options`: the framework options that the scenario sets, by name. Raises IllegalLayout for other schedules, and for
    numbers of microbatches that Megatron refuses.
    """
    pipeline, pp, chunks = job.scenario.training.pipeline, job.mesh.pp, _virtual_stages(job, options)
    given = options.get("microbatch_group_size_per_vp_stage")
    if pipeline.schedule != "1f1b":
        raise job.illegal("training.pipeline.schedule", f"{pipeline.schedule}: stages run 1F1B, interleaved with "
                          "virtual stages", "core 0.16.1 pipeline_parallel/schedules.py: get_forward_backward_func")
    if chunks == 1:
        if given is not None:
            raise job.illegal("framework_options.microbatch_group_size_per_vp_stage", "there are no virtual stages",
                              "core 0.16.1 schedules.py: read by the interleaved schedule alone")
        return Schedule(num_stages=pp)
    group = int(job.auto("framework_options.microbatch_group_size_per_vp_stage", str(given or "auto"), str(pp),
                         "core 0.16.1 model_parallel_config.py:447: as many as stages"))
    job.auto("overlap_p2p_comm", "auto", "true", "Bridge 0.3.1 training/comm_overlap.py:453: with virtual stages")
    _check_microbatches(job, group)
    return Schedule("interleaved", pp, chunks, group)


def frees_outputs(job: Draft, options: dict[str, object]) -> bool:
    """Returns True if a stage frees an output once it is sent; Megatron-LM and Bridge's providers say so always."""
    if KEEPS_OUTPUT in options and job.mesh.pp == 1:
        job.note(f"framework_options.{KEEPS_OUTPUT}", "changes no number", "it is of pipeline stages")
    return job.mesh.pp == 1 or options.get(KEEPS_OUTPUT) is not False


def overlaps(job: Job, options: dict[str, object]) -> bool:
    """True if token exchanges overlap with another microbatch: [Note: combined 1F1B] in `interleaved.py`.

    IllegalLayout if the option is on and Megatron refuses it for this job.
    """
    if not options.get(OVERLAP):
        return False
    rule, key = "core 0.16.1 transformer/transformer_config.py", f"framework_options.{OVERLAP}"
    further = bool(job.graph.branches)
    broken = {
        "is only supported with expert model parallelism": (job.mesh.ep == 1, 1865),
        "is supported with alltoall/flex token dispatcher": (
            options.get("moe_token_dispatcher_type") == "allgather", 1869),
        "needs virtual stages when pipeline_model_parallel_size > 1": (
            job.mesh.pp > 1 and _virtual_stages(job, options) == 1, 1859),
        "excludes full recomputation": (
            job.scenario.training.recompute == "full" or isinstance(job.scenario.training.recompute, Recompute), 1873),
        "needs pipeline parallelism with an MTP layer": (further and job.mesh.pp == 1, 1894)}
    for told, (is_broken, line) in broken.items():
        if is_broken:
            raise job.illegal(key, f"{OVERLAP} {told}", f"{rule}:{line}")
    return True


def paired(job: Draft, options: dict[str, object]) -> float:
    """Returns the part of all passes, 0 to 1, that run in pairs of a forward and a backward pass; 0 without `OVERLAP`.

    The others run before the first and after the last pair: on the mean stage as many as there are virtual stages and
    stages ahead of it, and one more, so that both passes of a pair are of different microbatches (core 0.16.1
    `pipeline_parallel/schedules.py`:773; with one stage `combined_1f1b.py`:44).
    """
    if not options.get(OVERLAP):
        return 0.0
    order = schedule(job, options)
    ahead = order.num_stages - 1 + (order.num_chunks - 1) * order.group + 1
    return max(0.0, 1.0 - ahead / (job.scenario.num_microbatches * order.num_chunks))


def _check_microbatches(job: Job, group: int) -> None:
    """`num_microbatches` must fill the groups: otherwise Megatron stops at the first step."""
    pp, count = job.mesh.pp, job.scenario.num_microbatches
    if not pp <= group <= count:
        raise job.illegal("training.global_batch_size", "the number of contiguous micro-batches in a virtual pipeline "
                          f"stage ({group}) should range in [PP={pp}, M={count}]",
                          "core 0.16.1 pipeline_parallel/schedules.py:1003")
    if 0 < count % group < pp:
        raise job.illegal("training.global_batch_size", f"the remainder of {count} micro-batches divided by {group} "
                          f"should be 0, or at least the pipeline-parallel size {pp}, but it is {count % group}",
                          "core 0.16.1 pipeline_parallel/schedules.py:1015")


def stages(job: Job, options: dict[str, object]) -> tuple[tuple[int, ...], ...]:
    """Returns the layer numbers, in the whole model, of each chunk in its order; chunk k is on rank k mod pp.

    `options`: the framework options that the scenario sets, by name. Raises IllegalLayout or NotYet if the model cannot
    be cut as asked.
    """
    pipeline, pp = job.scenario.training.pipeline, job.mesh.pp
    chunks = _virtual_stages(job, options)
    if chunks > 1 and pp == 1:
        raise job.illegal("training.pipeline.virtual_stages", "pipeline-model-parallel size should be greater than 1 "
                          "with interleaved schedule", "core 0.16.1 parallel_state.py:747")
    _check_hybrid(job)
    counts = list(pipeline.layers) if pipeline.layers != "auto" else _counts(job, options)
    if pipeline.layers != "auto" and any(options.get(name) for name in SPLITS):
        raise job.illegal("training.pipeline.layers", f"layers of each stage and {', '.join(SPLITS)} cannot be set at "
                          "the same time", "core 0.16.1 transformer/transformer_config.py:1322")
    if len(counts) != pp * chunks or sum(counts) != job.graph.num_blocks:
        raise job.illegal("training.pipeline.layers", f"expected {pp * chunks} numbers that add up to "
                          f"{job.graph.num_blocks}, got {counts}",
                          "core 0.16.1 mamba_block.py: stages are contiguous slices of the pattern; "
                          "pipeline_parallel_layer_layout.py:36")
    further = _where_further_tokens_are(job, options, counts)
    if not chooses_keys(job) and any(count < 1 and i not in (0, further) for i, count in enumerate(counts[:-1])):
        raise job.not_yet("training.pipeline.layers", "a stage without layers of its own, other than the last")
    return _moved(job, stage_layers(job.graph, contiguous(counts)), counts, further)


def _where_further_tokens_are(job: Job, options: dict[str, object], counts: Counts) -> int:
    """The chunk of multi-token prediction: the last, if a layout does not say so; -1 without it."""
    if not job.graph.branches:
        return -1
    return next((i for i, chunk in enumerate(chunks_of(job, options)) if "m" in chunk), len(counts) - 1)


def _moved(job: Job, made: tuple[tuple[int, ...], ...], counts: Counts, further: int) -> tuple[tuple[int, ...], ...]:
    """With multi-token prediction the final norm is where the last decoder layer is (transformer_block.py:401)."""
    if further < 0:
        return made
    last = max(i for i, count in enumerate(counts) if count)
    found: list[list[int]] = [list(chunk) for chunk in made]
    places = {"final_norm": last, "mtp": further}
    for layer in made[-1]:
        place = places.get(job.graph.kinds[job.graph.layers[layer].kind].name, len(made) - 1)
        if place != len(made) - 1:
            found[-1].remove(layer)
            found[place].append(layer)
    return tuple(tuple(chunk) for chunk in found)


def _virtual_stages(job: Job, options: dict[str, object]) -> int:
    """Chunks on each rank: those that were asked for, or those of a layout."""
    asked, layout = job.scenario.training.pipeline.virtual_stages, chunks_of(job, options)
    if layout and asked not in (1, len(layout) // job.mesh.pp):
        raise job.illegal("training.pipeline.virtual_stages", f"no more than one of virtual stages and {LAYOUT} can be "
                          f"set: the layout has {len(layout) // job.mesh.pp} chunks a rank, not {asked}",
                          "Megatron-LM training/arguments.py: no more than one of the following arguments")
    return len(layout) // job.mesh.pp if layout else asked


def _check_hybrid(job: Job) -> None:
    """A pattern of Mamba layers is cut by rank; later versions cut it where it has `|`."""
    pipeline = job.scenario.training.pipeline
    if pipeline.virtual_stages == 1 or not _has_mamba(job):
        return
    if job.scenario.framework_version != "main 2026-08-22":
        raise job.illegal("training.pipeline.virtual_stages", "The Mamba hybrid model does not currently support "
                          "virtual/interleaved pipeline parallelism", "core 0.16.1 ssm/mamba_block.py:173; "
                          "Bridge 0.3.1 models/mamba/mamba_provider.py:151")
    if pipeline.layers == "auto":
        raise job.illegal("training.pipeline.layers", "virtual stages of a hybrid model need `|` in its pattern: say "
                          "the number of layers of each", "main 2026-08-22 hybrid_layer_allocation.py: "
                          "select_pipeline_segment")


def _has_mamba(job: Job) -> bool:
    return any(isinstance(b.block, Mamba2) for kind in job.graph.kinds for b in kind.branches)


# ---- counts ---------------------------------------------------------------------------------------------------------
def _counts(job: Job, options: dict[str, object]) -> Counts:
    """Layers of each chunk: those of a layout, or what a rank gets, in equal parts."""
    layout, chunks = chunks_of(job, options), _virtual_stages(job, options)
    if layout:
        return [chunk.count("t") for chunk in layout]
    first, last = (options.get(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last"))
    ends = [bool(options.get(f"account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")]
    if first or last:
        if any(ends):
            raise job.illegal("framework_options", "no standalone embedding or loss stage with uneven pp",
                              "core 0.16.1 transformer/transformer_block.py:109")
        ranks = _uneven(job, int(str(first or 0)), int(str(last or 0)))
    else:
        if any(ends) and _has_mamba(job):
            raise job.illegal("framework_options", "a hybrid pattern is cut into equal numbers of layers: neither the "
                              "embedding nor the loss counts as one", "core 0.16.1 ssm/mamba_block.py:172")
        ranks = _even(job, sum(ends))
    for count in ranks:
        if count % chunks:
            raise job.illegal("training.pipeline.virtual_stages", f"number of layers on a pipeline rank ({count}) must "
                              f"be divisible by virtual pipeline parallel degree {chunks}",
                              "core 0.16.1 transformer_config.py:1371, transformer_block.py:175")
    counts = [count // chunks for count in ranks] * chunks
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    return counts


def _even(job: Job, extra: int) -> Counts:
    """`extra`: the embedding, the loss, or both count as a layer."""
    blocks, pp = job.graph.num_blocks + extra, job.mesh.pp
    if blocks % pp and _has_mamba(job):
        raise job.illegal("mesh.pp", f"{blocks} layers do not divide into {pp} stages",
                          "main 2026-08-22 raises; core 0.16.1 (ssm/mamba_block.py:172) silently drops the last "
                          "layers")
    if blocks % pp:
        raise job.illegal("mesh.pp", f"num_layers ({blocks}) should be divisible by pipeline_model_parallel_size {pp}",
                          "core 0.16.1 transformer/transformer_block.py:156")
    return [blocks // pp] * pp


def _uneven(job: Job, first: int, last: int) -> Counts:
    pp = job.mesh.pp
    middle_stages = pp - (first > 0) - (last > 0)
    middle = job.graph.num_blocks - first - last
    if bool(middle) != bool(middle_stages):
        raise job.illegal("framework_options", f"Mismatch: {middle} middle layers remaining but {middle_stages} middle "
                          "PP stages available", "core 0.16.1 transformer_config.py:1408")
    if middle_stages < 0 or middle < 0 or (middle_stages and middle % middle_stages):
        raise job.illegal("framework_options", f"{middle} layers do not divide into {middle_stages} middle stages",
                          "core 0.16.1 transformer_config.py: uneven pipeline stages")
    counts = [middle // middle_stages] * middle_stages if middle_stages else []
    return [*([first] if first else []), *counts, *([last] if last else [])]
