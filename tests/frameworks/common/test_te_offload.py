"""Layers whose saved tensors wait on the host under Megatron-Core and Megatron-FSDP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.recording.host_copies import FROM_HOST
from simcore.recording.tape import Op
from simcore.results.report import Peak, Report
from simcore.simulate import simulate

LAYERS, TOKENS = 6, 4096
HIDDEN, KEYS, INNER, HEADS = 4096, 1024, 14336, 32
SAVED = TOKENS * (2 * (6 * HIDDEN + 2 * KEYS + 3 * INNER) + 4 * HEADS)
"""Bytes of one layer: input, norm, query, attention's output, residual and norm; key, value; gate and up, and their
product; statistics of the softmax, which have fewer than 256 * 1024 elements and stay."""
MODEL = {"config": "llama-3-8b", "overrides": {"num_hidden_layers": LAYERS}}


def ran(layers: int, framework: str = "megatron", options: dict[str, Any] | None = None, **given: Any) -> Report:
    asked = {"offload": {"activations": "host"}} if layers else {}
    options = {**(options or {}), **({"cpu_offloading_num_layers": layers} if layers else {})}
    training = {"seq_len": TOKENS, "microbatches": 2, "model": MODEL, **asked, **given}
    return simulate(small.scenario(framework, {"dp_shard": 2, **training.pop("mesh", {})}, options=options, **training))


def peak_of(report: Report) -> Peak:
    assert report.status == "ok", report.problems
    peak = report.ranks[0].peak
    assert peak is not None
    return peak


def copied(report: Report) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in report.ranks[0].traffic:
        if row.collective == "copy":
            found[row.axis, row.phase] = found.get((row.axis, row.phase), 0) + row.payload_bytes
    return found


@pytest.mark.parametrize("layers", [1, 3, LAYERS - 1])
def test_each_layer_that_leaves_makes_room_for_what_it_saves(layers: int) -> None:
    freed = peak_of(ran(0)).allocated_bytes - peak_of(ran(layers)).allocated_bytes
    assert freed == layers * (SAVED - 4 * TOKENS * HEADS)


@pytest.mark.parametrize("framework", ["megatron", "megatron_fsdp"])
def test_what_leaves_comes_back(framework: str) -> None:
    layers, report = 3, ran(3, framework)
    of_layer = SAVED - 4 * TOKENS * HEADS
    assert peak_of(report).host_bytes == layers * of_layer
    assert copied(report) == {("to_host", "forward"): 2 * layers * of_layer,
                              ("to_device", "backward"): 2 * layers * of_layer}
    assert peak_of(ran(0, framework)).host_bytes == 0


def test_pinned_blocks_are_powers_of_two() -> None:
    report = ran(2)
    assert report.host is not None
    step = next(phase for phase in report.host.phases if phase.phase == "first_step")
    rounded = 6 * 2 * TOKENS * HIDDEN + 2 * 2 * TOKENS * KEYS + (2 * 2 + 2) * TOKENS * 16384
    assert step.by_owner["activations"] == 2 * 2 * rounded


def test_weights_in_8_bits_stay() -> None:
    """Without a cache each forward makes copies of its weights in 8 bits, and saves them."""
    options = {"first_last_layers_bf16": False, "fp8_param_gather": False}
    sent = [peak_of(ran(2, precision={"compute": "fp8"}, options={
        **options, "disable_parameter_transpose_cache": made_anew})).host_bytes for made_anew in (False, True)]
    assert sent[0] == sent[1] > 0


def test_the_device_waits_where_every_layer_but_one_leaves() -> None:
    stays, few, most = (ran(layers).time for layers in (0, 1, LAYERS - 1))
    assert stays is not None
    assert few is not None
    assert most is not None
    assert few.step_s == pytest.approx(stays.step_s, rel=1e-3)
    assert most.step_s > 1.3 * stays.step_s
    assert "time of offload" in {one.what for one in ran(1).assumptions}


# ---- modules ---------------------------------------------------------------------------------------------------------
def by_modules(*modules: str, **options: Any) -> dict[str, Any]:
    return {"offload": {"activations": "host"}, "version": "main 2026-08-22", "options": {
        "fine_grained_activation_offloading": True, "offload_modules": [*modules], **options}}


@pytest.mark.parametrize("framework", ["megatron", "megatron_fsdp"])
def test_attention_leaves_in_all_layers_but_the_last(framework: str) -> None:
    stays = ran(0, framework, version="main 2026-08-22")
    leaves = ran(0, framework, **by_modules("core_attn", "attn_proj"))
    of_layer = 2 * TOKENS * (2 * HIDDEN + 2 * KEYS)
    sent = (LAYERS - 1) * (of_layer + 2 * TOKENS * HIDDEN)
    assert peak_of(leaves).host_bytes == sent, "attention's output is sent twice: linear_proj saves it too"
    assert copied(leaves) == {("to_host", "forward"): 2 * sent, ("to_device", "backward"): 2 * sent}
    if framework == "megatron":
        assert peak_of(stays).allocated_bytes - peak_of(leaves).allocated_bytes == (LAYERS - 1) * of_layer


def test_what_is_too_small_stays() -> None:
    smallest = TOKENS * HIDDEN
    sent = peak_of(ran(0, **by_modules("core_attn", min_offloaded_tensor_size=smallest))).host_bytes
    assert sent == (LAYERS - 1) * 2 * 2 * TOKENS * HIDDEN, "query and output; key and value are smaller"
    assert peak_of(ran(0, **by_modules("core_attn", min_offloaded_tensor_size=smallest + 1))).host_bytes == 0


@pytest.mark.parametrize("framework", ["megatron", "megatron_fsdp"])
def test_modules_leave_in_the_steps_before_a_graph_of_the_whole_step(framework: str) -> None:
    """Megatron-LM d98e8a64 transformer_config.py:2951; the peak is theirs, see cuda_graphs."""
    plain, graphed = (ran(0, framework, **by_modules("core_attn", "attn_proj", **more))
                      for more in ({}, {"cuda_graph_impl": "full_iteration"}))
    assert peak_of(graphed).allocated_bytes == peak_of(plain).allocated_bytes
    assert peak_of(graphed).host_bytes == peak_of(plain).host_bytes > 0
    told = "cuda graphs with modules on the host"
    assert [told in {one.what for one in report.assumptions} for report in (plain, graphed)] == [False, True]


@pytest.mark.parametrize("given", [
    {"model": small.TINY, "mesh": {"dp_shard": 2, "ep": 2}, **by_modules("expert_fc1", min_offloaded_tensor_size=1)},
    {"model": small.TINY, "mesh": {"dp_shard": 2, "ep": 2}, "recompute": ["moe_act", "layernorm"],
     **by_modules("expert_fc1", min_offloaded_tensor_size=1)},
    {"model": {"config": "deepseek-v2-lite", "overrides": {"num_hidden_layers": 3}}, "mesh": {"dp_shard": 2},
     "recompute": ["mla_up_proj"],
     **by_modules("core_attn", "attn_proj", min_offloaded_tensor_size=1)},
    {"model": {"config": "deepseek-v3", "overrides": {"num_hidden_layers": 4, "n_routed_experts": 16}},
     "mesh": {"dp_shard": 2, "ep": 2}, **by_modules("core_attn", min_offloaded_tensor_size=1)},
    {"model": "gpt2", "mesh": {"dp_shard": 2}, "seq_len": 1024, "offload": {"activations": "host"},
     "options": {"cpu_offloading_num_layers": 5}},
    {"model": MODEL, "mesh": {"dp_shard": 2}, "offload": {"activations": "host"},
     "options": {"cpu_offloading_num_layers": 4}}], ids=str)
@pytest.mark.parametrize("framework", ["megatron", "megatron_fsdp"])
def test_every_tensor_that_comes_back_is_freed(framework: str, given: dict[str, Any]) -> None:
    program = small.program_of(framework, microbatches=2, **given)
    program.check()
    held: dict[tuple[int, int], int] = {}
    half = int(np.flatnonzero(program.microbatch == 1)[0])
    for op, layer, slot, amount, *_ in program.columns[half:].tolist():
        if op <= Op.FREE and program.owner(layer, slot)[1] in ("activation", "recompute", "backward_temp"):
            held[layer, slot] = held.get((layer, slot), 0) + amount
    assert {program.owner(*key): size for key, size in held.items() if size and "idle" not in program.owner(*key)[0]
            and "hidden_states" not in program.owner(*key)[0]} == {}
    ways = [0, 0]
    for op, _, _, amount, _, handle in program.columns.tolist():
        if op == Op.COPY:
            ways[handle >= FROM_HOST] += amount
    assert ways[0] == ways[1] > 0


@pytest.mark.parametrize(("told", "given"), [
    ("CPU offloading can be done only for layers less than 6", {"layers": LAYERS}),
    ("Currently there is no support for Pipeline parallelism", {"layers": 1, "mesh": {"pp": 2}}),
    ("does not work when activation recomputation is enabled", {"layers": 1, "recompute": "full"}),
    ("CUDA graphs not supported", {"layers": 1, "options": {"cuda_graph_impl": "local"}}),
    ("whole layers", {"layers": 0, "offload": {"activations": "host"}}),
    ("whole layers", {"layers": 1, "offload": {"activations": {"space": "host", "fraction": 0.5}}}),
    ("nvme under megatron", {"layers": 1, "offload": {"activations": "nvme"}}),
    ("changes nothing", {"layers": 1, "offload": {}}),
    ("adapters", {"layers": 1, "method": "lora"}),
    ("hybrid", {"layers": 1, "model": small.TINY}),
    ("CUDA graph of the whole step", {"layers": 1, "version": "main 2026-08-22",
                                      "options": {"cuda_graph_impl": "full_iteration"}}),
    ("cannot be enabled with cpu_offloading", {"layers": 1, **by_modules("core_attn")}),
    ("in core 0.16.1", {"layers": 0, **by_modules("core_attn"), "version": "auto"}),
    ("requires use_transformer_engine_op_fuser", {"layers": 0, "model": small.TINY, **by_modules("fused_group_mlp")}),
    ("needs a module", {"layers": 0, **by_modules()}),
    ("Invalid choices for offload_modules: mlp", {"layers": 0, **by_modules("mlp")}),
    ("without core_attn", {"layers": 0, **by_modules("attn_proj")}),
    ("what moe_act saves", {"layers": 0, **by_modules("moe_act")}),
    ("no layer any", {"layers": 0, **by_modules("expert_fc1")}),
    ("not the others", {"layers": 0, "model": small.TINY, **by_modules("expert_fc1", "core_attn")}),
    ("entire MoE layer", {"layers": 0, "model": small.TINY, "recompute": ["moe"], **by_modules("expert_fc1")}),
    ("that are recomputed", {"layers": 0, "recompute": "full", **by_modules("core_attn")}),
    ("pipeline stages", {"layers": 0, "mesh": {"pp": 2}, **by_modules("core_attn")}),
    ("graphs capture", {"layers": 0, **by_modules("core_attn", cuda_graph_impl="transformer_engine",
                                                  cuda_graph_scope=["attn"])}),
    ("changes nothing", {"layers": 0, **by_modules("core_attn"), "offload": {}}),
    ("changes nothing", {"layers": 0, "options": {"min_offloaded_tensor_size": 5}})])
def test_what_is_refused(told: str, given: dict[str, Any]) -> None:
    report = ran(**given)
    assert report.status in ("illegal", "error")
    assert told in report.problems[0].message
