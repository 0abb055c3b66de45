"""The part of each tensor that one rank holds, by hand for a tiny model."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout
from simcore.placement.plan import AtRestBytes, Placed, Plan, check_even, cuts


def tensor(plan: Plan, name: str) -> Placed:
    return next(p for specs in plan.kinds for p in specs if p.spec.name == name)


def test_fsdp2_cuts_rows_and_pads_storage() -> None:
    """648 rows over 5 ranks: 130, 130, 130, 130, 128; fp32 parameters with two fp32 moments."""
    rows = []
    for rank in range(5):
        placed = tensor(small.plan_of("fsdp2", {"dp_shard": 5}, rank=rank), "mixer.in_proj.weight")
        rows.append(placed.local // 256)
        assert (placed.padded, placed.rest_bytes) == (130 * 256, 130 * 256 * 4)
        assert placed.used == 648 * 256
        assert placed.state_bytes == 2 * 4 * placed.local
    assert rows == [130, 130, 130, 130, 128]


def test_megatron_cuts_by_the_names_of_dimensions() -> None:
    plan = small.plan_of("megatron", {"dp_shard": 4, "tp": 2, "ep": 4, "etp": 1}, rank=5)
    assert tensor(plan, "self_attention.linear_qkv.weight").local == 512 // 2 * 256
    assert tensor(plan, "self_attention.linear_proj.weight").used_shape == (256, 128)
    assert tensor(plan, "mlp.router.weight").local == 8 * 256
    experts = tensor(plan, "mlp.experts.linear_fc1.weight")
    assert (experts.used_copies, experts.local) == (2, 2 * 128 * 256)


def test_megatron_states_are_twelve_bytes_over_the_data_parallel_ranks() -> None:
    plan = small.plan_of("megatron", {"dp_shard": 4, "cp": 2, "ep": 2})
    dense, expert = tensor(plan, "mlp.router.weight"), tensor(plan, "mlp.experts.linear_fc1.weight")
    assert dense.state_bytes == 12 * 8 * 256 // 8
    assert expert.state_bytes == 12 * (8 // 2) * 128 * 256 // 4


def test_automodel_cuts_experts_on_both_dimensions() -> None:
    plan = small.plan_of("automodel", {"dp_shard": 8, "ep": 4})
    experts = tensor(plan, "mixer.experts.down_projs")
    assert experts.local == (8 // 4) * (128 // 2) * 256
    assert experts.used_shape == (2, 128, 256)
    holder = tensor(plan, "mixer._fp32_params.A_log")
    assert (holder.local, holder.rest_bytes, holder.state_bytes) == (1, 4, 8)


def test_a_tied_head_holds_nothing() -> None:
    model = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
    plan = small.plan_of("fsdp2", {"dp_shard": 2}, model=model)
    head = plan.of_layer(plan.layers[-2])[0]
    assert head.spec.tied
    assert (head.local, head.padded, head.state_bytes) == (0, 0, 0)
    assert head.used == 1000 * 256


def test_frozen_tensors_have_no_states_and_no_gradients() -> None:
    plan = small.plan_of("fsdp2", {"dp_shard": 2}, method="lora", lora={"rank": 4})
    weight, adapter = tensor(plan, "mixer.q_proj.weight"), tensor(plan, "mixer.q_proj.lora_a.weight")
    assert (weight.state_bytes, weight.trainable) == (0, False)
    assert adapter.state_bytes == 2 * 4 * (4 // 2) * 256
    rest = plan.at_rest()
    assert rest["attention"].grads_bytes == rest["attention"].optimizer_bytes == 0
    assert rest["adapters"].num_trainable_params == rest["adapters"].num_params > 0


def test_at_rest_sums_layers_by_component() -> None:
    """Two Mamba, two MoE, one attention layer on one rank, fp32."""
    rest = small.plan_of("fsdp2").at_rest()
    routed = 2 * 2 * 8 * 128 * 256
    assert rest["routed_experts"] == AtRestBytes(4 * routed, 4 * routed, 8 * routed, routed, routed)
    assert rest["norms"].num_params == 6 * 256
    assert "buffer" not in rest


def test_padding_is_what_the_ceiling_adds() -> None:
    """The last of 3 ranks has two rows less of the router's 8, one less of 256, ...: storage is that of the first."""
    first, last = (small.plan_of("fsdp2", {"dp_shard": 3}, rank=rank) for rank in (0, 2))
    assert first.padding_bytes() == 0
    held = [sum(r.params_bytes for r in plan.at_rest().values()) for plan in (first, last)]
    assert last.padding_bytes() == held[0] - held[1] > 0


def test_sums() -> None:
    one = AtRestBytes(1, 2, 3, 4, 5)
    assert one + one == one.times(2) == AtRestBytes(2, 4, 6, 8, 10)


def test_stages_hold_their_layers() -> None:
    plan = small.plan_of("automodel", {"pp": 2}, rank=1)
    assert (plan.stage, plan.layers) == (1, (4, 5, 6, 7, 8))
    assert dict(plan.kind_counts)[plan.graph.layers[5].kind] == 1


def test_even_cuts_are_checked_for_every_kind() -> None:
    job, table = small.prepared("automodel", {"dp_shard": 8, "ep": 4})
    check_even(job.graph, job.mesh, table, "rule")
    with pytest.raises(IllegalLayout):
        small.prepared("automodel", {"dp_shard": 12, "ep": 4})  # expert_dp 3 does not divide 256
    found = cuts(job.graph, table.policies(job.graph))
    assert {axis for _, layout in found for axis, _ in layout} == {"dp_shard_cp", "ep", "expert_dp"}


# ---- bytes on the host -----------------------------------------------------------------------------------------------
LLAMA: dict[str, Any] = {"model": "llama-tiny", "recompute": "full"}


@pytest.mark.parametrize("tokens", [0, 1, 64])
def test_every_layers_input_waits_for_its_replay(tokens: int) -> None:
    plan = small.plan_of("fsdp2", {"dp_shard": 2}, offload={"activations": "host"}, **LLAMA)
    layers, hidden = plan.graph.num_blocks, plan.graph.architecture.hidden
    assert plan.offloaded_input_bytes(tokens) == plan.host_bytes(tokens) == layers * tokens * hidden * 2


def test_what_rests_there_is_added() -> None:
    parts = dict.fromkeys(("params", "gradients", "optimizer"), "host")
    resting, both = (small.plan_of("fsdp2", {"dp_shard": 2}, offload=given, **LLAMA)
                     for given in (parts, parts | {"activations": "host"}))
    assert resting.offloaded_input_bytes(64) == 0
    assert 0 < resting.host_bytes(64) == both.host_bytes(64) - both.offloaded_input_bytes(64)
