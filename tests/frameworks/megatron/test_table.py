"""What Megatron refuses, what is not modelled of it, and the defaults that a report lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks.megatron.flat_parameters import rank_buffers
from simcore.frameworks.megatron.layerwise_optimizer import _deal, _pack
from simcore.hardware.efficiency import load_efficiency
from simcore.inputs.scenario import Scenario
from simcore.placement.libraries import KernelLibraries
from simcore.program.outline import Phase
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.tape import HIDDEN, Op
from simcore.simulate import place, simulate
from simcore.timing.streams import RankStreams, tracks

PRECISE = {"use_precision_aware_optimizer": True}
OWNING = PRECISE | {"fp8_recipe": "delayed"}
TIED = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
DEEP = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}
FORMATS = ({"optimizer": {"moments": "bf16"}}, {"optimizer": {"master": "bf16"}}, {"optimizer": {"master": "none"}})


def _small(preset: str, **more: int) -> dict[str, Any]:
    return {"config": preset, "overrides": {
        "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, **more}}


QWEN3_MOE = _small("qwen3-30b-a3b", head_dim=32, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2)


def _refused(status: str, told: str, mesh: dict[str, int] | None = None, **given: Any) -> None:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, **given))
    assert report.status == status
    assert told in report.problems[0].message
    assert bool(report.problems[0].rule) == (status == "illegal")
    assert report.problems[0].message.startswith("not yet") == (status == "error")


def _defaults(mesh: dict[str, int] | None = None, **given: Any) -> dict[str, str]:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, **given))
    assert report.status == "ok", report.problems
    found = [a for a in report.assumptions if a.kind == "default"]
    assert all(a.source for a in found)
    return {a.what: a.value for a in found}


def _assumed(**given: Any) -> set[str]:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, **given))
    return {a.what for a in report.assumptions if a.kind == "assumed"}


def _master(**given: Any) -> int:
    """Bytes of the embedding's master."""
    placed = small.plan_of("megatron", **given).of_layer(0)[0]
    return dict(placed.states)["master_param"]


# ---- the mesh --------------------------------------------------------------------------------------------------------
def test_the_last_stage_copies_a_tied_embedding() -> None:
    first, last = (small.plan_of("megatron", {"pp": 2}, model=TIED, rank=rank).at_rest() for rank in (0, 1))
    assert first["embedding"] == last["embedding"]
    assert "lm_head" not in last
    alone = small.plan_of("megatron", {"dp_shard": 2}, model=TIED).at_rest()
    assert alone["embedding"].num_params == first["embedding"].num_params


def test_a_copied_embedding_is_told_of() -> None:
    report = simulate(small.scenario("megatron", {"pp": 2}, model=TIED))
    assert [a.what for a in report.assumptions if a.what.startswith("tied")] == ["tied embedding"]
    assert not [a for a in simulate(small.scenario("megatron", {"dp_shard": 2}, model=TIED)).assumptions
                if a.what.startswith("tied")]


def test_experts_need_a_model_that_has_them() -> None:
    _refused("illegal", "num_moe_experts must be non None", {"dp_shard": 2, "ep": 2}, model="llama-tiny")


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    _refused("illegal", "Cannot use sequence parallelism", sequence_parallel=True)


@pytest.mark.parametrize("implementation", ["hf", "automodel"])
def test_other_layers_do_not_run_here(implementation: str) -> None:
    data = small.scenario("megatron").normalised() | {"implementation": implementation}
    report = simulate(Scenario.model_validate(data))
    assert report.status == "error"
    assert f"not yet: the layers of {implementation} under megatron" in report.problems[0].message


# ---- recompute -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("names", [["moee"], ["full"], ["none"], ["moe", "attention"]])
def test_only_upstreams_names_are_recomputed(names: list[str]) -> None:
    _refused("illegal", f"Invalid choices for recompute_modules: {names[-1]}.", recompute=names)


@pytest.mark.parametrize(("names", "told"), [
    (["mla_up_proj"], "multi_latent_attention"), (["moe_act"], "moe_grouped_gemm"), (["moe"], "has no experts"),
    (["core_attn", "shared_experts"], "has no shared experts")])
def test_a_name_needs_its_module(names: list[str], told: str) -> None:
    _refused("illegal", told, model="llama-tiny", recompute=names)


def test_a_name_needs_a_module_of_its_own_kind() -> None:
    """The tiny Nemotron has no dense MLP, Mixtral no shared expert."""
    _refused("illegal", "has no dense MLP", recompute=["mlp"])
    mixtral = {"model": _small("mixtral-8x7b"), "recompute": ["shared_experts"]}
    _refused("illegal", "has no shared experts", {"dp_shard": 2, "ep": 2}, **mixtral)


@pytest.mark.parametrize("name", ["core_attn", "layernorm", "moe", "moe_act", "shared_experts"])
def test_every_other_name_is_served(name: str) -> None:
    assert _defaults(recompute=[name])


@pytest.mark.parametrize("name", ["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"])
def test_every_name_makes_latent_attention_or_its_layer_keep_less(name: str) -> None:
    peaks = []
    for recompute in ("none", [name]):
        report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=V2, recompute=recompute,
                                         seq_len=4096))
        assert report.status == "ok", report.problems
        peaks.append(report.ranks[0].peak.allocated_bytes if report.ranks[0].peak else 0)
    assert peaks[1] < peaks[0] or name == "core_attn"  # fused attention: its output is kept by the projection anyway


def _kept_layers(mesh: dict[str, int], rank: int = 0, **given: Any) -> list[int]:
    """Layers of a rank whose forward pass leaves more than its output, embedding and head apart."""
    program = small.program_of("megatron", mesh, rank=rank, model=DEEP, **given)
    columns = program.columns[:int(np.argmax(program.phase == Phase.BACKWARD))]
    columns = columns[(columns[:, OP] <= Op.FREE) & (columns[:, LAYER] > 0) & (columns[:, LAYER] < 9)]
    slots = {number for (name, category), number in program.tables.slots.items()
             if category == "activation" and name != "hidden_states"}
    held = {layer: int(columns[(columns[:, LAYER] == layer) & np.isin(columns[:, SLOT], list(slots)), AMOUNT].sum())
            for layer in sorted(set(columns[:, LAYER].tolist()))}
    return [layer for layer, size in held.items() if size]


def test_mode_block_recomputes_the_first_layers_of_each_chunk() -> None:
    block = {"mode": "block", "num_layers": 1}
    assert _kept_layers({}, recompute=block) == list(range(2, 9))
    assert _kept_layers({"pp": 2}, 1, microbatches=2, recompute=block) == [6, 7, 8]
    virtual = {"microbatches": 2, "pipeline": {"virtual_stages": 2}}
    assert _kept_layers({"pp": 2}, 0, recompute=block, **virtual) == [2, 6]
    assert _kept_layers({"pp": 2}, 1, recompute=block, **virtual) == [4, 8]


@pytest.mark.parametrize("mode", [{"mode": "uniform", "num_layers": 1}, {"mode": "block", "num_layers": 8}])
def test_modes_that_recompute_every_layer_are_full(mode: dict[str, Any]) -> None:
    full, same = (simulate(small.scenario("megatron", {"dp_shard": 2}, model=DEEP, recompute=recompute)).ranks[0]
                  for recompute in ("full", mode))
    assert (same.peak, same.traffic) == (full.peak, full.traffic)


@pytest.mark.parametrize(("size", "inputs"), [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (2, [0, 2, 4, 6]), (4, [0, 4]), (8, [0])])
def test_mode_uniform_keeps_one_input_for_each_group(size: int, inputs: list[int]) -> None:
    """What layer 8 makes is kept by the final norm, what the norm makes by the head."""
    program = small.program_of("megatron", model=DEEP, recompute={"mode": "uniform", "num_layers": size})
    program.check()
    columns = program.columns[:int(np.argmax(program.phase == Phase.BACKWARD))]
    columns = columns[(columns[:, OP] <= Op.FREE) & (columns[:, SLOT] == HIDDEN)]
    held = np.bincount(columns[:, LAYER], weights=columns[:, AMOUNT], minlength=9)
    assert np.flatnonzero(held).tolist() == [*inputs, 8, 9]


