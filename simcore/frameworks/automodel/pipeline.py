"""Pipeline stages of NeMo Automodel: its split, and what PyTorch's stages and schedules hold in it.

[Note: Automodel's stages]
0.7.0 `distributed/pipelining/functional.py` makes PyTorch's `PipelineStage`s and schedule. The recipe
(`recipes/llm/train_ft.py:1312`) calls schedule.step without return_outputs, which is True: the last stage keeps the
logits of all microbatches until the next step begins, and joins them when a step ends. All microbatches of
`step_scheduler.local_batch_size` are one run of the schedule, and a step of the optimizer is one run after another;
where it is not said, one run is the whole batch of a rank. Gradients are reduced at the end of each run, as both
PyTorch's stage and Automodel's patch of it (`moe/fsdp_mixin.py`, whose branch for FSDP modules does not look at
is_optim_step) know nothing of runs that follow. PyTorch keeps a buffer for each microbatch that a stage receives in a
run, in both directions; `pp_recv_buffer_pool` lets microbatches of 1F1B share some. With virtual stages
(`layers_per_stage`) 1F1B is `interleaved1f1b`, ScheduleInterleaved1F1B. A stage after the first makes the tables of
angles for its own layers. `tests/test_truth_automodel_stages.py` compares.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.frameworks.common.pipeline import note_chunks, rounds_of
from simcore.frameworks.fsdp2.strategy import Fsdp2Strategy
from simcore.models.vision_blocks import AnySize
from simcore.operators.automodel.sparse import SPARSE
from simcore.pipeline.schedule import ZERO_BUBBLE, Schedule
from simcore.placement.framework import Framework
from simcore.placement.job import Draft, Job
from simcore.placement.stages import contiguous, remainder_first, stage_layers
from simcore.units import dtype_bytes

__all__ = ["STAGES", "STAGE_OPTIONS", "check_pipeline", "deferred_reduction", "held_by_stages", "schedule_of",
           "stages_of"]

_POOL: Final = "pp_recv_buffer_pool"
_SLACK: Final = "pp_recv_buffer_pool_slack"
_LOCAL: Final = "local_batch_size"
STAGE_OPTIONS: Final = {_POOL: (True, False), _SLACK: (0, int), _LOCAL: (1, int)}
STAGES: Final = ("mesh.pp", "one schedule over all microbatches of a rank, unless local_batch_size says less; the "
                 "batch's tokens, labels, positions and masks are in the upper end of the band, and under gpipe what "
                 "is sent back", "assumed",
                 "0.7.0 recipes/llm/train_ft.py:667; a smaller local_batch_size keeps fewer buffers and logits")
_OWN_FORWARD: Final = ("nemotron_h", *SPARSE)
"""Families whose stages emit logits only: _pp_return_hidden_states_supported is set on patched forwards alone."""


def stages_of(job: Job) -> tuple[tuple[int, ...], ...]:
    """Layer numbers of each stage, of a rank's virtual ones too: contiguous, remainder to the first stages.

    0.7.0 pipelining/functional.py:98.
    """
    pipeline = job.scenario.training.pipeline
    given, count = pipeline.layers, job.mesh.pp * (pipeline.virtual_stages if job.mesh.pp > 1 else 1)
    counts = remainder_first(job.graph.num_blocks, count) if given == "auto" else list(given)
    if len(counts) != count or sum(counts) != job.graph.num_blocks or min(counts) < 1:
        raise job.illegal("mesh.pp", f"expected {count} stages of at least one layer, adding up to "
                          f"{job.graph.num_blocks}, got {counts}",
                          "0.7.0 pipelining/functional.py:135: stages cannot exceed layers")
    return stage_layers(job.graph, contiguous(counts))


def schedule_of(job: Draft, options: dict[str, object]) -> Schedule:
    """Order of a rank's passes: 1f1b, gpipe, or with virtual stages PyTorch's interleaved 1F1B; how long a run is."""
    pipeline, pp, run = job.scenario.training.pipeline, job.mesh.pp, _microbatches_of_run(job, options)
    if pp == 1:
        return Schedule()
    again = run if run < job.scenario.num_microbatches else 0
    if pipeline.virtual_stages == 1:
        return Schedule(pipeline.schedule, pp, run=again)
    note_chunks(job)
    return Schedule("looped", pp, pipeline.virtual_stages, run // rounds_of(job, run), run=again)


def _microbatches_of_run(job: Job, options: dict[str, object]) -> int:
    """Microbatches of one run of the schedule: local_batch_size over the microbatch, else all of a step."""
    count, size, at = job.scenario.num_microbatches, options.get(_LOCAL), f"framework_options.{_LOCAL}"
    if size is None:
        return count
    assert isinstance(size, int)
    each = job.scenario.training.micro_batch_size
    if size % each:
        raise job.illegal(at, f"Batch size {size} must be divisible by the size of microbatches {each}",
                          "0.7.0 distributed/pipelining/functional.py build_pipeline_schedule")
    if count % (size // each):
        raise job.illegal(at, f"global_batch_size: {count} microbatches of a rank are no multiple of the "
                          f"{size // each} of local_batch_size {size}", "0.7.0 components/training/step_scheduler.py")
    return size // each


def deferred_reduction(ahead: tuple[int, int], *, defer: bool) -> Fsdp2Strategy:
    """Strategy of stages: gradients are reduced, and parameters freed, when all microbatches have run backward.

    torch 2.13 `pipelining/stage.py`, backward_maybe_with_nosync and perform_reduce_grad; not `defer`: with each
    microbatch (0.7.0 moe/fsdp_mixin.py, patched_backward_maybe_with_nosync). `ahead`: layers gathered ahead in forward
    and backward.
    """
    return Fsdp2Strategy(*ahead, "end" if defer else "every", reshard_after_backward=not defer)


def held_by_stages(table: Framework, job: Draft, options: dict[str, object], *, released: bool) -> Framework:
    """Returns `table` with what stages hold: receive buffers, returned outputs, and what may come on top.

    `options`: framework options that the scenario sets. `released`: the framework's version has those of a pool.
    Raises InputError for options that change nothing.
    """
    slack = _buffer_slack(job, options, released=released)
    if job.mesh.pp == 1:
        job.refuse_idle(options, _LOCAL, "without pipeline stages, where it is the microbatch")
        return table
    run = _microbatches_of_run(job, options)
    return replace(table, buffered_microbatches=run, buffer_slack=slack, returns_outputs=True,
                   unseen_bytes=_unseen_bytes(job, run))


def _buffer_slack(job: Draft, options: dict[str, object], *, released: bool) -> int:
    """Receive buffers beyond those in flight that microbatches share; -1: each microbatch has its buffer."""
    pipeline = job.scenario.training.pipeline
    name = pipeline.schedule if pipeline.virtual_stages == 1 else "interleaved1f1b"
    if job.mesh.pp == 1 or not released or name != "1f1b":
        reason = ("without pipeline stages" if job.mesh.pp == 1 else
                  f"under the schedule {name}: its microbatches in flight have no bound "
                  "(0.7.0 recv_buffer_pool.py)" if released else "before 0.7.0, whose PipelineConfig does not have it")
        job.refuse_idle(options, _POOL, reason)
        _refuse_slack(job, options, reason)
        return -1
    if not job.flag(options, _POOL, "0.7.0 distributed/pipelining/config.py: pp_recv_buffer_pool False", default=False):
        _refuse_slack(job, options, f"without {_POOL}")
        return -1
    slack = job.auto(f"framework_options.{_SLACK}", str(options.get(_SLACK, "auto")), "2",
                     "0.7.0 distributed/pipelining/config.py: pp_recv_buffer_pool_slack 2")
    return int(slack)


def _refuse_slack(job: Job, options: dict[str, object], reason: str) -> None:
    """Also of 0, which is a slack like others."""
    job.refuse_idle({_SLACK: _SLACK in options}, _SLACK, reason)


def _unseen_bytes(job: Job, run: int) -> int:
    """Most bytes that a stage holds besides its passes, buffers and returned outputs; `run`: microbatches of a run.

    A run's whole batch, which the recipe moves to the device before the schedule cuts it: five numbers of 8 bytes a
    token: input_ids, labels and their clone, position_ids, attention_mask (0.7.0 recipes/llm/train_ft.py,
    _forward_backward_step), of sequences that context parallelism has not cut; and its images in 16 bits. Under gpipe
    also the gradients of all inputs, which a message that has not been waited for may hold (torch 2.13
    `pipelining/schedules.py`, ScheduleGPipe: bwd_sends_to_wait). With virtual stages one gradient more: the buffer that
    it came in is counted as free once the chunk's last layer has used it.
    """
    training = job.scenario.training
    tokens = run * training.micro_batch_size * training.seq_len
    width = job.graph.architecture.of_border * dtype_bytes(job.compute)
    sent = width if training.pipeline.schedule == "gpipe" else 0
    more = training.micro_batch_size * training.seq_len * width * (training.pipeline.virtual_stages > 1)
    pixels = sum(kind.block.pixels for kind in job.graph.kinds if isinstance(kind.block, AnySize))
    return tokens * (5 * 8 + sent) + more + 2 * run * training.micro_batch_size * (training.images or 0) * pixels


def check_pipeline(job: Job) -> None:
    """Raises IllegalLayout or NotYet for stages that Automodel refuses, or that are not modelled.

    A batch that is written down must fill the pipeline; an omitted one is not checked.
    """
    training, pp = job.scenario.training, job.mesh.pp
    if training.pipeline.schedule in ZERO_BUBBLE:
        raise job.not_yet("training.pipeline.schedule", f"{training.pipeline.schedule} under automodel")
    if training.pipeline.schedule == "gpipe" and training.pipeline.virtual_stages > 1:
        raise job.not_yet("training.pipeline.virtual_stages", "gpipe over virtual stages under automodel")
    if pp == 1:
        return
    if job.graph.has_tied_head:
        raise job.illegal("mesh.pp", "Pipeline parallelism does not support tie_word_embeddings=True",
                          "0.7.0 distributed/pipelining/hf_utils.py:755")
    microbatches = _microbatches_of_run(job, job.scenario.framework_options)
    if training.global_batch_size is not None and microbatches < pp:
        raise job.illegal("training.global_batch_size", f"pp_batch_size {microbatches * training.micro_batch_size} // "
                          f"pp_microbatch_size {training.micro_batch_size} must be >= pp_size {pp}",
                          "0.7.0 recipes/llm/train_ft.py:675")
    _check_loss(job)


def _check_loss(job: Job) -> None:
    """Losses of stages over logits alone: others need hidden states, or write over the logits that a step returns."""
    loss, family = job.scenario.training.loss, job.graph.architecture.family
    if loss == "chunked" and family in _OWN_FORWARD:
        raise job.illegal("training.loss", "ChunkedCrossEntropy requires pipeline stages that can return hidden states",
                          "0.7.0 recipes/llm/train_ft.py:197")
    if loss == "cut" and family in _OWN_FORWARD:
        raise job.illegal("training.loss", "FusedLinearCrossEntropy is not supported under pipeline parallelism for "
                          "this model: the recipe takes MaskedCrossEntropy (masked_fp32) instead",
                          "0.7.0 recipes/llm/train_ft.py:198")
    if loss in ("chunked", "cut", "te_inplace"):
        raise job.not_yet("training.loss", f"{loss} with pipeline stages under automodel")
