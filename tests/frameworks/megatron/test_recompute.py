"""Recomputation that Megatron is asked for: names of modules, modes, groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from frameworks.megatron.asked import DEEP, QWEN3_MOE, V2, assumed, defaults, refused_with, small_model
from simcore.errors import IllegalLayout
from simcore.program.outline import Phase
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.tape import HIDDEN, Op
from simcore.simulate import simulate


@pytest.mark.parametrize("names", [["moee"], ["full"], ["none"], ["moe", "attention"]])
def test_only_upstreams_names_are_recomputed(names: list[str]) -> None:
    refused_with("illegal", f"Invalid choices for recompute_modules: {names[-1]}.", recompute=names)


@pytest.mark.parametrize(("names", "told"), [
    (["mla_up_proj"], "multi_latent_attention"), (["core_attn", "moe_act"], "moe_grouped_gemm")])
def test_a_name_needs_its_module(names: list[str], told: str) -> None:
    refused_with("illegal", told, model="llama-tiny", recompute=names)


def test_activations_of_single_experts_are_not_recomputed() -> None:
    """Core 0.16.1 transformer_config.py:1213 raises where experts are no grouped product."""
    refused_with("illegal", "only supported with moe_grouped_gemm", model=small_model("mixtral-8x7b"),
                 recompute=["moe_act"], options={"moe_grouped_gemm": False})


def test_a_name_without_its_module_does_nothing_and_is_told() -> None:
    """Core refuses none of them (main 2026-08-22 transformer_layer.py:537); a recipe of Bridge's asks for `mlp` so."""
    mixtral = {"model": small_model("mixtral-8x7b"), "recompute": ["core_attn", "shared_experts"]}
    for told, given in (("mlp has no effect: the model has no dense MLP", {"recompute": ["mlp", "core_attn"]}),
                        ("shared_experts has no effect: the model has no shared experts", mixtral),
                        ("moe has no effect: the model has no experts", {"model": "llama-tiny",
                                                                         "recompute": ["moe", "core_attn"]})):
        asked = dict[str, Any](given)
        report, other = (simulate(small.scenario("megatron", {"dp_shard": 2}, **{**asked, "recompute": names}))
                         for names in (asked["recompute"], ["core_attn"]))
        assert report.status == "ok", report.problems
        assert [one.source for one in report.assumptions if one.value == told]
        assert report.ranks[0].peak == other.ranks[0].peak


@pytest.mark.parametrize("name", ["core_attn", "layernorm", "moe", "moe_act", "shared_experts"])
def test_every_other_name_is_served(name: str) -> None:
    assert defaults(recompute=[name])


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
    """The final norm keeps the output of layer 8, and the head keeps the norm's output."""
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
    refused_with("illegal", "granularity selective", model=DEEP, recompute={"mode": "block", "modules": ["mlp"]})
    groups = {"mode": "uniform", "num_layers": 3}
    refused_with("illegal", "groups of 3 layers do not divide the 8", model=DEEP, recompute=groups)
    refused_with("illegal", "groups of 3 layers do not divide the 2", {"pp": 2}, model=DEEP, recompute=groups,
             microbatches=2, pipeline={"virtual_stages": 2})
    refused_with("error", "not yet: recompute per_op", model=DEEP, recompute={"mode": "per_op"})


def test_full_recompute_of_a_hybrid_is_mains() -> None:
    """Core 0.16.1 takes the setting and recomputes nothing (MambaStack.forward)."""
    assert "training.recompute" in assumed(recompute="full")
    assert "training.recompute" not in assumed(recompute="none")
    assert "training.recompute" not in assumed(model=DEEP, recompute="full")


def test_layers_of_a_hybrid_are_not_replayed_under_a_frozen_embedding() -> None:
    """A checkpoint has a backward if its input requires a gradient: Bridge sees to that for TransformerBlock alone."""
    main = "main 2026-08-22"
    with pytest.raises(IllegalLayout, match="element 0 of tensors does not require grad"):
        small.prepared("megatron", {"dp_shard": 2}, method="lora", recompute="full", version=main)
    for given in ({"recompute": "none", "version": main}, {"recompute": "full"},
                  {"recompute": "full", "version": main, "model": "llama-tiny"}):
        small.prepared("megatron", {"dp_shard": 2}, **{"method": "lora"} | given)