@pytest.mark.parametrize(("model", "size"), [(DEEP, 2), (DEEP, 8), (QWEN3_MOE, 2)], ids=["pairs", "all", "experts"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_groups_do_the_work_of_single_layers_and_hold_more_in_backward(model: dict[str, Any], size: int,
                                                                       method: str) -> None:
    """The same kernels and collectives, the same bytes in the end; what a whole group keeps is there at once."""
    mesh = {"dp_shard": 2, "ep": 2 if model is QWEN3_MOE else 1}
    one, many = (simulate(small.scenario("megatron", mesh, model=model, method=method, seq_len=1024, microbatches=2,
                                         recompute={"mode": "uniform", "num_layers": n})) for n in (1, size))
    assert one.time is not None
    assert many.time is not None
    assert one.time.step_s == many.time.step_s
    a, b = one.ranks[0], many.ranks[0]
    assert (a.traffic, a.end_bytes) == (b.traffic, b.end_bytes)
    assert a.peak is not None
    assert b.peak is not None
    assert a.peak.by_phase["recompute"] < b.peak.by_phase["recompute"]
    assert a.peak.by_phase["forward"] >= b.peak.by_phase["forward"]


def test_what_is_refused_of_modes() -> None:
    _refused("illegal", "granularity selective", model=DEEP, recompute={"mode": "block", "modules": ["mlp"]})
    groups = {"mode": "uniform", "num_layers": 3}
    _refused("illegal", "groups of 3 layers do not divide the 8", model=DEEP, recompute=groups)
    _refused("illegal", "groups of 3 layers do not divide the 2", {"pp": 2}, model=DEEP, recompute=groups,
             microbatches=2, pipeline={"virtual_stages": 2})
    _refused("error", "not yet: recompute per_op", model=DEEP, recompute={"mode": "per_op"})


def test_full_recompute_of_a_hybrid_is_mains() -> None:
    """Core 0.16.1 takes the setting and recomputes nothing (MambaStack.forward)."""
    assert "training.recompute" in _assumed(recompute="full")
    assert "training.recompute" not in _assumed(recompute="none")
    assert "training.recompute" not in _assumed(model=DEEP, recompute="full")


# ---- formats ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("training", FORMATS)
def test_formats_are_the_precision_aware_optimizers(training: dict[str, Any]) -> None:
    _refused("illegal", "can only be fp32 when not using precision-aware optimizer", **training)


@pytest.mark.parametrize(("options", "optimizer", "told"), [
    ({"use_distributed_optimizer": False}, {}, "only supported with distributed optimizer"),
    ({}, {"name": "sgd"}, "only supported with adam"),
    ({}, {"master": "bf16"}, "only supports fp32/fp16 master weights"),
    ({}, {"master": "none"}, "only supports fp32/fp16 master weights")])
def test_what_the_precision_aware_optimizer_refuses(options: dict[str, Any], optimizer: dict[str, Any],
                                                    told: str) -> None:
    _refused("illegal", told, options=PRECISE | options, optimizer=optimizer)


def test_what_is_not_modelled_of_it() -> None:
    _refused("error", "fp16 masters", options=PRECISE, optimizer={"master": "fp16"})
    _refused("error", "it has no effect", options={"store_param_remainders": False})


def test_a_master_is_kept_in_halves_only_beside_bf16_parameters() -> None:
    whole = _master()
    assert _master(options=OWNING) == _master(options=OWNING, optimizer={"master": "fp32"}) == whole // 2
    assert _master(options=OWNING | {"store_param_remainders": False}) == whole
    assert _master(options=OWNING, precision={"compute": "fp16"}) == whole


def test_bridge_leaves_fp32_masters_to_core() -> None:
    """Its mixed precision tells the optimizer "tensorwise" in bf16 runs too: nothing is kept in halves."""
    assert _master(options=PRECISE) == _master()
    assert _defaults(options=PRECISE)["framework_options.fp8_recipe"] == "tensorwise"
    copied = {}
    for held, options in (("core's", PRECISE), ("its own", OWNING)):
        program = small.program_of("megatron", options=options, precision={"main_grads": "bf16"})
        copied[held] = sum(amount for _, _, amount in small.postings(program, "fp32_grad_shard"))
    numel = sum(rest.num_params for rest in small.plan_of("megatron").at_rest().values())
    assert copied == {"core's": 4 * numel, "its own": 0}
    _refused("error", "it has no effect", options=PRECISE | {"store_param_remainders": False})


def _away(fraction: float, **given: Any) -> tuple[int, dict[str, int]]:
    """Bytes of the optimizer on the device and elsewhere."""
    offload = {"optimizer": {"space": "host", "fraction": fraction}} if fraction else {}
    plan = small.plan_of("megatron", {"dp_shard": 2}, offload=offload, **given)
    return sum(part.optimizer_bytes for part in plan.at_rest().values()), plan.elsewhere()


def test_an_optimizer_on_the_host_takes_masters_moments_and_copies_of_gradients_along() -> None:
    """fp32 masters and moments, 12 bytes, and 4 of a pinned gradient; nothing of it is left on the device."""
    whole, nothing = _away(0)
    assert nothing == {}
    here, away = _away(1)
    assert here == 0
    assert (away["host"], away["host_pinned"]) == (whole, whole // 3)


def test_a_fraction_of_the_optimizer_on_the_host() -> None:
    whole, _ = _away(0)
    here, away = _away(0.25)
    assert here == pytest.approx(0.75 * whole, rel=1e-3)
    assert away["host"] == pytest.approx(0.25 * whole, rel=1e-3)
    exact = place(small.scenario("megatron", {"dp_shard": 2}, offload={"optimizer": {"space": "host",
                                                                                      "fraction": 0.25}}), rank=0)
    assert sum(part.optimizer_bytes for part in exact.ranks[0].at_rest.values()) == pytest.approx(here, rel=0.05)


def test_the_peak_is_lower_by_what_lies_on_the_host_and_that_is_told() -> None:
    here, there = (simulate(small.scenario("megatron", {"dp_shard": 2}, offload=offload)) for offload in (
        {}, {"optimizer": "host"}))
    peaks = [report.ranks[0].peak for report in (here, there)]
    states = sum(part.optimizer_bytes for part in here.ranks[0].at_rest.values())
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].allocated_bytes - peaks[1].allocated_bytes == pytest.approx(states, rel=0.01)
    told = {a.what for a in there.assumptions}
    assert {"outside the device, host", "outside the device, host_pinned", "time of offload"} <= told


@pytest.mark.parametrize(("status", "told", "given"), [
    ("illegal", "in conjunction with", {"offload": {"optimizer": "host"},
                                        "options": {"use_precision_aware_optimizer": False}}),
    ("error", "nvme under megatron", {"offload": {"optimizer": "nvme"}}),
    ("error", "params outside the device under megatron", {"offload": {"params": "host"}}),
    ("error", "activations outside the device under megatron", {"offload": {"activations": "host"}}),
    ("error", "on the host, gradients in bf16", {"offload": {"optimizer": {"space": "host", "fraction": 0.5}},
                                         "precision": {"main_grads": "bf16"}})])
def test_what_is_refused_of_offload(status: str, told: str, given: dict[str, Any]) -> None:
    _refused(status, told, **given)


@pytest.mark.parametrize(("optimizer", "per_element"), [({}, 8), ({"momentum": 0.9}, 8), ({"momentum": 0}, 4)])
def test_sgd_keeps_a_buffer_unless_its_momentum_is_none(optimizer: dict[str, Any], per_element: int) -> None:
    parts = small.plan_of("megatron", options={"use_distributed_optimizer": False},
                          optimizer={"name": "sgd", **optimizer}).at_rest().values()
    assert sum(p.optimizer_bytes for p in parts) == per_element * sum(p.num_params for p in parts)


def test_sgd_needs_the_plain_optimizer() -> None:
    _refused("illegal", "Only Adam and HybridDeviceOptimizer", optimizer={"name": "sgd"})
    _refused("error", "momentum of adamw", optimizer={"momentum": 0.9})


@pytest.mark.parametrize("moments", ["bf16", "fp16", "fp32"])
def test_the_precision_aware_optimizer_chooses_its_moments(moments: str) -> None:
    assert "training.optimizer.moments" not in _defaults(options=PRECISE, optimizer={"moments": moments})


@pytest.mark.parametrize(("precision", "told"), [
    ({"compute": "fp32"}, "fp32 under megatron"), ({"params": "fp32"}, "fp32 under megatron"),
    ({"main_grads": "fp16"}, "fp16 under megatron"), ({"grad_reduce": "fp16"}, "fp16 under megatron"),
    ({"main_grads": "fp8"}, "main_grads in fp8")])
def test_other_formats_are_not_modelled(precision: dict[str, str], told: str) -> None:
    _refused("error", told, precision=precision)


def test_gradients_have_one_buffer() -> None:
    _refused("illegal", "one buffer", precision={"main_grads": "fp32", "grad_reduce": "bf16"})
    assert _defaults(precision={"main_grads": "bf16", "grad_reduce": "bf16"})


# ---- options ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "told"), [
    ({"overlap_grad_reduce": False, "overlap_param_gather": True}, "Must use --overlap-param-gather with"),
    ({"use_distributed_optimizer": False, "overlap_param_gather": True}, "only supported with distributed optimizer"),
    ({"moe_flex_dispatcher_backend": "deepep"}, "only supported with flex token dispatcher"),
    ({"moe_flex_dispatcher_backend": "hybridep", "moe_token_dispatcher_type": "alltoall"}, "flex token dispatcher")])
