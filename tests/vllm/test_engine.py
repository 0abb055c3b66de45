"""The engine's budget: what is asked for, what goes first, what is left for the cache, and when it does not start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simcore.hardware.topology import load_topology
from simcore.inputs.generation import Generation
from simcore.models.graph import architecture_of, model_config
from simcore.vllm.engine import Engine, Limits, default_limits, release_of
from simcore.vllm.release import RELEASES

GIB = 2**30
H100 = load_topology("dgx-h100")
NARROWER = 23 * 128 * 2688 * (4 - 2)
"""Bytes by which Nano's routers are smaller in 16 bits."""
NANO = architecture_of(model_config("nemotron-3-nano-30b-a3b", None, ""))


def engine(length: int = 262144, **given: object) -> Engine:
    asked = Generation.model_validate({"tp": 4, **given})
    return Engine(NANO, asked, H100, length, release_of(asked, "0.12.0"), default_limits(H100, "server", length),
                  utilization=asked.gpu_memory_utilization or 0.9)


def test_everything_asked_for_is_used_but_for_less_than_a_block() -> None:
    serving_engine = engine()
    held = serving_engine.held()
    inside = sum(held.values()) - held["graph_pool"]
    assert 0 <= serving_engine.requested_bytes - inside < serving_engine.pages.block_bytes
    assert serving_engine.requested_bytes == int(0.9 * H100.device.usable_bytes)


def test_graphs_come_on_top_or_out_of_the_budget_by_version() -> None:
    old, new = engine(ssm_dtype="fp32"), engine(version="0.25.1", ssm_dtype="fp32")
    before, after = (made.cache_budget + made.profile.highest for made in (old, new))
    assert before - after == GIB - NARROWER
    assert new.graph_bytes == GIB
    assert engine(enforce_eager=True).graph_bytes == 0


def test_the_state_of_a_hybrid_is_wide_in_later_versions() -> None:
    assert [engine(version=name).formats.ssm for name in RELEASES] == ["bf16", "fp32"]
    assert engine(version="0.25.1", ssm_dtype="bf16").formats.ssm == "bf16"


@pytest.mark.parametrize(("topology", "narrow"), [
    ("dgx-h100", True), ("dgx-b200", True), ("dgx-a100", False), ("rtx-pro-6000", False), ("mi300x", False)])
def test_routers_of_a_hybrid_are_narrow_where_later_versions_have_kernels(topology: str, narrow: bool) -> None:
    """vLLM 0.25.1 gate_linear.py: weights in fp32 but on compute capability 9.0 and the family of 10.0."""
    sizes = [replace(engine(version=version), topology=load_topology(topology)).weight_bytes
             for version in ("0.12.0", "0.25.1")]
    assert sizes[0] - sizes[1] == narrow * NARROWER


def test_adapters_take_from_the_cache() -> None:
    plain, two = engine(), engine(max_loras=2, max_lora_rank=16)
    assert plain.adapter_bytes == 0
    assert two.adapter_bytes == 2 * engine(max_loras=1, max_lora_rank=16).adapter_bytes
    assert plain.cache_budget - two.cache_budget == two.adapter_bytes


@pytest.mark.parametrize(("topology", "server", "library"), [
    ("dgx-h100", Limits(8192, 1024), Limits(16384, 1024)), ("dgx-a100", Limits(2048, 256), Limits(8192, 256)),
    ("l40s", Limits(2048, 256), Limits(8192, 256))])
def test_limits_are_those_of_the_device(topology: str, server: Limits, library: Limits) -> None:
    machine = load_topology(topology)
    assert default_limits(machine, "server", 262144) == server
    assert default_limits(machine, "library", 262144) == library
    assert default_limits(machine, "server", 1) == Limits(server.seqs, server.seqs)


@pytest.mark.parametrize(("given", "told"), [
    ({"gpu_memory_utilization": 1.0}, "free memory on startup"), ({"gpu_memory_utilization": 0.2}, "no memory is left"),
    ({"gpu_memory_utilization": 0.24}, "one sequence of 262,144 tokens needs"), ({}, "")])
def test_why_it_does_not_start(given: dict[str, Any], told: str) -> None:
    refusal = engine(**given).refusal
    assert told in refusal
    assert bool(told) == bool(refusal)


def test_a_length_that_is_let_in_starts() -> None:
    short = engine(gpu_memory_utilization=0.24)
    longest = short.pages.longest(short.cache_budget)
    assert replace(short, max_model_len=longest).refusal == ""
    assert f"the longest is {longest:,}" in short.refusal


@pytest.mark.parametrize(("length", "seqs", "tokens"), [
    (4096, 1024, 65536), (512, 16, 4096), (100_000, 16, 65536), (16, 8192, 8192 * 16)])
def test_latent_attention_has_a_workspace_beside_its_cache(length: int, seqs: int, tokens: int) -> None:
    """vLLM 0.25.1 `mla_attention.py`: eight full sequences or four pages each, at most 65,536 tokens of 576 elements.

    At least a page each. The profile run makes room for their keys and values in 16 heads, of which tp has a part; the
    budget misses what is made with the cache.
    """
    moonlight, made = architecture_of(model_config("moonlight-16b-a3b", None, "")), engine(length, version="0.25.1")
    latent = replace(made, architecture=moonlight, limits=Limits(16384, seqs))
    assert latent.pages.token_bytes * latent.pages.attention_layers == 2 * 576 * 27
    assert latent.cache_bytes - latent.cache.num_bytes == 2 * 576 * tokens
    assert latent.held()["kv_cache"] == latent.cache_bytes
    assert latent.profile.forward > 2 * tokens * 4 * 256
    assert made.cache_bytes == made.cache.num_bytes
