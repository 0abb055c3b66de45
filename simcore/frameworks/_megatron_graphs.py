"""CUDA graphs under Megatron-Core: what they hold, and what that changes.

Core 0.16.1 transformer_config.py:776: `transformer_engine` captures modules of layers, `local` layers or, with scope
full_iteration, forward and backward of the whole step; main calls the last an implementation of its own.
"""

from __future__ import annotations

from typing import Final

from simcore.job import Job

__all__ = ["OPTIONS", "assumptions", "graphs_of"]

SCOPES: Final = ("full", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration")
OPTIONS: Final = {
    "cuda_graph_impl": ("none", "transformer_engine", "local", "full_iteration"),
    "cuda_graph_scope": (*SCOPES, list),
    "cuda_graph_warmup_steps": (0, int),
}
_RULE: Final = "core 0.16.1 transformer_config.py"


def graphs_of(job: Job, options: dict[str, object]) -> str:
    """`Libraries.graphs`, checked: graphs of the router or a dense MLP alone leave the host as busy as it was."""
    implementation, scope = str(options.get("cuda_graph_impl", "none")), _scope(job, options)
    if implementation == "none":
        return "none"
    _check(job, options, implementation, scope)
    if _is_whole(implementation, scope):
        return "step"
    return "modules" if not scope or {"attn", "mamba"} & set(scope) else "none"


def assumptions(job: Job, options: dict[str, object]) -> tuple[tuple[str, str, str, str], ...]:
    """Graphs are captured after some ordinary steps, the second of which has all that a step can have.

    What lives inside a graph is not allocated while it is replayed, so peaks are those of the steps before.
    """
    found = graphs_of(job, options)
    if options.get("cuda_graph_impl", "none") == "none":
        return ()
    held = {"none": "no more than a part of a layer: the host is taken to be as busy as without",
            "modules": "all of a layer but its experts", "step": "forward and backward; experts stop no host"}[found]
    return (("cuda graphs", f"peaks are those of the {_ordinary(options)} steps before capture; what graphs hold is "
             "not counted", "assumed", "core 0.16.1 transformer_config.py:769; TransformerEngine pytorch/graph.py"),
            ("cuda graphs hold", held, "assumed", f"{_RULE}:784, cuda_graph_scope"))


def _scope(job: Job, options: dict[str, object]) -> tuple[str, ...]:
    """Modules that are captured; none named: whole layers."""
    given = options.get("cuda_graph_scope", [])
    names = tuple(str(name) for name in given) if isinstance(given, list) else (str(given),)
    unknown = [name for name in names if name not in SCOPES]
    if unknown:
        raise job.illegal("framework_options.cuda_graph_scope", f"unknown scope {unknown[0]}: it knows "
                          f"{', '.join(SCOPES)}", f"{_RULE}:1711")
    return tuple(name for name in names if name != "full")


def _is_whole(implementation: str, scope: tuple[str, ...]) -> bool:
    return implementation == "full_iteration" or "full_iteration" in scope


def _check(job: Job, options: dict[str, object], implementation: str, scope: tuple[str, ...]) -> None:
    key = "framework_options.cuda_graph_scope"
    is_main = job.scenario.framework_version.startswith("main")
    if implementation == "full_iteration" and not is_main:
        raise job.illegal("framework_options.cuda_graph_impl", "core 0.16.1 captures a step by local with the scope "
                          "full_iteration", f"{_RULE}:790; use framework_version: main 2026-08-22")
    if implementation == "transformer_engine" and "full_iteration" in scope:
        raise job.illegal(key, "To use full iteration cuda graph, please use cuda_graph_impl=local instead of "
                          "cuda_graph_impl=transformer_engine.", f"{_RULE}:1739")
    if {"moe", "moe_router"} <= set(scope):
        raise job.illegal(key, "cuda_graph_scope must not contain both moe and moe_router.", f"{_RULE}:1744")
    if "moe_preprocess" in scope and "moe_router" not in scope:
        raise job.illegal(key, "moe_preprocess cuda graph is only supported with moe_router cuda graph.",
                          f"{_RULE}:1747")
    ordinary = _ordinary(options)
    layers = implementation == "local" and "full_iteration" not in scope
    if layers or ordinary < 2:  # the first step has no moments yet
        raise job.not_yet("framework_options.cuda_graph_impl", f"CUDA graphs by {implementation} after {ordinary} "
                          "ordinary steps (served: by transformer_engine, or of the full iteration, after two or more)")


def _ordinary(options: dict[str, object]) -> int:
    return int(str(options.get("cuda_graph_warmup_steps", 3)))