def test_options_that_exclude_each_other(options: dict[str, Any], told: str) -> None:
    _refused("illegal", told, options=options)


def test_user_buffers_lie_outside_torch() -> None:
    """20 bytes for each of 64 x 256 elements: six buffers to gather into, four to sum in."""
    def held(**options: bool) -> list[tuple[str, int]]:
        report = simulate(small.scenario("megatron", {"tp": 2}, model="llama-tiny", options=options))
        peak = report.ranks[0].peak
        assert peak is not None
        return [(name, size) for name, size in peak.outside.items() if name == "workspace"]

    assert held(tp_comm_overlap=True) == [("workspace", 20 * 64 * 256)]
    assert held() == []
    _refused("illegal", "only when sequence parallelism is enabled", model="llama-tiny",
             options={"tp_comm_overlap": True})
    _refused("error", "other layers than attention", {"tp": 2}, options={"tp_comm_overlap": True})
    _refused("error", "tp_comm_overlap with adapters", {"tp": 2}, model="llama-tiny", method="lora",
             options={"tp_comm_overlap": True})


def test_peaks_with_cuda_graphs_are_those_of_the_steps_before() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine"}
    with_graphs, without = (simulate(small.scenario("megatron", options=options)) for options in (graphs, {}))
    assert with_graphs.ranks[0].peak == without.ranks[0].peak
    assert "cuda graphs" in {one.what for one in with_graphs.assumptions}
    _refused("error", "after 1 ordinary steps", options=graphs | {"cuda_graph_warmup_steps": 1})
    _refused("error", "CUDA graphs by local", options={"cuda_graph_impl": "local"})


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
    _refused("illegal", "drop-padding", options=BY_TE | {"cuda_graph_scope": "moe"})


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
    _refused("illegal", told, options=given)


def test_what_cuda_graphs_rule_out() -> None:
    router = BY_TE | {"cuda_graph_scope": ["moe_router"]}
    _refused("illegal", "full recompute is only supported with full iteration", options=router, recompute="full")
    _refused("illegal", "moe recompute is not supported with moe_router", options=router, recompute=["moe"])
    _refused("illegal", "only supported for MoE", model="llama-tiny", options=router)
    _refused("illegal", "moe and mlp is not supported with overlap", {"dp_shard": 2, "ep": 2}, routing={
        "capacity_factor": 1.0}, options=OVERLAP | BY_TE | {"cuda_graph_scope": "moe"})


def test_a_shared_expert_beside_the_exchange_of_tokens() -> None:
    option = {"moe_shared_expert_overlap": True}
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, options=option))
    assert {"moe_shared_expert_overlap"} <= {a.what for a in report.assumptions if a.kind == "assumed"}
    _refused("illegal", "only works with alltoall", {"dp_shard": 2, "ep": 2},
             options=option | {"moe_token_dispatcher_type": "flex"})
    _refused("illegal", "disable moe_shared_expert_overlap", {"dp_shard": 2, "ep": 2}, options=option | OVERLAP)
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE, options=option))
    assert "changes nothing without a shared expert" in report.problems[0].message


def test_parameters_are_gathered_ahead_where_gradients_are_reduced_beside_backward() -> None:
    assert _defaults(options={"overlap_grad_reduce": False})["framework_options.overlap_param_gather"] == "false"


def _reductions(**options: Any) -> int:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, options=options))
    return sum(row.calls for row in report.ranks[0].traffic if row.collective == "reduce_scatter")


def test_buckets_grow_with_the_ranks_unless_their_size_is_given() -> None:
    """Core 0.16.1 distributed_data_parallel.py:65."""
    found = [_defaults({"dp_shard": ranks})["framework_options.bucket_size"] for ranks in (2, 64)]
    assert found == ["40000000", "64000000"]
    assert "framework_options.bucket_size" not in _defaults(options={"bucket_size": 100_000})
    assert _reductions(bucket_size=100_000) > _reductions(bucket_size=400_000) > _reductions() == 1
    idle = {"bucket_size": 100_000, "overlap_grad_reduce": False}
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, options=idle))
    assert "changes nothing without overlap_grad_reduce" in report.problems[0].message


# ---- defaults --------------------------------------------------------------------------------------------------------
def test_every_default_is_listed() -> None:
    found = _defaults({"tp": 2})
    options = {"use_precision_aware_optimizer": "false", "use_distributed_optimizer": "true",
               "overlap_grad_reduce": "true", "overlap_param_gather": "true", "moe_token_dispatcher_type": "alltoall"}
    expected = {"training.precision.params": "bf16", "training.precision.main_grads": "fp32",
                "training.optimizer.master": "fp32", "training.optimizer.moments": "fp32", "mesh.etp": "2",
                "training.sequence_parallel": "true", **{f"framework_options.{k}": v for k, v in options.items()}}
    assert {key: found.get(key) for key in expected} == expected


def test_what_is_given_is_no_default() -> None:
    found = _defaults({"tp": 2, "etp": 1}, precision={"params": "bf16"}, optimizer={"master": "fp32"},
                      options={"overlap_grad_reduce": True, "moe_token_dispatcher_type": "flex"})
    assert not {"mesh.etp", "training.precision.params", "training.optimizer.master",
                "framework_options.overlap_grad_reduce", "framework_options.moe_token_dispatcher_type"} & set(found)
    assert found["framework_options.moe_flex_dispatcher_backend"] == "deepep"


# ---- families --------------------------------------------------------------------------------------------------------
FUSION, ROUTER = "framework_options.bias_activation_fusion", "framework_options.moe_router_dtype"


def test_bridge_leaves_qwens_activation_unfused_and_its_router_in_bf16() -> None:
    found = _defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE)
    assert (found[FUSION], found[ROUTER]) == ("false", "bf16")
    chosen = _defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE,
                       options={"bias_activation_fusion": True, "moe_router_dtype": "fp32"})
    assert FUSION not in chosen
    assert ROUTER not in chosen


def test_other_families_fuse_it() -> None:
    assert FUSION not in _defaults({"dp_shard": 2}, model="llama-tiny")
    found = _defaults({"dp_shard": 2, "ep": 2}, model=_small("mixtral-8x7b"))
    assert FUSION not in found
    assert found[ROUTER] == "bf16"


def test_fusion_saves_memory() -> None:
    """Qwen2 of two layers of 128 columns: the SiLU and up + 0 of 64 tokens less in each layer."""
    peaks = []
    for fused in (True, False):
        report = simulate(small.scenario("megatron", model=_small("qwen2.5-7b"), method="lora",
                                         options={"bias_activation_fusion": fused}))
        assert report.status == "ok", report.problems
        peaks.append(report.ranks[0].peak.allocated_bytes if report.ranks[0].peak else 0)
    assert peaks[1] - peaks[0] == 2 * 2 * 2 * 128 * 64


@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"tp": 2, "etp": 1, "ep": 2}, {"pp": 2}, {"cp": 2}])
def test_softmax_routed_experts_run_in_every_direction(mesh: dict[str, int]) -> None:
    report = simulate(small.scenario("megatron", mesh, model=QWEN3_MOE))
    assert report.status == "ok", report.problems


def test_a_router_in_bf16_is_described_for_softmax_alone() -> None:
    _refused("error", "not yet: a router of nemotron_h", options={"moe_router_dtype": None})


DEEPSEEK = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_key_value_heads": 8,
            "first_k_dense_replace": 1}
V2, V3 = _small("deepseek-v2-lite", **DEEPSEEK), _small("deepseek-v3", **DEEPSEEK, q_lora_rank=96)


@pytest.mark.parametrize("model", [V2, V3], ids=["v2", "v3"])
@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"dp_shard": 2, "ep": 2}, {"pp": 2}, {"cp": 2}])
def test_latent_attention_runs_in_every_direction(model: dict[str, Any], mesh: dict[str, int]) -> None:
    report = simulate(small.scenario("megatron", mesh, model=model))
    assert report.status == "ok", report.problems


def test_what_is_refused_of_latent_attention() -> None:
    _refused("illegal", "8 attention heads must be divisible by tp 16", {"tp": 16}, model=V2)
    _refused("error", "not yet: an adapter of linear_kv_down_proj", model=V2, method="lora",
             lora={"target_modules": ["linear_kv_down_proj"]})


