"""Megatron-Core's offload of activations: which layers' saved tensors wait on the host, and what it refuses.

Modules (`fine_grained_activation_offloading`): [Note: modules on the host] in `recording/offload_groups.py`. Layers
(`cpu_offloading`): [Note: layers on the host] in `program/offloaded_layers.py`. TransformerEngine's code from
2.10 on, without NVTE_CPU_OFFLOAD_V1, which ignores `cpu_offloading_weights` and `cpu_offloading_double_buffering`
(d0067d0d `pytorch/cpu_offload.py`: deprecated).
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Attention, LatentAttention, LayerKind, Mamba2, Moe
from simcore.placement.framework import LayerOffload, ModuleOffload
from simcore.placement.job import Job
from simcore.placement.libraries import FULL_ITERATION

__all__ = ["OPTIONS", "activation_offload", "assumptions"]

NUM_LAYERS: Final = "cpu_offloading_num_layers"
FINE: Final = "fine_grained_activation_offloading"
MODULES: Final = "offload_modules"
SMALLEST: Final = "min_offloaded_tensor_size"
OPTIONS: Final = {NUM_LAYERS: (int,), FINE: (True, False), MODULES: (list,), SMALLEST: (int,)}
SERVED: Final = ("attn_proj", "core_attn", "expert_fc1", "fused_group_mlp")
ALLOWED: Final = (*SERVED, "attn_norm", "gdp_qkv", "mlp_norm", "moe_act", "qkv_linear")
_OF_EXPERTS: Final = ("expert_fc1", "fused_group_mlp")
LEAST: Final = 256 * 1024
"""Elements of the smallest tensor that leaves (TransformerEngine d0067d0d `pytorch/cpu_offload.py`,
_check_if_offload)."""
_KEY: Final = "training.offload.activations"
_RULE: Final = "core 0.16.1 transformer/transformer_config.py"


def activation_offload(job: Job, options: dict[str, object]) -> LayerOffload | ModuleOffload | None:
    """Returns the layers, or the modules, whose saved tensors wait on the host; None if activations stay.

    `options`: the framework options that the scenario sets. Raises IllegalLayout, InputError or NotYet for settings
    that Megatron refuses, that change nothing, or that are not modelled.
    """
    space, fraction = job.scenario.training.offload.part("activations")
    job.one_of(_KEY, space, ("none", "host"))
    if space == "none":
        for name in (NUM_LAYERS, FINE):
            job.refuse_idle(options, name, "without training.offload.activations: host")
    if not options.get(FINE):
        for name in (MODULES, SMALLEST):
            job.refuse_idle(options, name, f"without {FINE}")
    if space == "none":
        return None
    if fraction < 1 or (NUM_LAYERS in options) == bool(options.get(FINE)):
        both = "fine_grained_activation_offloading cannot be enabled with cpu_offloading. " * (NUM_LAYERS in options)
        raise job.illegal(_KEY, f"{both}Megatron offloads whole layers or modules: write host, and framework_options."
                          f"{NUM_LAYERS}, the number of layers, or {FINE} with {MODULES}",
                          "Megatron-LM training/arguments.py: cpu_offloading is on if cpu_offloading_num_layers > 0")
    _check_both(job, options)
    if options.get(FINE):
        return _modules(job, options)
    _check(job, options)
    return LayerOffload(int(str(options[NUM_LAYERS])), LEAST)


def _check_both(job: Job, options: dict[str, object]) -> None:
    if options.get("cuda_graph_impl") == FULL_ITERATION and not options.get(FINE):
        raise job.not_yet(_KEY, "layers that leave inside a CUDA graph of the whole step")
    if options.get("overlap_moe_expert_parallel_comm"):
        raise job.not_yet(_KEY, "activations on the host with overlap_moe_expert_parallel_comm, which runs layers in "
                          "parts")
    if job.scenario.training.method != "full":
        raise job.not_yet(_KEY, "activations on the host with adapters")


def _modules(job: Job, options: dict[str, object]) -> ModuleOffload:
    key, asked = f"framework_options.{MODULES}", options.get(MODULES)
    modules = tuple(str(name) for name in asked) if isinstance(asked, list) else ()
    if not modules:
        raise job.illegal(key, f"{FINE} needs a module", "Megatron-LM main transformer/transformer_config.py:2131: "
                          "len(offload_modules) > 0")
    if unknown := [name for name in modules if name not in ALLOWED]:
        raise job.illegal(key, f"Invalid choices for offload_modules: {', '.join(unknown)}. Allowed modules are: "
                          f"{', '.join(ALLOWED)}", "Megatron-LM main transformer/transformer_config.py:2144")
    if "attn_proj" in modules and "core_attn" not in modules:
        raise job.illegal(key, "attn_proj cannot be set to offload_modules alone without core_attn because the input "
                          "of attn_proj is the output of core_attn, which is needed in core_attn.backward().",
                          "Megatron-LM main transformer/transformer_config.py:2148")
    if job.scenario.framework_version != "main 2026-08-22":
        raise job.not_yet(f"framework_options.{FINE}", "modules on the host in core 0.16.1, whose code is another (use "
                          "framework_version: main 2026-08-22)")
    if other := [name for name in modules if name not in SERVED]:
        raise job.not_yet(key, f"what {', '.join(other)} saves, on the host (served: {', '.join(SERVED)})")
    _check_modules(job, options, modules)
    given = options.get(SMALLEST)
    return ModuleOffload(modules, 1024 * 1024 if given is None else int(str(given)))


def _check_modules(job: Job, options: dict[str, object], modules: tuple[str, ...]) -> None:
    """Refuses what the recording of groups does not know."""
    recompute, key = job.scenario.training.recompute, f"framework_options.{MODULES}"
    named = recompute if isinstance(recompute, tuple) else () if recompute == "none" else ("layers",)
    experts = [name for name in modules if name in _OF_EXPERTS]
    if experts and "moe" in named:
        raise job.illegal(key, f"Cannot offload {', '.join(experts)} while recomputing the entire MoE layer.",
                          "Megatron-LM main transformer/transformer_config.py:2169")
    if "layers" in named or "core_attn" in named:
        raise job.not_yet(key, "modules on the host of layers, or of attention, that are recomputed")
    if job.mesh.pp > 1:
        raise job.not_yet(key, "modules on the host with pipeline stages")
    kinds = [kind for kind in job.graph.kinds if _runs(kind, modules)]
    if not kinds or any(len(set(_runs(kind, modules))) > 1 for kind in kinds):
        raise job.not_yet(key, "modules of which some layers have one and not the others, or no layer any")
    if experts:
        _check_experts(job, options, experts)
    captured = options.get("cuda_graph_modules", options.get("cuda_graph_scope", ()))
    graphs = {captured} if isinstance(captured, str) else set(map(str, captured if isinstance(captured, list) else ()))
    if options.get("cuda_graph_impl", "none") not in ("none", FULL_ITERATION) and (
            not graphs or graphs & {"full", "moe"} or ("core_attn" in modules and "attn" in graphs)):
        raise job.not_yet(key, "modules on the host that CUDA graphs capture")


def _check_experts(job: Job, options: dict[str, object], experts: list[str]) -> None:
    key, fused = f"framework_options.{MODULES}", options.get("use_transformer_engine_op_fuser") is True
    if "fused_group_mlp" in experts and not fused:
        raise job.illegal(key, "fused_group_mlp requires use_transformer_engine_op_fuser.",
                          "Megatron-LM main transformer/transformer_config.py:2188")
    if len(experts) > 1:
        raise job.illegal(key, "fused_group_mlp offloads the whole fused grouped MLP and cannot be combined with "
                          "expert_fc1 or moe_act.", "Megatron-LM main transformer/transformer_config.py:2191")
    if "expert_fc1" in experts and fused:
        raise job.illegal(key, "Selective expert_fc1/moe_act offload is only supported unfused.",
                          "Megatron-LM main transformer/moe/experts.py:399")
    if options.get("moe_grouped_gemm") is False or (job.narrow and options.get("fp8_recipe") != "mxfp8"):
        raise job.not_yet(key, "experts on the host that are not grouped, or in 8 bits other than mxfp8")


def _runs(kind: LayerKind, modules: tuple[str, ...]) -> list[int]:
    """Number of runs of each module in a layer; empty if it has none of them."""
    runs = [sum(isinstance(branch.block, Moe if name in _OF_EXPERTS else (Attention, LatentAttention))
                for branch in kind.branches) for name in modules]
    return runs if any(runs) else []


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
    if options.get("cuda_graph_impl", "none") != "none":
        raise job.illegal(_KEY, "CUDA graphs not supported with CPU offloading.", f"{_RULE}:1723")
    if any(isinstance(branch.block, Mamba2) for kind in job.graph.kinds for branch in kind.branches):
        raise job.not_yet(_KEY, "a hybrid model, whose layers Megatron never offloads (only TransformerBlock does)")


def assumptions(offload: LayerOffload | ModuleOffload | None) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumption about the time of the copies, as (key, value, kind, source); () if nothing leaves."""
    if offload is None:
        return ()
    if isinstance(offload, ModuleOffload):
        return (("time of offload", "copies at the pace of pinned memory on one stream, beside kernels", "assumed",
                 "Megatron-LM d98e8a64 pipeline_parallel/fine_grained_activation_offload.py: a stream for each way; "
                 "pinned buffers are found at once"),)
    return (("time of offload", "copies at the pace of pinned memory on one stream, beside kernels; those to the host "
             "begin when their layer is over", "assumed", "TransformerEngine d0067d0d pytorch/cpu_offload.py: each "
             "waits for its tensor alone; pinned buffers are found at once"),)
