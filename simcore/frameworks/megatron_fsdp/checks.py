"""Adapters and pipeline stages under Megatron-FSDP: what upstream refuses of them, and what is not modelled.

Input: a `Draft`. Output: nothing, or IllegalLayout with upstream's rule, or NotYet.
"""

from __future__ import annotations

from typing import Final

from simcore.frameworks.megatron.rules import rank_numel
from simcore.frameworks.megatron.stages import KEEPS_OUTPUT
from simcore.placement.job import Draft, Job

__all__ = ["check_adapters", "check_stages", "check_units"]

_FSDP: Final = "distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py"
_LARGE: Final = 500_000_000
"""Mean elements of a unit up to which a billion may wait (megatron_fsdp.py, suggested_communication_unit_size)."""


def check_adapters(job: Draft, *, is_main: bool) -> None:
    """Raises IllegalLayout for core 0.16.1, which takes no frozen parameters, and NotYet for a base in 8 bits."""
    if not is_main:
        raise job.illegal("training.method", "cannot register a hook on a tensor that doesn't require gradient: "
                          "Megatron-FSDP asks it of every parameter, and those beside adapters are frozen",
                          f"core 0.16.1 {_FSDP}:1009, torch 2.13 _tensor.py:748; use framework_version: main "
                          "2026-08-22")
    if job.narrow:
        raise job.not_yet("training.method", f"{job.scenario.training.method} over weights in 8 bits, under "
                          "megatron_fsdp")


def check_stages(job: Draft, options: dict[str, object]) -> None:
    """Raises IllegalLayout for stages that free what they have sent, NotYet for what is not modelled of stages.

    Megatron-FSDP's hooks return a view of every module's output, whose memory a stage cannot give back.
    """
    if options.get(KEEPS_OUTPUT) is not False:
        raise job.illegal("mesh.pp", "counter-productive to free a view of another tensor: Megatron-FSDP returns views "
                          "of outputs, and stages free what they have sent (Bridge can say otherwise, Megatron-LM can "
                          f"not: framework_options.{KEEPS_OUTPUT}: false)",
                          f"core 0.16.1 pipeline_parallel/schedules.py:164 and {_FSDP}:910; Megatron-LM main "
                          "core/pipeline_parallel/schedules.py:200, training/argument_utils.py:305")
    for key, given, what in (
            ("training.pipeline.virtual_stages", job.scenario.training.pipeline.virtual_stages > 1
             or bool(options.get("pipeline_model_parallel_layout")), "virtual stages"),
            ("mesh.dp_replicate", job.mesh.dp_replicate > 1, "copies over pipeline stages"),
            ("model", job.graph.has_tied_head, "a tied head over pipeline stages"),
            ("model", bool(job.graph.branches), "multi-token prediction over pipeline stages"),
            ("framework_options.num_buckets", "num_buckets" in options, "a number of buckets over pipeline stages")):
        if given:
            raise job.not_yet(key, f"{what} under megatron_fsdp")


def check_units(job: Job, stages: tuple[tuple[int, ...], ...], units: list[int]) -> None:
    """Raises IllegalLayout for a stage without units, NotYet for stages that differ in how much waits.

    `stages`: layer numbers of each stage; `units`: those of the layers that are units. Each stage takes the mean of its
    own units (suggested_communication_unit_size).
    """
    if len(stages) == 1:
        return
    sizes = []
    for stage in stages:
        own = [layer for layer in stage if layer in set(units)]
        if not own:
            raise job.illegal("mesh.pp", "a stage without a TransformerLayer: integer division or modulo by zero",
                              f"core 0.16.1 {_FSDP}:387")
        sizes.append(max(_LARGE, rank_numel(job, own) // len(own)))
    if len(set(sizes)) > 1 and "suggested_communication_unit_size" not in job.scenario.framework_options:
        raise job.not_yet("mesh.pp", "stages whose large units differ in size, under megatron_fsdp (say "
                          "framework_options.suggested_communication_unit_size)")