def test_losses_of_recipes_differ_by_family() -> None:
    assert _defaults(model=V2)["training.loss"] == "te"
    assert _defaults({"dp_shard": 2, "ep": 2}, model=QWEN3_MOE)["training.loss"] == "te"
    assert _defaults(model="llama-tiny")["training.loss"] == "megatron"


@pytest.mark.parametrize("more", [{}, {"recompute": ["moe_act"]}, {"method": "lora"}])
def test_experts_with_biases_run(more: dict[str, Any]) -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model="gpt-oss-20b", **more))
    assert report.status == "ok", report.problems


def test_experts_with_biases_need_the_fused_activation() -> None:
    _refused("error", "experts with biases without the fused activation", model="gpt-oss-20b",
             options={"bias_activation_fusion": False})


@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"dp_shard": 2}, {"cp": 2}])
def test_gpt_runs_without_dropout(mesh: dict[str, int]) -> None:
    still = {"n_embd": 256, "n_head": 8, "n_layer": 2, "vocab_size": 1024, "attn_pdrop": 0, "resid_pdrop": 0,
             "embd_pdrop": 0}
    report = simulate(small.scenario("megatron", mesh, model={"config": "gpt2", "overrides": still}))
    assert report.status == "ok", report.problems


GPT = {"config": "gpt2", "overrides": {"n_embd": 256, "n_head": 8, "n_layer": 2, "vocab_size": 1024}}


@pytest.mark.parametrize(("options", "topology", "backend"), [
    ({}, "dgx-a100", "flash"), ({}, "dgx-h100", "fused"), ({}, "gb200-nvl72", "fused"),
    ({"deterministic_mode": True}, "dgx-h100", "fused"), ({"deterministic_mode": True}, "gb200-nvl72", "flash")])
def test_who_computes_attention_is_the_gpus(options: dict[str, Any], topology: str, backend: str) -> None:
    asked = small.scenario("megatron", {"dp_shard": 2}, model=GPT, options=options).model_copy(
        update={"topology": topology})
    found = {a.what: a.value for a in simulate(asked).assumptions}
    assert found["framework_options.attention_backend"] == backend


def test_without_attention_nobody_computes_it() -> None:
    only = {"config": "nemotron-3-tiny", "overrides": {"hybrid_override_pattern": "MM", "num_hidden_layers": 2}}
    assert "framework_options.attention_backend" not in _defaults(model=only)


@pytest.mark.parametrize("options", [{"attention_backend": "unfused"}, {"attention_backend": "local"},
                                     {"transformer_impl": "local"}])
def test_unfused_attention_knows_no_context_parallelism(options: dict[str, str]) -> None:
    _refused("illegal", "attention that is not fused", {"cp": 2}, model=GPT, options=options)
    assert simulate(small.scenario("megatron", {"dp_shard": 2}, model=GPT, options=options)).status == "ok"


def _peak(model: Any = GPT, mesh: dict[str, int] | None = None, options: dict[str, Any] | None = None,
          **training: Any) -> int:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, model=model, options=options, **training))
    assert report.status == "ok", report.problems
    assert report.ranks[-1].peak is not None
    return report.ranks[-1].peak.allocated_bytes


def test_a_loss_that_is_not_fused() -> None:
    unfused = {"cross_entropy_loss_fusion": False}
    assert _peak(options=unfused) == _peak(options=unfused, loss="megatron") < _peak()
    _refused("illegal", "without fusion the loss is megatron's own, not te", options=unfused, loss="te")


def test_the_loaders_mask_is_there_in_forward_alone() -> None:
    found = small.postings(small.program_of("megatron", model=GPT, options={"create_attention_mask": True}),
                           "attention_mask")
    assert [(phase, size) for _, phase, size in found] == [("forward", 64 * 64), ("loss", -64 * 64)]
    assert not small.postings(small.program_of("megatron", model=GPT), "attention_mask")
    middle = small.program_of("megatron", {"pp": 5}, rank=2, options={"create_attention_mask": True})
    assert not small.postings(middle, "attention_mask")


def test_without_accumulation_fusion_nothing_stands_in_for_gradients() -> None:
    unfused = small.program_of("megatron", model=GPT, options={"gradient_accumulation_fusion": False})
    assert not small.postings(unfused, "idle_weight_gradients")
    assert small.postings(small.program_of("megatron", model=GPT), "idle_weight_gradients")


def test_who_may_defer_the_heads_weight_gradient() -> None:
    defer, limit = {"defer_embedding_wgrad_compute": True}, {"wgrad_deferral_limit": 2}
    _refused("illegal", "when pipeline model parallel is not used", model=GPT, options=defer | limit)
    _refused("illegal", "when gradient accumulation fusion is not used", {"pp": 2}, model=GPT,
             options=defer | limit | {"gradient_accumulation_fusion": False})
    _refused("error", "not yet: without wgrad_deferral_limit", {"pp": 2}, model=GPT, options=defer)
    for options, count in ((defer | limit, 2), (limit, 0)):
        _, table = small.prepared("megatron", {"pp": 2}, model=GPT, microbatches=4, options=options)
        assert table.deferred_heads == count


def test_a_tied_heads_gradient_waits_for_the_embeddings() -> None:
    unfused = {"gradient_accumulation_fusion": False}
    found = small.postings(small.program_of("megatron", model=GPT, options=unfused), "tied.grad")
    assert [size for *_, size in found] == [1024 * 256 * 2, -1024 * 256 * 2]
    apart = small.program_of("megatron", {"pp": 2}, model=GPT, options=unfused, rank=1)
    assert not small.postings(apart, "tied.grad")


def _predicting(modules: int = 1, **more: Any) -> dict[str, Any]:
    return {"config": V3["config"], "overrides": {**V3["overrides"], "mtp_num_layers": modules, **more}}


@pytest.mark.parametrize("given", [
    {}, {"recompute": "full"}, {"recompute": ["moe_act", "mla_up_proj", "layernorm"]}, {"loss": "te_inplace"},
    {"options": {"gradient_accumulation_fusion": False}}, {"recompute": {"mode": "block", "num_layers": 1}}], ids=str)
@pytest.mark.parametrize("mesh", [{"dp_shard": 2, "tp": 2}, {"pp": 2}, {"cp": 2}], ids=str)
def test_multi_token_prediction_runs_and_lets_everything_go(mesh: dict[str, int], given: dict[str, Any]) -> None:
    """What a step's end holds is what it began with: states, gradients, workspaces and what a stage received."""
    last = 2 * mesh.get("pp", 1) * mesh.get("tp", 1) // 2 - 1
    alike = [small.program_of("megatron", mesh, model=_predicting(), microbatches=count, rank=last, **given)
             for count in (2, 3)]
    ends = [sum(row[3] for row in program.columns.tolist() if row[0] in (Op.ALLOC, Op.FREE)) for program in alike]
    assert ends[0] == ends[1], "a microbatch leaves something behind"


def test_the_stage_of_multi_token_prediction_copies_the_embedding() -> None:
    """language_module.py, setup_embeddings_and_output_layer: on one stage both use the same weight."""
    def held(mesh: dict[str, int], rank: int) -> int:
        plan = small.plan_of("megatron", mesh, model=_predicting(), rank=rank)
        return plan.at_rest()["embedding"].num_params

    assert held({}, 0) == held({"pp": 2}, 0) == held({"pp": 2}, 1) == 1024 * 256


def test_the_first_logits_go_with_the_second() -> None:
    """`mtp_logits` is a local variable of _postprocess: both heads' logits lie side by side."""
    program = small.program_of("megatron", {}, model=_predicting(), microbatches=1)
    slots = {number for (name, _), number in program.tables.slots.items()
             if name in ("hidden_states", "mtp.hidden_states")}
    logits = 64 * 1024 * 2
    moves = [(row[0], row[1]) for row in program.columns.tolist()
             if row[0] in (Op.ALLOC, Op.FREE) and row[2] in slots and abs(row[3]) == logits]
    head = 5
    assert moves == [(Op.ALLOC, head), (Op.ALLOC, head), (Op.FREE, head), (Op.FREE, head)]
    assert [slot for slot in (row[2] for row in program.columns.tolist() if (row[0], row[1]) == (Op.ALLOC, head))
            if slot in slots][:2] == [program.tables.slots["mtp.hidden_states", "activation"], HIDDEN]


