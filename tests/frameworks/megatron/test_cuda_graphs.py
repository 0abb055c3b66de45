"""CUDA graphs of Megatron: what they hold, what they exclude."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import small
from frameworks.megatron.asked import OVERLAP, QWEN3_MOE, refused_with
from simcore.cli.sheets.first_screen import first_screen
from simcore.simulate import simulate
from simcore.units import format_bytes


def test_peaks_with_cuda_graphs_are_those_of_the_steps_before() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine"}
    with_graphs, without = (simulate(small.scenario("megatron", options=options)) for options in (graphs, {}))
    ours, other = with_graphs.ranks[0].peak, without.ranks[0].peak
    assert ours is not None
    assert other is not None
    assert ours.model_copy(update={"band_bytes": other.band_bytes}) == other
    assert "cuda graphs" in {one.what for one in with_graphs.assumptions}
    refused_with("error", "after 0 ordinary steps", options=graphs | {"cuda_graph_warmup_steps": 0})
    early = simulate(small.scenario("megatron", options=graphs | {"cuda_graph_warmup_steps": 1}))
    assert early.ranks[0].peak == ours
    assert any("as if a second step came before" in one.value for one in early.assumptions)
    refused_with("error", "CUDA graphs by local", options={"cuda_graph_impl": "local"})


@pytest.mark.parametrize(("mesh", "pools"), [({"dp_shard": 2}, 3e9), ({"pp": 2, "dp_shard": 2}, 10e9)])
def test_pools_of_graphs_raise_the_upper_end_of_the_band(mesh: dict[str, int], pools: float) -> None:
    """A layout that fits by less than the pools is unsure: it may crash when graphs are captured."""
    def simulated(options: dict[str, Any], room: float = 0) -> Any:
        asked = small.scenario("megatron", mesh, options=options, model="llama-3.2-1b")
        limits = asked.limits.model_copy(update={"usable_memory": f"{room:.0f} B"} if room else {})
        return simulate(asked.model_copy(update={"limits": limits}))

    with_graphs, without = simulated(BY_TE), simulated({})
    low, high = without.band_bytes
    assert with_graphs.band_bytes == (low, high + pools)
    assert f"pools may add {format_bytes(pools)}" in next(
        one.value for one in with_graphs.assumptions if one.what == "cuda graphs")
    lines = io.StringIO()
    Console(file=lines, width=80, color_system=None).print(*first_screen([with_graphs], 80), sep="\n", soft_wrap=True)
    (line,) = [line for line in lines.getvalue().splitlines() if line.startswith("cuda graphs: ")]
    assert len(line) <= 80
    assert simulated({}, high + 1).verdict == "fits"
    assert simulated(BY_TE, high + 1).verdict == simulated(BY_TE, high + pools - 1).verdict == "unsure"
    assert simulated(BY_TE, high + pools).verdict == "fits"


BY_TE = {"cuda_graph_impl": "transformer_engine"}
MAIN = "main 2026-08-22"


@pytest.mark.parametrize(("held", "version", "given"), [
    ("", "auto", {}),
    ("", "auto", {"cuda_graph_impl": "none", "cuda_graph_scope": "full_iteration"}),
    ("moe_router shared_experts moe_preprocess", "auto", BY_TE | {"cuda_graph_scope": ["moe_router",
                                                                                       "moe_preprocess"]}),
    ("moe_router", "auto", BY_TE | {"cuda_graph_scope": "moe_router", "moe_shared_expert_overlap": True}),
    ("attn moe_router shared_experts", "auto", BY_TE | {"cuda_graph_scope": ["attn", "moe_router"]}),
    ("attn mamba", MAIN, BY_TE | {"cuda_graph_modules": ["mamba", "attn"]}),
    ("attn mamba moe_router shared_experts moe_preprocess", "auto", BY_TE | {"cuda_graph_scope": "full"}),
    ("full_iteration", "auto", {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}),
    ("full_iteration", MAIN, {"cuda_graph_impl": "full_iteration", "cuda_graph_scope": []})])
def test_what_cuda_graphs_hold(held: str, version: str, given: dict[str, Any]) -> None:
    _, framework = small.prepared("megatron", {"dp_shard": 2, "ep": 2}, options=given, version=version)
    assert framework.libraries.graphs == tuple(held.split())


def test_whole_layers_hold_what_the_model_has() -> None:
    _, framework = small.prepared("megatron", model="llama-tiny", options=BY_TE)
    assert framework.libraries.graphs == ("attn", "mlp")
    _, framework = small.prepared("megatron", model=QWEN3_MOE, options=BY_TE)
    assert framework.libraries.graphs == ("attn", "moe_router", "moe_preprocess")


def test_graphs_hold_experts_that_drop_and_pad() -> None:
    given: dict[str, Any] = {"options": BY_TE | {"cuda_graph_scope": "moe"}, "routing": {"capacity_factor": 1.0}}
    _, framework = small.prepared("megatron", **given)
    assert framework.libraries.graphs == ("moe_router", "shared_experts", "moe_preprocess", "moe")
    refused_with("illegal", "drop-padding", options=BY_TE | {"cuda_graph_scope": "moe"})
    refused_with("illegal", "drop-padding", **(given | {"routing": {"capacity_factor": 1.0, "pad": False}}))


def test_a_graph_of_the_step_is_faster_than_graphs_of_modules_than_none() -> None:
    scopes: list[dict[str, Any]] = [
        {}, BY_TE | {"cuda_graph_scope": "attn"}, BY_TE | {"cuda_graph_scope": ["attn", "mamba"]},
        {"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}]
    reports = [simulate(small.scenario("megatron", options=options)) for options in scopes]
    times = [report.time.step_s for report in reports if report.time is not None]
    assert len(set(times)) == len(scopes)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(("told", "given"), [
    ("other scopes", BY_TE | {"cuda_graph_scope": ["full", "attn"]}),
    ("calls it cuda_graph_scope", BY_TE | {"cuda_graph_modules": ["attn"]}),
    ("only supported for dense layers", BY_TE | {"cuda_graph_scope": "mlp"}),
    ("unknown scope conv", {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["conv"]}),
    ("use cuda_graph_impl=local", {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "full_iteration"}),
    ("by local with the scope", {"cuda_graph_impl": "full_iteration"}),
    ("both moe and moe_router", {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["moe", "moe_router"]}),
    ("only supported with moe_router", {"cuda_graph_impl": "transformer_engine",
                                        "cuda_graph_scope": ["moe_preprocess"]})])
def test_scopes_of_cuda_graphs_that_core_refuses(told: str, given: dict[str, Any]) -> None:
    refused_with("illegal", told, options=given)


def test_what_cuda_graphs_rule_out() -> None:
    router = BY_TE | {"cuda_graph_scope": ["moe_router"]}
    refused_with("illegal", "full recompute is only supported with full iteration", options=router, recompute="full")
    refused_with("illegal", "moe recompute is not supported with moe_router", options=router, recompute=["moe"])
    refused_with("illegal", "only supported for MoE", model="llama-tiny", options=router)
    refused_with("illegal", "moe and mlp is not supported with overlap", {"dp_shard": 2, "ep": 2}, routing={
        "capacity_factor": 1.0}, options=OVERLAP | BY_TE | {"cuda_graph_scope": "moe"})
