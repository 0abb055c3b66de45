"""CUDA graphs under Megatron-Core: the modules that they capture, and the consequences.

Core 0.16.1 transformer_config.py:776: `transformer_engine` captures modules of layers, `local` layers or, with scope
full_iteration, forward and backward of the whole step; main calls the last a separate implementation.

[Note: graphed modules]
Core 0.16.1 transformer_layer.py:942 (_get_submodules_under_cudagraphs) and :970 (_te_cuda_graph_capture),
cuda_graphs.py (_layer_is_graphable), moe/moe_layer.py (forward) and moe/moe_utils.py
(maybe_skip_or_early_return_by_cudagraph); main 2026-08-22 transformer_config.py:1093 says the same in words. `attn`:
_forward_attention, from the norm before to the residual behind. `mlp`: _forward_mlp of a dense layer; `mamba`: the
whole layer. `moe_router`: the norm, a shared expert that does not overlap the exchange of tokens, and the router;
`moe_preprocess`: the rest of MoELayer.preprocess, a projection to the latent width and, with alltoall, the first
permutation. Token exchange, experts, the exchange back and the residual are in none of these, only in `moe`, for
experts that drop and pad. No scope: whole layers. Embedding, last norm, output and loss are no layers; the optimizer is
in no graph. A module's backward is in a graph if its forward is.

[Note: pools of graphs]
Graphs are captured after the steps whose peak is simulated. Their buffers lie in private pools that are kept until the
run ends and that ordinary tensors cannot use; the bytes depend on the order of capture and on microbatches in flight.
Megatron-Bridge 0bcbd0bd `docs/training/cuda-graphs.md`: "typically adding a few GB", with pipeline stages "over 10 GB";
nothing more precise is published. So the peak stays as it is, and the upper end of its band is raised by that much.
"""

from __future__ import annotations

from typing import Final

from simcore.inputs.training import Capacity
from simcore.models.blocks import Mamba2, Mlp, Moe
from simcore.placement.job import Job
from simcore.placement.libraries import FULL_ITERATION
from simcore.recording.rows import Module
from simcore.units import format_bytes

__all__ = ["OPTIONS", "assumptions", "graphs_of", "pool_bytes"]

_PARTS: Final = {
    "attn": (Module.ATTN,), "mlp": (Module.MLP,), "mamba": (Module.MAMBA,),
    "moe": (Module.MOE_ROUTER, Module.SHARED_EXPERTS, Module.MOE_PREPROCESS, Module.MOE),
    "moe_router": (Module.MOE_ROUTER, Module.SHARED_EXPERTS), "moe_preprocess": (Module.MOE_PREPROCESS,)}
SCOPES: Final = ("full", *_PARTS, FULL_ITERATION)
OPTIONS: Final = {
    "cuda_graph_impl": ("none", "transformer_engine", "local", FULL_ITERATION),
    "cuda_graph_scope": (*SCOPES, list),
    "cuda_graph_modules": (*SCOPES, list),
    "cuda_graph_warmup_steps": (0, int),
}
_FEW: Final = 3 * 10**9
"""Bytes of "a few GB"; see [Note: pools of graphs]."""
_WITH_STAGES: Final = 10 * 10**9
_RULE: Final = "core 0.16.1 transformer_config.py"
_WARMUP: Final = "cuda_graph_warmup_steps"


def graphs_of(job: Job, options: dict[str, object]) -> tuple[str, ...]:
    """Returns the names of modules that are captured in CUDA graphs, or (FULL_ITERATION,); () for none.

    Names are those of `rows.Module` in small letters. `options`: the framework options that the scenario sets, by name.
    See [Note: graphed modules]. Raises IllegalLayout or NotYet for settings that are refused.
    """
    implementation, scope = str(options.get("cuda_graph_impl", "none")), _scope(job, options)
    if implementation == "none":
        for name in () if "cuda_graph_impl" in options else ("cuda_graph_scope", "cuda_graph_modules", _WARMUP):
            job.refuse_idle(options, name, "without cuda_graph_impl")
        return ()
    _check(job, options, implementation, scope)
    _check_modules(job, scope)
    _check_with(job, options, implementation, scope)
    if FULL_ITERATION in (implementation, *scope):
        return (FULL_ITERATION,)
    held = {part for name in scope or _PARTS for part in _PARTS[name]} & _present(job)
    if options.get("moe_shared_expert_overlap") and "moe_router" in scope:
        held.discard(Module.SHARED_EXPERTS)
    if not _pads(job):
        held.discard(Module.MOE)
    return tuple(part.name.lower() for part in Module if part in held)