@pytest.mark.parametrize("fused", [True, False])
def test_a_second_embeddings_gradient_waits_on_one_stage(fused: bool) -> None:
    """No GEMM makes it, so fusion changes nothing."""
    def waited(mesh: dict[str, int]) -> list[int]:
        program = small.program_of("megatron", mesh, model=_predicting(), microbatches=1, rank=mesh.get("pp", 1) - 1,
                                   options={"gradient_accumulation_fusion": fused})
        return [size for *_, size in small.postings(program, "tied.grad")]

    weight = [1024 * 256 * 2, -1024 * 256 * 2]
    assert waited({}) == weight
    assert not waited({"pp": 2})


def test_what_is_refused_of_multi_token_prediction() -> None:
    _refused("error", "not yet: multi-token prediction by several modules", model=_predicting(2))
    assert place(small.scenario("megatron", {"dp_shard": 2}, model=_predicting(2))).status == "ok"
    tied = {"config": "nemotron-3-tiny", "overrides": {"mtp_num_layers": 1, "mtp_hybrid_override_pattern": "*E",
                                                       "tie_word_embeddings": True}}
    _refused("error", "not yet: multi-token prediction with tied", model=tied, version="main 2026-08-22")
    _refused("error", "not yet: adapters with multi-token prediction", model=_predicting(), method="lora")
    _refused("error", "not yet: weight gradients of a head", {"pp": 2}, model=_predicting(),
             options={"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 1})
    _refused("illegal", "must be 1 for MTP recompute", model=_predicting(),
             recompute={"mode": "uniform", "num_layers": 2})
    other = {"config": "qwen3-8b", "overrides": {"mtp_num_layers": 1}}
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, model=other))
    assert "multi-token prediction of qwen3 is not modelled yet" in report.problems[0].message


# ---- pipeline stages -------------------------------------------------------------------------------------------------
def _counts(mesh: dict[str, int], **given: Any) -> list[int]:
    """Layers of each chunk, in the order of the model; the embedding, and norm, head and loss not counted."""
    _, table = small.prepared("megatron", mesh, **{"model": DEEP, "microbatches": 8} | given)
    found = [len(stage) for stage in table.stages]
    return [found[0] - 1, *found[1:-1], found[-1] - 3]


def test_operations_in_place_of_modules_are_for_dense_mlps() -> None:
    """core 0.16.1 gpt_layer_specs.py:494; main fuses experts too (moe/experts.py)."""
    fuser = {"use_transformer_engine_op_fuser": True}
    _refused("error", "not yet: a dense MLP", model=DEEP, options=fuser)
    asked = small.scenario("megatron", {"dp_shard": 2}, model=_small_moe_gpt(), options=fuser)
    report = simulate(asked.model_copy(update={"framework_version": "main 2026-08-22"}))
    assert "in other formats than mxfp8" in report.problems[0].message
    same = [small.program_of("megatron", {}, model=_small_moe_gpt(), options=given).columns.tolist()
            for given in (fuser, {})]
    assert same[0] == same[1]


OVERLAP = {"overlap_moe_expert_parallel_comm": True}


@pytest.mark.parametrize(("told", "given"), [
    ("with expert model parallelism", {"mesh": {"dp_shard": 2}}),
    ("with alltoall/flex", {"options": OVERLAP | {"moe_token_dispatcher_type": "allgather"}}),
    ("needs virtual stages", {"mesh": {"pp": 2, "dp_shard": 2, "ep": 2}}),
    ("excludes full recomputation", {"recompute": "full"}),
    ("excludes full recomputation", {"recompute": {"mode": "block", "num_layers": 1}})])
def test_where_the_exchange_of_tokens_cannot_overlap(told: str, given: dict[str, Any]) -> None:
    _refused("illegal", told, **{"model": QWEN3_MOE, "mesh": {"dp_shard": 2, "ep": 2}, "options": OVERLAP} | given)


def test_an_overlapped_exchange_is_said_to_be_assumed() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE, options=OVERLAP))
    assert report.status == "ok", report.problems
    assert [a.what for a in report.assumptions if a.kind == "assumed" and a.what in OVERLAP] == list(OVERLAP)
    _refused("illegal", "must be enabled when", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE,
             options={"delay_wgrad_compute": True})
    report = simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=QWEN3_MOE,
                                     options=OVERLAP | {"delay_wgrad_compute": True}))
    assert "delay_wgrad_compute" in {a.what for a in report.assumptions if a.kind == "assumed"}
    _refused("illegal", "needs pipeline parallelism with an MTP layer", {"dp_shard": 2, "ep": 2}, options=OVERLAP,
             model=_predicting())


def test_nodes_have_a_backward_of_their_own() -> None:
    """Each is a run of autograd by itself: a tied head's gradient is in main_grad before the embedding's is made."""
    def waits(**given: Any) -> bool:
        program = small.program_of("megatron", options={"gradient_accumulation_fusion": False} | given.pop("options"),
                                   **given)
        return bool(small.postings(program, "tied.grad"))

    mesh = {"dp_shard": 2, "ep": 2}
    assert waits(mesh=mesh, model=_small_moe_gpt(), options={})
    assert not waits(mesh=mesh, model=_small_moe_gpt(), options=OVERLAP)


def _small_moe_gpt() -> dict[str, Any]:
    return {"config": "gpt2", "overrides": {
        "n_embd": 256, "n_head": 8, "n_layer": 2, "vocab_size": 1024, "n_positions": 64, "add_bias_linear": False,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}}


LAYOUT = "pipeline_model_parallel_layout"


@pytest.mark.parametrize(("layout", "counts"), [
    ("Ett|tt|tt|ttL", [2, 2, 2, 2]), ("E(t|)*3,t*5,L", [1, 1, 1, 5]), ("Et*3|t|(t|)*2t*2L", [3, 1, 1, 1, 2]),
    ("Et*4|t*4|L", [4, 4, 0])])
def test_a_layout_says_what_each_chunk_holds(layout: str, counts: list[int]) -> None:
    """pipeline_parallel_layer_layout.py: groups are unrolled first, then letters; commas are decoration."""
    pp = len(counts) if len(counts) % 2 else 2
    assert _counts({"pp": pp}, options={LAYOUT: layout}) == counts


def test_a_layout_may_be_a_list_of_words() -> None:
    def stages(layout: object) -> object:
        return small.prepared("megatron", {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: layout})[1].stages

    listed = [["embedding", "decoder", "Decoder"], ["decoder"] * 2, ["decoder"] * 2, ["decoder", "decoder", "loss"]]
    assert stages(listed) == stages("Ett|tt|tt|ttL")
    for told, layout in (("encoder is not a valid LayerType", [["embedding", "encoder"], ["loss"]]),
                         ("a list of lists", ["embedding", "loss"]), ("a list of lists", [[1], ["loss"]]),
                         ("number of decoder layers 1", [["embedding"], ["decoder", "loss"]])):
        _refused("illegal", told, {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: layout})


def test_a_layout_makes_the_schedule_interleaved() -> None:
    _, table = small.prepared("megatron", {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: "Ett|tt|tt|ttL"})
    _, asked = small.prepared("megatron", {"pp": 2}, model=DEEP, microbatches=8, pipeline={"virtual_stages": 2})
    assert (table.schedule, table.stages) == (asked.schedule, asked.stages)
    _, table = small.prepared("megatron", {"pp": 2}, model=DEEP, options={LAYOUT: "Ettt|t*5,L"})
    assert table.schedule.name == "1f1b"


def test_the_final_norm_is_where_the_last_decoder_layer_is() -> None:
    """transformer_block.py:401, with multi-token prediction alone."""
    def last(model: Any, layout: str) -> list[str]:
        job, table = small.prepared("megatron", {"pp": 2}, model=model, options={LAYOUT: layout})
        return [job.graph.kinds[job.graph.layers[layer].kind].name for layer in table.stages[-1]]

    assert last(_predicting(), "Ett|mL") == ["mtp", "head", "loss"]
    assert last(V3, "Ett|L") == ["final_norm", "head", "loss"]
    assert last(_predicting(), "Et|tmL") == ["moe_decoder", "final_norm", "mtp", "head", "loss"]
    _, table = small.prepared("megatron", {"pp": 2}, model=_predicting(), microbatches=4, options={LAYOUT: "Et|t|m|L"})
    assert table.stages == ((0, 1), (2, 3), (4,), (5, 6)), "the norm is behind the experts"


@pytest.mark.parametrize(("pp", "layout"), [(2, "Ett|mL"), (2, "Et|t|m|L"), (4, "Et|t|m|L"), (3, "Ett|m|L")])
def test_multi_token_prediction_apart_lets_everything_go(pp: int, layout: str) -> None:
    for rank in range(pp):
        alike = [small.program_of("megatron", {"pp": pp}, model=_predicting(), microbatches=count, rank=rank,
                                  options={LAYOUT: layout}) for count in (2 * pp, 4 * pp)]
        ends = [sum(row[3] for row in p.columns.tolist() if row[0] in (Op.ALLOC, Op.FREE)) for p in alike]
        assert ends[0] == ends[1]
    report = simulate(small.scenario("megatron", {"pp": pp}, model=_predicting(), microbatches=2 * pp,
                                     options={LAYOUT: layout}))
    assert report.status == "ok", report.problems


