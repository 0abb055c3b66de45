"""Workspaces by library, architecture and setting: bytes written down by hand from upstream's source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.memory.workspace import WorkspaceInputs, spaces
from simcore.models.blocks import Attention
from simcore.placement.plan import Plan, place
from simcore.simulate import simulate
from simcore.units import parse_cublas

LLAMA = "llama-tiny"
GPT = {"config": "gpt2", "overrides": {"n_embd": 256, "n_head": 4, "n_layer": 2, "vocab_size": 512}}
MIB = 2**20
OLD_DEFAULT = 8_519_680  # :4096:2:16:8
TE = 32 * MIB + 1024
HOPPER = WorkspaceInputs(9, None, 2, 64)


def plan(scenario: Scenario, rank: int = 0, **libraries: Any) -> Plan:
    job, framework = prepare(scenario)
    framework = replace(framework, libraries=replace(framework.libraries, **libraries))
    return place(job.graph, job.mesh, framework, rank)


def sizes(plan: Plan, setting: WorkspaceInputs = HOPPER) -> dict[str, int]:
    return {space.name: space.num_bytes for space in spaces(plan, setting)}


@pytest.mark.parametrize(("capability", "date", "size"), [
    (8, "2026-08", OLD_DEFAULT), (9, "2025-01", 32 * MIB), (10, "2026-01", OLD_DEFAULT), (10, "2026-07", 32 * MIB),
    (12, "2026-07", 32 * MIB)])
def test_torch_gives_cublas_one_for_each_thread(capability: int, date: str, size: int) -> None:
    num_bytes = sizes(plan(small.scenario("fsdp2"), date=date), replace(HOPPER, capability=capability))
    assert num_bytes == {"cublas_workspace.forward": size, "cublas_workspace.backward": size}


def test_the_variable_beats_the_default() -> None:
    num_bytes = sizes(plan(small.scenario("fsdp2")), replace(HOPPER, cublas_bytes=parse_cublas(":4096:2:16:8")))
    assert num_bytes["cublas_workspace.backward"] == OLD_DEFAULT


@pytest.mark.parametrize(("text", "size"), [(":4096:8", 32 * MIB), (":4096:2:16:8", OLD_DEFAULT)])
def test_the_variable_counts_kib(text: str, size: int) -> None:
    assert parse_cublas(text) == size


@pytest.mark.parametrize("text", ["4096:8", ":4096", ":a:8", "", ":4096:8 "])
def test_another_spelling_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pairs of :SIZE:COUNT"):
        parse_cublas(text)


@pytest.mark.parametrize(("capability", "date", "size"), [(8, "2026-08", 4 * MIB), (9, "2026-01", TE),
                                                          (10, "2026-01", TE), (9, "2025-09", 32 * MIB)])
def test_te_has_one_and_four_for_experts(capability: int, date: str, size: int) -> None:
    placed = plan(small.scenario("megatron"), date=date)
    num_bytes = sizes(placed, replace(HOPPER, capability=capability))
    assert (num_bytes["te_workspace"], num_bytes["te_workspace.grouped_gemm"]) == (size, 4 * size)
    assert "te_workspace.user_buffers" not in num_bytes


def test_user_buffers_take_three_more() -> None:
    assert sizes(plan(small.scenario("megatron"), te_overlap=True))["te_workspace.user_buffers"] == 3 * TE


def test_plain_torch_has_none_of_te() -> None:
    for name in ("fsdp2", "automodel"):
        assert all(name.startswith("cublas_workspace") for name in sizes(plan(small.scenario(name))))


def test_a_dense_stage_of_te_linears_without_a_head_gives_cublas_nothing() -> None:
    """Router and output layer are torch's own products."""
    dense = small.scenario("megatron", {"pp": 2}, model=LLAMA)
    first, last = (sizes(plan(dense, rank)) for rank in (0, 1))
    assert "cublas_workspace.forward" not in first
    assert last["cublas_workspace.forward"] == 32 * MIB
    assert "te_workspace.grouped_gemm" not in last


def test_sequence_parallel_gathers_the_output_layers_input_into_a_global_buffer() -> None:
    mesh = {"tp": 2, "pp": 2}
    first, last = (sizes(plan(small.scenario("megatron", mesh, model=LLAMA), rank)) for rank in (0, 2))
    hidden = prepare(small.scenario("megatron", model=LLAMA))[0].graph.architecture.hidden
    assert last["global_memory_buffer"] == 2 * 64 * hidden * 2
    assert "global_memory_buffer" not in first
    lora = small.scenario("megatron", mesh, model=LLAMA, method="lora")
    assert "global_memory_buffer" not in sizes(plan(lora, 2))


@pytest.mark.parametrize(("tp", "square"), [(1, 4), (2, 2)])
def test_cores_own_attention_has_its_scores_input_in_the_global_buffer(tp: int, square: int) -> None:
    """Four heads over tp, two sequences of 64, bf16; the buffer is one, as large as its largest user wants."""
    local = {"transformer_impl": "local", "cross_entropy_loss_fusion": False}
    placed = plan(small.scenario("megatron", {"tp": tp}, model=GPT, options=local))
    assert sizes(placed)["global_memory_buffer"] == max(2 * square * 64 * 64 * 2, 2 * 64 * 256 * 2 * (tp > 1))
    assert "global_memory_buffer" not in sizes(plan(small.scenario("megatron", model=GPT)))


def test_the_all_gather_dispatcher_gathers_tokens_into_the_global_buffer() -> None:
    """Two sequences of 64 tokens from each of four ranks, 256 wide, bf16; not where nothing is gathered."""
    options = {"moe_token_dispatcher_type": "allgather"}
    for mesh, ranks in (({"dp_shard": 4, "ep": 4}, 4), ({"dp_shard": 4}, 0)):
        num_bytes = sizes(plan(small.scenario("megatron", mesh, options=options)))
        assert num_bytes.get("global_memory_buffer", 0) == ranks * 2 * 64 * 256 * 2
    assert "global_memory_buffer" not in sizes(plan(small.scenario("megatron", {"dp_shard": 4, "ep": 4})))


def test_angles_are_cached_where_a_model_turns_heads() -> None:
    placed = plan(small.scenario("megatron", model=LLAMA))
    blocks = [branch.block for kind in placed.graph.kinds for branch in kind.branches]
    (head_dim,) = {block.head_dim for block in blocks if isinstance(block, Attention)}
    assert sizes(placed)["rope_cache"] == 64 * head_dim * 4
    assert "rope_cache" not in sizes(plan(small.scenario("megatron")))


def test_workspaces_stand_through_the_whole_step() -> None:
    """They are in the ledger, under their own category, at the peak and at the end."""
    report = simulate(small.scenario("megatron"), timed=False)
    rank = report.ranks[0]
    assert rank.peak is not None
    assert rank.end_bytes is not None
    kept = rank.peak.by_category["workspace"]
    assert kept >= sum(sizes(plan(small.scenario("megatron"))).values())
    assert rank.end_bytes > kept
    assert {o.owner.partition("/")[2] for o in rank.peak.top if o.category == "workspace"} >= {"te_workspace"}