def pool_bytes(job: Job, options: dict[str, object]) -> int:
    """Bytes that pools of graphs may add to a rank's peak, see [Note: pools of graphs]; 0 without graphs."""
    if not graphs_of(job, options):
        return 0
    return _WITH_STAGES if job.mesh.pp > 1 else _FEW


def assumptions(job: Job, options: dict[str, object]) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumptions about CUDA graphs, each (key, value, kind, source); () without graphs.

    Graphs are captured after some ordinary steps, the second of which has all tensors that a step can have. Tensors
    inside a graph are not allocated while it is replayed, so peaks are those of the steps before. After a single one,
    which has no moments before its update, the tensors of the next step's passes lie in the graphs' pools instead.
    """
    found = graphs_of(job, options)
    if not found:
        return ()
    pools = format_bytes(pool_bytes(job, options))
    peak = f"peak of {_ordinary(options)} steps before capture" if _ordinary(options) > 1 else \
        "peak as if a second step came before capture"
    made = (("cuda graphs", f"{peak}; pools may add {pools} (in band)",
             "assumed", f"{_RULE}:769; TransformerEngine pytorch/graph.py"),
            ("cuda graphs hold", ", ".join(found), "derived", "core 0.16.1 transformer_layer.py:942"))
    if FULL_ITERATION in found and options.get("fine_grained_activation_offloading"):
        return (*made, ("cuda graphs with modules on the host", "pools use again what has left "
                        "(graph_capture_record_stream_reuse:True)", "assumed", "main 2026-08-22 transformer_config.py"
                        ":2967 asks for fine_grained_offloading_max_inflight_offloads: the copies are waited for"))
    if _scope(job, options) or FULL_ITERATION in found or not job.has_experts or _pads(job):
        return made
    return (*made, ("cuda graphs of whole layers", "all but the exchange of tokens and the experts", "assumed",
                    "whose rows the host must know: no graph can hold them"))


def _present(job: Job) -> set[Module]:
    """Modules of the model's layers."""
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    found = {Module.MAMBA if isinstance(block, Mamba2) else Module.MLP if isinstance(block, Mlp) else Module.ATTN
             for block in blocks if not isinstance(block, Moe)}
    experts = [block for block in blocks if isinstance(block, Moe)]
    shared = {Module.SHARED_EXPERTS} if any(block.shared_ffn for block in experts) else set()
    return found | (set(_PARTS["moe"]) - {Module.SHARED_EXPERTS} | shared if experts else set())


def _pads(job: Job) -> bool:
    """Experts with a capacity, filled up to it: the host knows all shapes."""
    routing = job.scenario.training.routing
    return isinstance(routing, Capacity) and routing.pad


def _scope(job: Job, options: dict[str, object]) -> tuple[str, ...]:
    """Modules that are captured; none named: whole layers. Main has another name for the option."""
    key = "cuda_graph_modules" if "cuda_graph_modules" in options else "cuda_graph_scope"
    if key == "cuda_graph_modules" and not job.scenario.framework_version.startswith("main"):
        raise job.illegal(f"framework_options.{key}", "core 0.16.1 calls it cuda_graph_scope", f"{_RULE}:784; use "
                          "framework_version: main 2026-08-22")
    if {"cuda_graph_modules", "cuda_graph_scope"} <= set(options):
        raise job.illegal(f"framework_options.{key}", "cuda_graph_scope and cuda_graph_modules cannot be set together.",
                          "main 2026-08-22 transformer_config.py:2721")
    given = options.get(key, [])
    names = tuple(str(name) for name in given) if isinstance(given, list) else (str(given),)
    unknown = [name for name in names if name not in SCOPES]
    if unknown:
        raise job.illegal(f"framework_options.{key}", f"unknown scope {unknown[0]}: it knows {', '.join(SCOPES)}",
                          f"{_RULE}:1711")
    if "full" in names and len(names) > 1:
        raise job.illegal(f"framework_options.{key}", "full scope cannot be used with other scopes.", f"{_RULE}:1702")
    return tuple(name for name in names if name != "full")