def test_multi_token_prediction_hands_on_both_outputs() -> None:
    """gpt_model.py: without the output layer _postprocess returns what both made, 2 x 64 tokens of 256 numbers."""
    def sent(rank: int) -> set[tuple[str, int]]:
        program = small.program_of("megatron", {"pp": 3}, model=_predicting(), microbatches=6, rank=rank,
                                   options={LAYOUT: "Ett|m|L"})
        return {(phase, size) for _, phase, size in small.calls(program, "send_recv")}

    once, twice = 64 * 256 * 2, 2 * 64 * 256 * 2
    assert sent(0) == {("forward", once), ("backward", once)}
    assert sent(1) == {("forward", once), ("forward", twice), ("backward", once), ("backward", twice)}
    assert sent(2) == {("forward", twice), ("backward", twice)}


@pytest.mark.parametrize(("layout", "told"), [
    ("Ett|tt|tt|tXL", "Invalid layer character: X"), ("Ett|tt|t*4L", "3 chunks must be divisible"),
    ("t*4|t*4L", "first layer must be the embedding"), ("Et*4|E,t*4L", "first layer must be the embedding"),
    ("Et*4|t*4", "last layer must be the loss"), ("Et*4|L,t*4L", "last layer must be the loss"),
    ("Et*4|t*3L", "number of decoder layers 7 must match num_layers 8"), ("Et*4|t*4mL", "mtp layers 1 must match"),
    ("", "1 chunks must be divisible"), ("Et*99999999999|L", "more than"), ("(E(t*4|)*2000000,L", "more than"),
    ("Et*4|t*4L*0", "last layer must be the loss")])
def test_layouts_that_are_refused(layout: str, told: str) -> None:
    _refused("illegal", told, {"pp": 2}, model=DEEP, microbatches=8, options={LAYOUT: layout})


def test_a_layout_stands_for_itself() -> None:
    even = "Ett|tt|tt|ttL"
    _refused("illegal", "cannot be set at the same time", {"pp": 2}, model=DEEP, microbatches=8,
             options={LAYOUT: even, "account_for_loss_in_pipeline_split": True})
    _refused("illegal", "cannot be set at the same time", {"pp": 2}, model=DEEP, microbatches=8,
             options={LAYOUT: even}, pipeline={"layers": [2, 2, 2, 2], "virtual_stages": 2})
    _refused("illegal", "no more than one of", {"pp": 2}, model=DEEP, microbatches=8,
             options={LAYOUT: even}, pipeline={"virtual_stages": 4})


@pytest.mark.parametrize(("layout", "status", "told"), [
    ("Et|m|t|L", "illegal", "decoder layers must be placed before"), ("Et|t||mL", "error", "not yet: a stage without"),
    ("Et|tmL||", "illegal", "always in the last virtual"), ("Et|tm||L", "illegal", "always in the last virtual")])
def test_where_multi_token_prediction_may_be_laid(layout: str, status: str, told: str) -> None:
    _refused(status, told, {"pp": 2}, model=_predicting(), microbatches=8, options={LAYOUT: layout})


def test_virtual_stages_go_round_the_ranks() -> None:
    assert _counts({"pp": 2}, pipeline={"virtual_stages": 2}) == [2, 2, 2, 2]
    for rank, layers in enumerate([(0, 1, 2, 5, 6), (3, 4, 7, 8, 9, 10, 11)]):
        plan = small.plan_of("megatron", {"pp": 2}, rank=rank, model=DEEP, microbatches=8,
                             pipeline={"virtual_stages": 2})
        assert plan.layers == layers


@pytest.mark.parametrize(("options", "layers", "counts"), [
    ({"num_layers_in_first_pipeline_stage": 2}, "auto", [1, 3, 1, 3]),
    ({"num_layers_in_last_pipeline_stage": 2}, "auto", [3, 1, 3, 1]),
    ({}, [1, 3, 2, 2], [1, 3, 2, 2]), ({}, [3, 2, 3, 0], [3, 2, 3, 0])])
def test_virtual_stages_of_uneven_ranks(options: dict[str, Any], layers: object, counts: list[int]) -> None:
    given: dict[str, Any] = {"options": options, "pipeline": {"virtual_stages": 2, "layers": layers}}
    assert _counts({"pp": 2}, **given) == counts
    assert simulate(small.scenario("megatron", {"pp": 2}, model=DEEP, microbatches=8, **given)).status == "ok"


@pytest.mark.parametrize(("ends", "chunks", "blocks", "counts"), [
    (("embedding", "loss"), 1, 6, [3, 3]), (("loss",), 1, 7, [4, 3]), (("embedding",), 2, 7, [1, 2, 2, 2])])
def test_the_embedding_and_the_loss_may_count_as_layers(ends: tuple[str, ...], chunks: int, blocks: int,
                                                        counts: list[int]) -> None:
    model = {"config": "llama-tiny", "overrides": {"num_hidden_layers": blocks}}
    options = {f"account_for_{end}_in_pipeline_split": True for end in ends}
    assert _counts({"pp": 2}, model=model, options=options, pipeline={"virtual_stages": chunks}) == counts


@pytest.mark.parametrize(("told", "mesh", "microbatches", "pipeline", "options"), [
    ("should be greater than 1", {}, 8, {"virtual_stages": 2}, {}),
    ("must be divisible by virtual pipeline parallel degree 3", {"pp": 2}, 8, {"virtual_stages": 3}, {}),
    ("should range in [PP=4, M=2]", {"pp": 4}, 2, {"virtual_stages": 2}, {}),
    ("the remainder of 6 micro-batches divided by 4", {"pp": 4}, 6, {"virtual_stages": 2}, {}),
    ("(3) should range", {"pp": 4}, 8, {"virtual_stages": 2}, {"microbatch_group_size_per_vp_stage": 3}),
    ("expected 4 numbers", {"pp": 2}, 8, {"virtual_stages": 2, "layers": [4, 4]}, {}),
    ("cannot be set at the same time", {"pp": 2}, 8, {"layers": [4, 4]}, {"num_layers_in_first_pipeline_stage": 4}),
    ("gpipe: stages run 1F1B", {"pp": 2}, 8, {"schedule": "gpipe"}, {}),
    ("no virtual stages", {"pp": 2}, 8, {}, {"microbatch_group_size_per_vp_stage": 2}),
    ("no standalone embedding", {"pp": 2}, 8, {}, {"num_layers_in_first_pipeline_stage": 4,
                                                   "account_for_loss_in_pipeline_split": True}),
    ("should be divisible by pipeline_model_parallel_size 3", {"pp": 3}, 8, {}, {}),
])
def test_pipelines_that_core_refuses(told: str, mesh: dict[str, int], microbatches: int, pipeline: dict[str, Any],
                                     options: dict[str, Any]) -> None:
    _refused("illegal", told, mesh, model=DEEP, microbatches=microbatches, pipeline=pipeline, options=options)


def test_a_stage_without_layers_is_not_modelled() -> None:
    _refused("error", "not yet: a stage without layers", {"pp": 2}, model=DEEP, microbatches=8,
             pipeline={"virtual_stages": 2, "layers": [3, 0, 3, 2]})


def _passing(rank: int, num_layers: int, options: dict[str, bool]) -> dict[tuple[str, str], int]:
    """What passes have made and is there when the step is over: messages that the next step's replace."""
    model = {"config": "llama-tiny", "overrides": {"num_hidden_layers": num_layers}}
    program = small.program_of("megatron", {"pp": 2}, rank=rank, model=model, options=options, microbatches=4,
                               pipeline={"virtual_stages": 2})
    slots, held = list(program.tables.slots), dict[tuple[str, str], int]()
    for op, _, slot, amount, _, _ in program.columns.tolist():
        if op in (Op.ALLOC, Op.FREE) and slots[slot][1] in ("activation", "backward_temp"):
            held[slots[slot]] = held.get(slots[slot], 0) + amount
    return {key: size for key, size in held.items() if size}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_first_stage_may_hold_the_embedding_alone(rank: int) -> None:
    """Two layers and both ends in four chunks leave behind what four layers do."""
    ends = {f"account_for_{end}_in_pipeline_split": True for end in ("embedding", "loss")}
    assert _passing(rank, 2, ends) == _passing(rank, 4, {}) != {}


