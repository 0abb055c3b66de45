"""Megatron-Core's offload of activations: which layers' saved tensors wait on the host, and what it refuses.

Layers (`cpu_offloading`): [Note: layers on the host] in `program/offloaded_layers.py`. TransformerEngine's code from
2.10 on, without NVTE_CPU_OFFLOAD_V1, which ignores `cpu_offloading_weights` and `cpu_offloading_double_buffering`
(d0067d0d `pytorch/cpu_offload.py`: deprecated).
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Mamba2
from simcore.placement.framework import LayerOffload
from simcore.placement.job import Job

__all__ = ["OPTIONS", "assumptions", "layer_offload"]

NUM_LAYERS: Final = "cpu_offloading_num_layers"
OPTIONS: Final = {NUM_LAYERS: (int,)}
LEAST: Final = 256 * 1024
"""Elements of the smallest tensor that leaves (TransformerEngine d0067d0d `pytorch/cpu_offload.py`,
_check_if_offload)."""
_KEY: Final = "training.offload.activations"
_RULE: Final = "core 0.16.1 transformer/transformer_config.py"


def layer_offload(job: Job, options: dict[str, object]) -> LayerOffload | None:
    """Returns the layers whose saved tensors wait on the host; None if activations stay.

    `options`: the framework options that the scenario sets. Raises IllegalLayout, InputError or NotYet for settings
    that Megatron refuses, that change nothing, or that are not modelled.
    """
    space, fraction = job.scenario.training.offload.part("activations")
    job.one_of(_KEY, space, ("none", "host"))
    if space == "none":
        job.refuse_idle(options, NUM_LAYERS, "without training.offload.activations: host")
        return None
    if fraction < 1 or NUM_LAYERS not in options:
        raise job.illegal(_KEY, f"Megatron offloads whole layers: write host, and framework_options.{NUM_LAYERS}, the "
                          "number of layers", "Megatron-LM training/arguments.py: cpu_offloading is on if "
                          "cpu_offloading_num_layers > 0")
    _check(job, options)
    return LayerOffload(int(str(options[NUM_LAYERS])), LEAST)


def _check(job: Job, options: dict[str, object]) -> None:
    layers = sum(job.graph.kinds[layer.kind].block is None for layer in job.graph.layers)
    key = f"framework_options.{NUM_LAYERS}"
    if int(str(options[NUM_LAYERS])) >= layers:
        raise job.illegal(key, f"CPU offloading can be done only for layers less than {layers}", f"{_RULE}:1141")
    if job.mesh.pp > 1:
        raise job.illegal(_KEY, "Currently there is no support for Pipeline parallelism with CPU offloading",
                          f"{_RULE}:1146")
    if job.scenario.training.recompute not in ("none", ()):
        raise job.illegal(_KEY, "CPU offloading does not work when activation recomputation is enabled",
                          f"{_RULE}:1151")
    graphs = options.get("cuda_graph_impl", "none")
    if graphs not in ("none", "full_iteration"):
        raise job.illegal(_KEY, "CUDA graphs not supported with CPU offloading.", f"{_RULE}:1723")
    if graphs == "full_iteration":
        raise job.not_yet(_KEY, "activations that leave inside a CUDA graph of the whole step")
    if options.get("overlap_moe_expert_parallel_comm"):
        raise job.not_yet(_KEY, "layers on the host with overlap_moe_expert_parallel_comm, which runs them in parts")
    if any(isinstance(branch.block, Mamba2) for kind in job.graph.kinds for branch in kind.branches):
        raise job.not_yet(_KEY, "a hybrid model, whose layers Megatron never offloads (only TransformerBlock does)")
    if job.scenario.training.method != "full":
        raise job.not_yet(_KEY, "layers on the host with adapters")


def assumptions(offload: LayerOffload | None) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumption about the time of the copies, as (key, value, kind, source); () if nothing leaves."""
    if offload is None:
        return ()
    return (("time of offload", "copies at the pace of pinned memory on one stream, beside kernels; those to the host "
             "begin when their layer is over", "assumed", "TransformerEngine d0067d0d pytorch/cpu_offload.py: each "
             "waits for its tensor alone; pinned buffers are found at once"),)