def _check(job: Job, options: dict[str, object], implementation: str, scope: tuple[str, ...]) -> None:
    key = "framework_options.cuda_graph_scope"
    is_main = job.scenario.framework_version.startswith("main")
    if implementation == FULL_ITERATION and not is_main:
        raise job.illegal("framework_options.cuda_graph_impl", "core 0.16.1 captures a step by local with the scope "
                          "full_iteration", f"{_RULE}:790; use framework_version: main 2026-08-22")
    if implementation == "transformer_engine" and FULL_ITERATION in scope:
        raise job.illegal(key, "To use full iteration cuda graph, please use cuda_graph_impl=local instead of "
                          "cuda_graph_impl=transformer_engine.", f"{_RULE}:1739")
    ordinary = _ordinary(options)
    layers = implementation == "local" and FULL_ITERATION not in scope
    if layers or not ordinary:
        raise job.not_yet("framework_options.cuda_graph_impl", f"CUDA graphs by {implementation} after {ordinary} "
                          "ordinary steps (served: by transformer_engine, or of the full iteration, after one or more)")


def _check_modules(job: Job, scope: tuple[str, ...]) -> None:
    """Raises IllegalLayout if modules of the scope exclude or miss one another, or are not in the model."""
    named, dense = set(scope), Module.MLP in _present(job)
    refused = {
        "cuda_graph_scope must not contain both moe and moe_router.": ({"moe", "moe_router"} <= named, 1746),
        "moe_preprocess cuda graph is only supported with moe_router cuda graph.": (
            "moe_preprocess" in named and "moe_router" not in named, 1750),
        "moe cuda graph is only supported for MoE.": (
            bool({"moe", "moe_router"} & named) and not job.has_experts, 1755),
        "mlp cuda graph is only supported for dense layers, but not found in the model.": (
            "mlp" in named and job.has_experts and not dense, 1761),
        "moe cuda graph is only supported with drop-padding MoE.": ("moe" in named and not _pads(job), 1770)}
    for told, (wrong, line) in refused.items():
        if wrong:
            raise job.illegal("framework_options.cuda_graph_scope", told, f"{_RULE}:{line}")


def _check_with(job: Job, options: dict[str, object], implementation: str, scope: tuple[str, ...]) -> None:
    """Raises IllegalLayout if recomputation or the overlap of expert exchanges excludes the scope."""
    recompute, key = job.scenario.training.recompute, "framework_options.cuda_graph_scope"
    selective = recompute == "none" or isinstance(recompute, list | tuple)
    if not selective and FULL_ITERATION not in (implementation, *scope):
        raise job.illegal(key, "full recompute is only supported with full iteration CUDA graph.", f"{_RULE}:1784")
    if implementation == "transformer_engine" and "moe_router" in scope and selective and "moe" in recompute:
        raise job.illegal(key, "moe recompute is not supported with moe_router CUDA graph with: "
                          "--cuda-graph-impl transformer_engine.", f"{_RULE}:1794")
    if options.get("overlap_moe_expert_parallel_comm") and {"moe", "mlp"} & set(scope):
        raise job.illegal(key, "CUDA graph scope on moe and mlp is not supported with "
                          "overlap_moe_expert_parallel_comm", f"{_RULE}:1904")


def _ordinary(options: dict[str, object]) -> int:
    return int(str(options.get(_WARMUP, 3)))