def test_a_hybrid_model_has_virtual_stages_on_main_alone_where_its_pattern_says_so() -> None:
    """nemotron-3-tiny has five layers."""
    given: dict[str, Any] = {"microbatches": 4, "pipeline": {"virtual_stages": 2, "layers": [1, 1, 1, 2]}}
    _refused("illegal", "does not currently support virtual", {"pp": 2}, **given)
    newer = {"framework_version": "main 2026-08-22"}
    asked = small.scenario("megatron", {"pp": 2}, **given).normalised() | newer
    assert simulate(Scenario.model_validate(asked)).status == "ok"
    asked["training"]["pipeline"]["layers"] = "auto"
    report = simulate(Scenario.model_validate(asked))
    assert report.status == "illegal"
    assert "need `|` in its pattern" in report.problems[0].message


def test_every_chunk_has_buffers_of_its_own() -> None:
    """The first chunk of the first rank in buckets, the others in one each (DDP's disable_bucketing)."""
    for rank, chunks in ((0, [0, 1]), (1, [0, 1])):
        plan = small.plan_of("megatron", {"pp": 2, "dp_shard": 2}, rank=rank, model=DEEP, microbatches=8,
                             pipeline={"virtual_stages": 2})
        buffers = rank_buffers(plan)
        assert [buffer.chunk for buffer in buffers] == chunks
        assert [sorted(set(buffer.layers.tolist())) for buffer in buffers] == [
            [layer for layer in chunk if plan.of_layer(layer)] for chunk in plan.chunks]


@pytest.mark.parametrize("overlap", [True, False])
def test_each_chunk_is_reduced_once_and_gathered_once(overlap: bool) -> None:
    plain, virtual = (simulate(small.scenario(
        "megatron", {"pp": 2, "dp_shard": 2}, model=DEEP, microbatches=8, pipeline={"virtual_stages": chunks},
        options={"overlap_grad_reduce": overlap})) for chunks in (1, 2))
    for name in ("reduce_scatter", "all_gather"):
        one, other = ([row for rank in report.ranks for row in rank.traffic if row.collective == name]
                      for report in (plain, virtual))
        assert sum(row.calls for row in other) == 2 * sum(row.calls for row in one) == 4
        assert sum(row.payload_bytes for row in other) >= sum(row.payload_bytes for row in one)


# ---- Muon -----------------------------------------------------------------------------------------------------------
MUON = {"name": "muon"}


def _states_of(letters: str, **overrides: Any) -> dict[str, set[str]]:
    """Parameter -> its states beside the master."""
    model = {"config": "nemotron-3-tiny", "overrides": {"hybrid_override_pattern": letters,
                                                        "num_hidden_layers": len(letters), **overrides}}
    plan = small.plan_of("megatron", model=model, optimizer=MUON)
    assert all(dict(p.states)["master_param"] == 4 * p.local for kind in plan.kinds for p in kind if p.trainable)
    return {p.spec.name: {name for name, _ in p.states} - {"master_param"}
            for kind in plan.kinds for p in kind if p.trainable}


def test_matrices_go_to_muon_and_the_rest_to_adam() -> None:
    states = _states_of("ME*-", position_embedding_type="learned_absolute", max_position_embeddings=64)
    muons = {name for name, kept in states.items() if kept == {"momentum_buffer"}}
    assert muons == {
        "embedding.position_embeddings.weight", "mixer.in_proj.weight", "mixer.out_proj.weight", "mlp.router.weight",
        "mlp.experts.linear_fc1.weight", "mlp.experts.linear_fc2.weight", "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_experts.linear_fc2.weight", "self_attention.linear_proj.weight",
        "self_attention.linear_qkv.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"}
    assert all(kept == {"exp_avg", "exp_avg_sq"} for name, kept in states.items() if name not in muons)
    assert {"embedding.word_embeddings.weight", "output_layer.weight", "mixer.conv1d.weight"} <= set(states) - muons


def test_muon_is_not_cut_over_data_parallel_ranks() -> None:
    placed = small.plan_of("megatron", {"dp_shard": 2}, optimizer=MUON).of_layer(1)
    assert {size for p in placed if p.spec.name == "mixer.in_proj.weight" for _, size in p.states} == {
        4 * placed[4].local}
    assert placed[4].spec.name == "mixer.in_proj.weight"
    whole = {"use_distributed_optimizer": True}
    _refused("illegal", "muon with dist optimizer is not supported", optimizer=MUON, options=whole)
    _refused("illegal", "muon with fp16 is not supported", optimizer=MUON, precision={"compute": "fp16"})
    _refused("illegal", "only supported with adam", optimizer=MUON, options={"use_precision_aware_optimizer": True})


@pytest.mark.parametrize(("letters", "largest"), [
    ("M", 12 * (2 * 256 + 2 * 2 * 32 + 8) * 256),  # z, x, B, C and dt of 256 columns: in_proj
    # q of 256 rows, k and v of 128: with q done, all three and q beside 12 bytes of v; or 12 of q beside all three
    ("*", max(4 * 512 * 256 + 12 * 256 * 256, 4 * 512 * 256 + 4 * (256 + 128) * 256 + 12 * 128 * 256))])
def test_muon_works_on_one_matrix_at_a_time(letters: str, largest: int) -> None:
    model = {"config": "nemotron-3-tiny", "overrides": {"hybrid_override_pattern": letters, "num_hidden_layers": 1}}
    program = small.program_of("megatron", model=model, optimizer=MUON)
    found = [amount for *_, amount in small.postings(program, "orthogonalised")]
    assert found == [largest, -largest]
    assert not small.postings(small.program_of("megatron", model=model), "orthogonalised")


def test_what_is_assumed_of_muon_is_told() -> None:
    told = []
    for given in ({}, {"optimizer": MUON}, {"optimizer": {"name": "dist_muon"}}):
        report = simulate(small.scenario("megatron", {"dp_shard": 2}, **given))  # type: ignore[arg-type]
        told.append([a.value.partition(",")[0] for a in report.assumptions if a.what == "training.optimizer.name"])
    assert [len(values) for values in told] == [0, 1, 2]
    assert told[1] == ["muon_tp_mode blockwise"]


def test_parameters_are_dealt_out_to_and_fro() -> None:
    """Upstream's own example: ten by size over four ranks."""
    sizes = [(size, size % 2 == 0, False, 0) for size in range(10)]
    held = [(0, 7, 8), (1, 6, 9), (2, 5), (3, 4)]
    even, odd = ([sum(n for n in mine if n % 2 == rest) for mine in held] for rest in (0, 1))
    assert _deal(sizes, 4) == tuple((even[rank], odd[rank]) for rank in range(4))


def test_matrices_are_packed_by_their_work_and_the_rest_is_cut_even() -> None:
    """The dearest first, to the rank with the least work, within 1.3 times the mean of elements."""
    matrices = [(6, True, False, 90), (6, True, False, 80), (2, True, False, 30), (2, True, False, 20),
                (4, True, False, 10)]
    # At most 13 elements a rank: 90 | 80, then 30 to the second, 20 to the first; of 110 each the first takes the last.
    assert _pack([*matrices, (7, False, False, 7)], 2) == ((12, 4), (8, 4))
    # One matrix is more than any rank may hold: it goes where least lies.
    assert _pack([(9, True, False, 9), (1, True, False, 1)], 2) == ((9, 0), (1, 0))


def test_main_packs_what_muon_updates_and_cuts_what_adam_does() -> None:
    given: dict[str, Any] = {"model": "llama-tiny", "optimizer": {"name": "dist_muon"}, "version": "main 2026-08-22"}
    job, table = small.prepared("megatron", {"dp_shard": 4}, **given)
    _, plain = small.prepared("megatron", {"dp_shard": 4}, options={"use_layer_wise_param_layout": False}, **given)
    assert job.autos["framework_options.use_layer_wise_param_layout"][0] == "true"
    shares, dealt = (made.dealt[0].shares[0] for made in (table, plain))
    assert len({adam for _, adam in shares}) == 1
    assert len({adam for _, adam in dealt}) > 1
    assert sum(muon for muon, _ in shares) == sum(muon for muon, _ in dealt)
    program = small.program_of("megatron", {"dp_shard": 4}, **given)
    assert not any(amount for *_, amount in small.postings(program, "updated_parameters"))
    assert any(what == "framework_options.use_layer_wise_param_layout" and kind == "assumed"
               for what, _, kind, _ in table.assumptions)


@pytest.mark.parametrize(("version", "optimizer", "told"), [
    ("auto", "dist_muon", "core 0.16.1 has no such layout"), ("main 2026-08-22", "adam", r"the layer-wise optimizer")])
