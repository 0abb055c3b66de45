"""A rank's parameters in Megatron's buffers: dense and expert apart, padding, and what lies in its own part."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.megatron.flat_parameters import exact_at_rest, padding_elements, rank_buffers, registered_pools
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.simulate import simulate


def plan(rank: int = 0, **mesh: int) -> Plan:
    return small.plan_of("megatron", mesh, rank=rank)


def trained(found: Plan, *, expert: bool) -> int:
    return sum(p.local for layer in found.layers for p in found.of_layer(layer)
               if p.trainable and (p.spec.component == "routed_experts") == expert)


def test_experts_have_a_buffer_of_their_own_under_expert_parallelism() -> None:
    found = plan(dp_shard=4, ep=2)
    dense, expert = rank_buffers(found)
    assert (dense.axis, expert.axis) == ("dp_cp", "expert_dp")
    assert dense.flat.numel - dense.flat.padding == trained(found, expert=False)
    assert expert.flat.numel - expert.flat.padding == trained(found, expert=True)
    assert padding_elements(found) == dense.flat.padding + expert.flat.padding


def test_without_it_there_is_one() -> None:
    (buffer,) = rank_buffers(plan(dp_shard=4))
    assert buffer.flat.numel % (4 * 32) == 0


def test_a_grouped_tensor_is_one_entry_an_expert() -> None:
    """Two MoE layers of two matrices of 8 / 2 experts."""
    _, expert = rank_buffers(plan(dp_shard=4, ep=2))
    assert len(expert.layers) == 2 * 2 * 4
    assert set((expert.flat.ends - expert.flat.starts).tolist()) == {128 * 256}


@pytest.mark.parametrize("shards", [2, 3, 5])
def test_states_inside_the_parts_of_all_ranks_are_all_states(shards: int) -> None:
    plans = [plan(rank, dp_shard=shards) for rank in range(shards)]
    exact = sum(r.optimizer_bytes for p in plans for r in exact_at_rest(p).values())
    assert exact == 12 * sum(t.numel * t.copies for layer in plans[0].graph.layers
                             for t in plans[0].graph.tensors[layer.kind] if t.is_owned)


def test_whole_states_are_nobodys_part() -> None:
    """Without the distributed optimizer every rank holds all states."""
    found = small.plan_of("megatron", {"dp_shard": 4}, rank=1, options={"use_distributed_optimizer": False})
    assert sum(r.optimizer_bytes for r in exact_at_rest(found).values()) == 12 * (
        trained(found, expert=False) + trained(found, expert=True))


def test_only_states_differ_from_the_class_mean() -> None:
    found = plan(1, dp_shard=3)
    mean, exact = found.at_rest(), exact_at_rest(found)
    assert mean.keys() == exact.keys()
    assert {n: (r.params_bytes, r.grads_bytes, r.num_params) for n, r in mean.items()} == {
        n: (r.params_bytes, r.grads_bytes, r.num_params) for n, r in exact.items()}


def test_frozen_parameters_are_in_no_buffer() -> None:
    found = small.plan_of("megatron", {"dp_shard": 2}, method="lora", lora={"rank": 8})
    (buffer,) = rank_buffers(found)
    adapters = sum(p.local for layer in found.layers for p in found.of_layer(layer) if p.trainable)
    assert buffer.flat.numel - buffer.flat.padding == adapters


@pytest.mark.parametrize(("rank", "tied", "buckets"), [(0, True, 2), (0, False, 1), (2, True, 2), (2, False, 1)])
def test_a_shared_embedding_has_a_bucket_of_its_own(rank: int, tied: bool, buckets: int) -> None:
    """On the first stage and on the last, which holds a copy (core 0.16.1 `_does_param_require_new_bucket`)."""
    model = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": tied}}
    (buffer,) = rank_buffers(small.plan_of("megatron", {"pp": 2, "dp_shard": 2}, rank=rank, model=model))
    assert len(buffer.flat.buckets) == buckets
    (whole,) = rank_buffers(small.plan_of("megatron", {"dp_shard": 4}, model=model))
    assert len(whole.flat.buckets) == 1
    (plain,) = rank_buffers(small.plan_of("megatron", {"pp": 2, "dp_shard": 2}, rank=rank, model=model,
                                          options={"use_distributed_optimizer": False}))
    assert len(plain.flat.buckets) == 1


def test_biases_of_a_grouped_gemm_lie_between_its_weights() -> None:
    """weight0, bias0, weight1, bias1 (TE's grouped_linear.py), laid out from behind."""
    model = {"config": "gpt-oss-20b", "overrides": {"num_hidden_layers": 2, "num_local_experts": 8}}
    _, expert = rank_buffers(small.plan_of("megatron", {"dp_shard": 4, "ep": 4}, model=model))
    sizes = (expert.flat.ends - expert.flat.starts).tolist()
    assert sizes[:4] == [2 * 2880 * 2880, 2 * 2880] * 2
    assert sizes[4:8] == [2880 * 2880, 2880] * 2


def test_experts_that_predict_further_tokens_lie_with_the_others() -> None:
    """Two layers with four experts a rank, and the module's: two matrices each."""
    model = {"config": "moonlight-16b-a3b", "overrides": {"num_hidden_layers": 3, "n_routed_experts": 8,
                                                          "mtp_num_layers": 1}}
    _, expert = rank_buffers(small.plan_of("megatron", {"dp_shard": 4, "ep": 2}, model=model))
    assert len(expert.layers) == 3 * 2 * 4


def test_a_number_of_buckets_shares_out_the_parameters_of_the_first_stage() -> None:
    """A seventh of all layers; the second of two stages has one bucket in any case."""
    for mesh in ({"dp_shard": 2}, {"dp_shard": 2, "pp": 2}):
        found = small.plan_of("megatron", mesh, model="llama-tiny", options={"num_buckets": 7})
        numel = sum(p.spec.numel for layer in found.layers for p in found.of_layer(layer) if not p.spec.is_buffer)
        assert found.framework.strategy.elements_per_call == numel // 7
        buffer = rank_buffers(found)[0].flat
        assert all(end - start >= numel // 7 for start, end in buffer.buckets[:-1])
        assert len(buffer.buckets) > 2
    assert len(rank_buffers(small.plan_of("megatron", {"dp_shard": 2, "pp": 2}, rank=2, model="llama-tiny", options={
        "num_buckets": 7}))[0].flat.buckets) == 1


def test_registered_pools_have_what_the_buffers_have() -> None:
    """Parameters and gradients; without the distributed optimizer gradients alone; mxfp8 weights share its memory."""
    def pools(options: dict[str, Any], **given: Any) -> tuple[tuple[int, ...], ...]:
        found = small.plan_of("megatron", {"dp_shard": 2}, options={"nccl_ub": True} | options, **given)
        assert len(registered_pools(found)) == len(rank_buffers(found))
        return tuple((params // buffer.flat.numel, grads // buffer.flat.numel)
                     for (params, grads), buffer in zip(registered_pools(found), rank_buffers(found), strict=True))

    assert pools({}, model="llama-tiny") == ((2, 4),)
    assert pools({"use_distributed_optimizer": False}, model="llama-tiny") == ((0, 4),)
    wide = {"config": "llama-tiny", "overrides": {"intermediate_size": 512}}
    assert set(pools({"fp8_recipe": "mxfp8", "fp8_param_gather": True}, model=wide, topology="gb200-nvl72",
                     precision={"compute": "fp8"})) == {(2, 4), (0, 4)}


@pytest.mark.parametrize(("version", "is_legal"), [("auto", False), ("main 2026-08-22", True)])
def test_registered_buffers_and_expandable_segments(version: str, is_legal: bool) -> None:
    """The release refuses both; main does so with torch before 2.11 alone."""
    asked = small.scenario("megatron", {"dp_shard": 2}, model="llama-tiny", version=version, options={"nccl_ub": True})
    report = simulate(Scenario.model_validate(asked.normalised() | {"environment": {"expandable_segments": True}}),
                      timed=False)
    assert report.status == ("ok" if is_legal else "illegal")
    assert is_legal or "not supported with nccl_ub" in report.problems[0].message