def test_where_there_is_no_layer_wise_layout(version: str, optimizer: str, told: str) -> None:
    _refused("illegal", told, {"dp_shard": 4}, model="llama-tiny", optimizer={"name": optimizer}, version=version,
             options={"use_layer_wise_param_layout": True})


def _dealt_states(rank: int, mesh: dict[str, int]) -> tuple[int, int]:
    """Masters, and the other states, of one rank."""
    program = small.program_of("megatron", mesh, rank=rank, model="llama-tiny", optimizer={"name": "dist_muon"})
    first, second = (small.postings(program, f"layer_wise.{name}") for name in ("master_param", "states"))
    return first[0][2], second[0][2]


def test_the_layer_wise_optimizer_keeps_whole_parameters_on_one_rank_each() -> None:
    whole = small.plan_of("megatron", model="llama-tiny", optimizer=MUON)
    per_rank = [_dealt_states(rank, {"dp_shard": 4}) for rank in range(4)]
    states = [dict(p.states) for kind, count in whole.kind_counts for p in whole.kinds[kind] for _ in range(count)]
    assert sum(masters for masters, _ in per_rank) == sum(found["master_param"] for found in states)
    assert sum(rest for _, rest in per_rank) == sum(sum(found.values()) - found["master_param"] for found in states)
    assert len({masters for masters, _ in per_rank}) > 1, "nothing is cut to make them equal"


def test_the_rank_that_keeps_most_is_a_class_of_its_own() -> None:
    report = simulate(small.scenario("megatron", {"dp_shard": 4}, model="llama-tiny", optimizer={"name": "dist_muon"}))
    assert report.status == "ok", report.problems
    ends = [rank.end_bytes or 0 for rank in report.ranks]
    heaviest = max(range(4), key=lambda rank: sum(_dealt_states(rank, {"dp_shard": 4})))
    assert [rank.end_bytes for rank in report.ranks if rank.ranks == (str(heaviest),)] == [max(ends)]
    # By component the mean of all ranks is told, of a single rank too.
    alone = place(small.scenario("megatron", {"dp_shard": 4}, model="llama-tiny", optimizer={"name": "dist_muon"}),
                  rank=heaviest)
    assert all(rank.apportioned for rank in (*report.ranks, *alone.ranks))


def test_updated_parameters_are_gathered_from_all_ranks() -> None:
    """bf16, all of them and this rank's own again; then they go."""
    program = small.program_of("megatron", {"dp_shard": 4}, rank=1, model="llama-tiny", optimizer={"name": "dist_muon"})
    whole = small.plan_of("megatron", model="llama-tiny").graph.count()
    own = _dealt_states(1, {"dp_shard": 4})[0] // 4
    assert [amount for *_, amount in small.postings(program, "updated_parameters")] == [
        2 * (whole + own), -2 * (whole + own)]
    _refused("illegal", "muon with dist optimizer is not supported", optimizer={"name": "dist_muon"},
             options={"use_distributed_optimizer": True})


# ---- hybrids that predict further tokens ----------------------------------------------------------------------------
LIGHT = {"config": "nemotron-3-tiny", "overrides": {"mtp_num_layers": 2, "mtp_hybrid_override_pattern": "*E",
                                                    "mtp_use_repeated_layer": True}}


def test_a_hybrid_predicts_further_tokens_in_the_main_branch() -> None:
    _refused("illegal", "needs framework_version: main 2026-08-22", model=LIGHT)
    later = {"framework_version": "main 2026-08-22"}
    scenario = small.scenario("megatron", {"dp_shard": 2, "ep": 2}, model=LIGHT).model_copy(update=later)
    plain = small.scenario("megatron", {"dp_shard": 2, "ep": 2}).model_copy(update=later)
    peaks = [simulate(one).ranks[0].peak for one in (scenario, plain)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[0].allocated_bytes > peaks[1].allocated_bytes
    staged = small.scenario("megatron", {"pp": 2}, model=LIGHT, pipeline={"layers": [3, 2]}).model_copy(update=later)
    assert "runs several times, with stages" in simulate(staged).problems[0].message


def _libraries(mesh: dict[str, int], **given: Any) -> KernelLibraries:
    return small.prepared("megatron", mesh, **given)[1].libraries


def test_the_host_waits_for_messages_unless_they_overlap() -> None:
    """Bridge 0.3.1 `training/comm_overlap.py`: batched and waited for, but with virtual stages."""
    assert not _libraries({}, model=DEEP).waits_for_messages
    assert _libraries({"pp": 2}, model=DEEP).waits_for_messages
    assert not _libraries({"pp": 2}, model=DEEP, microbatches=4, pipeline={"virtual_stages": 2}).waits_for_messages


def test_a_host_that_waits_for_messages_makes_the_bubble_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model runs at the pace of its host, which would else issue ahead of what has not arrived.

    Stages are not quite equal, so that three of four times its own work is not met to the digit.
    """
    def spent() -> tuple[float, float]:
        found = simulate(small.scenario("megatron", {"pp": 4}, model=DEEP, microbatches=4)).time
        assert found is not None
        work = found.parts["host"] - load_efficiency("h100").host.step.si
        return found.parts["bubble"] / work, found.step_s

    def at_once(*given: Any, stops_at_messages: bool, **more: Any) -> RankStreams:
        assert stops_at_messages
        return tracks(*given, **more)

    bubble, step_s = spent()
    assert bubble == pytest.approx(3 / 4, abs=0.2)
    monkeypatch.setattr("simcore.timing.step.tracks", at_once)
    assert spent()[1] < step_s


def test_deterministic_mode_slows_the_host() -> None:
    assert _libraries({}, options={"deterministic_mode": True}).fills
    assert not _libraries({}).fills


@pytest.mark.parametrize(("preset", "told"), [("moonlight-16b-a3b", True), ("deepseek-v2-lite", True),
                                              ("deepseek-v3", False)])
def test_a_dropped_null_is_told(preset: str, told: bool) -> None:
    """AutoBridge 0.3.1 builds an inner rank of 512 where `q_lora_rank` is null."""
    report = place(small.scenario("megatron", {"dp_shard": 2}, model=preset))
    assert report.status == "ok"
    assert any(a.what == "model.q_lora_rank" and "512" in a.value for a in report.assumptions) == told


@pytest.mark.parametrize(("model", "tied"), [("deepseek-v2-lite", False), ("gpt-oss-20b", False), ("qwen3-8b", True)])
def test_bridges_that_ignore_a_tied_head(model: str, tied: bool) -> None:
    overrides = {"tie_word_embeddings": True, "num_hidden_layers": 2}
    report = place(small.scenario("megatron", {"dp_shard": 2}, model={"config": model, "overrides": overrides}))
    assert report.status == "ok"
    assert ("lm_head" not in report.ranks[0].at_rest) == tied
    assert any("is ignored" in a.value for a in report.assumptions if a.what == "model.tie_word_embeddings") != tied


def test_optimizer_instances_need_the_distributed_optimizer() -> None:
    _refused("illegal", "Partial DistOpt cannot be used without DistOpt", {"dp_shard": 2, "dp_replicate": 2},
             options={"use_distributed_optimizer": False})


def test_experts_with_biases_are_not_cut_by_width() -> None:
    _refused("illegal", "Bias in Moe is only supported when ETP==1", {"dp_shard": 2, "tp": 2}, model="gpt-oss-20b")
    assert place(small.scenario("megatron", {"dp_shard": 2, "tp": 2, "etp": 1}, model="gpt-oss-20b")).status == "ok"


@pytest.mark.parametrize(("targets", "status"), [(["linear_proj", "linear_fc2"], "ok"), (["linear_qkv"], "illegal")])
def test_a_rank_that_tp_does_not_divide(targets: list[str], status: str) -> None:
    """The first matrix of a row-parallel linear's pair is cut over its columns, not over the rank."""
    lora = {"rank": 3, "target_modules": targets}
    report = place(small.scenario("megatron", {"dp_shard": 2, "tp": 2}, model="llama-3.1-8b", method="lora", lora=lora))
    assert report.status == status


def test_adapters_of_experts_that_are_no_grouped_gemm() -> None:
    single = {"moe_grouped_gemm": False}
    for lora in ({"target_modules": ["linear_fc1"]}, {"exclude_modules": ["output_layer"]}):
        _refused("error", "adapters of experts that are no grouped GEMM", {"dp_shard": 2}, options=single,
                 method="lora", lora={"rank": 4, **lora})
    given = {"rank": 4, "target_modules": ["linear_qkv"]}
    assert place(small.scenario("megatron", {"dp_shard": 2}, options=single, method="lora", lora=given)).status == "ok"
