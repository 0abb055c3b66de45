"""Experts that DeepSpeed takes, how it cuts them, and what it refuses: `simcore/frameworks/deepspeed/experts`."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.deepspeed.experts import groups
from simcore.frameworks.deepspeed.experts.joint_gathers import JointGathers
from simcore.frameworks.deepspeed.partitions import groups_of
from simcore.placement.plan import Plan

QWEN = {"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2}}


def asked(stage: int, mesh: dict[str, int], **given: Any) -> Plan:
    return small.plan_of(f"zero{stage}", mesh, **{"model": QWEN, "implementation": "autoep"} | given)


def refusals() -> list[tuple[str, type[Exception], int, dict[str, int], dict[str, Any]]]:
    lora = {"lora": {"rank": 8, "target_modules": ["q_proj"]}, "method": "lora"}
    host = {"offload": {"optimizer": "host"}}
    return [
        ("not divisible by autoep_size=3", IllegalLayout, 2, {"dp_shard": 6, "ep": 3}, {}),
        ("exceeds num_experts=128", IllegalLayout, 2, {"dp_shard": 256, "ep": 256}, {}),
        ("must divide the stage size", IllegalLayout, 2, {"dp_shard": 6, "ep": 4}, {}),
        ("expert-internal tensor parallelism", IllegalLayout, 2, {"dp_shard": 8, "ep": 2, "etp": 2}, {}),
        ("does not support sequence parallelism yet", IllegalLayout, 3, {"dp_shard": 4, "ep": 2, "cp": 2}, {}),
        ("beside its sequence or tensor", NotYet, 2, {"dp_shard": 4, "ep": 2, "cp": 2}, {}),
        ("hpZeRO secondary tensor groups", IllegalLayout, 3, {"dp_shard": 4, "ep": 2},
         {"options": {"zero_hpz_partition_size": 2}}),
        ("no MoE layers detected", IllegalLayout, 2, {"dp_shard": 4, "ep": 2}, lora),
        ("on the host", NotYet, 2, {"dp_shard": 4, "ep": 2}, host),
        ("Contiguous Gradients", IllegalLayout, 2, {"dp_shard": 4, "ep": 2},
         {"options": {"contiguous_gradients": False}}),
        ("in turns", NotYet, 2, {"dp_shard": 4, "ep": 2}, {"options": {"round_robin_gradients": True}}),
        ("implementation: autoep", NotYet, 2, {"dp_shard": 4, "ep": 2}, {"implementation": "hf"}),
        ("served: mixtral, qwen2_moe, qwen3_moe", NotYet, 2, {"dp_shard": 4, "ep": 2}, {"model": "llama-3.2-3b"}),
        ("auto_ep_layer.py:621", IllegalLayout, 2, {"dp_shard": 4, "ep": 2}, {"routing": {"capacity_factor": 1.5}}),
        ("transformers 5.23 integrations/moe.py", IllegalLayout, 2, {"dp_shard": 4},
         {"routing": {"capacity_factor": 1.5}, "implementation": "hf"}),
        ("not yet: Liger's kernels in layers with", NotYet, 2, {"dp_shard": 4, "ep": 2},
         {"options": {"use_liger_kernel": True}}),
        ("not yet: Liger's kernels in layers with", NotYet, 3, {"dp_shard": 4, "ep": 2},
         {"options": {"liger_rms_norm": True}}),
        ("drawn at random", NotYet, 2, {"dp_shard": 4, "ep": 2}, {"routing": {"seed": 1}}),
    ]


def test_what_deepspeed_refuses_and_what_is_not_known_is_refused_by_name() -> None:
    for message, error, stage, mesh, given in refusals():
        with pytest.raises(error, match=message):
            asked(stage, mesh, **given)


def test_experts_are_cut_over_ep_and_their_states_over_ranks_with_the_same() -> None:
    """A rank of 4 has 32 of 128 experts; of their states one of 2 ranks has half."""
    plan = asked(2, {"dp_shard": 8, "ep": 4})
    found = [one for layer in plan.layers for one in plan.of_layer(layer) if one.policy.name == "experts"]
    assert [one.used_shape for one in found[:3]] == [(32, 768, 2048), (32, 2048, 768), (32, 768, 2048)]
    assert all(one.state_bytes == 12 * one.used // 2 for one in found)
    assert [group.axis for group in groups_of(plan)] == ["dp_shard", "expert_dp", "expert_dp"]


def test_groups_of_experts_are_no_larger_than_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    """`split_params_into_different_moe_groups_for_optimizer`: a larger parameter is a group by itself."""
    monkeypatch.setattr(groups, "_LARGEST", 10)
    assert groups._split([(0, 0, 6), (0, 1, 4), (0, 2, 1), (0, 3, 12), (0, 4, 2)]) == [
        [(0, 0, 6), (0, 1, 4)], [(0, 2, 1)], [(0, 3, 12)], [(0, 4, 2)]]


def test_what_was_gathered_over_two_groups_is_lost_if_it_is_freed_before_the_others_are_requested() -> None:
    """`AllGatherHandle.wait` marks a group's only parameter as there whenever one of either group is waited for."""
    gate, first, second = (1, 7, 0), (1, 8, 0), (1, 9, 0)
    for freed, each in ((False, [[gate], [first, second]]), (True, [[gate, second], [first]]),
                          (True, [[gate], [first, second]])):
        joint = JointGathers()
        joint.arrived(each)
        joint.asked([gate], {gate, first, second}, ())
        there = {first, second} if freed else {gate, first, second}
        joint.asked([first, second], there, ())
        if freed and [gate] in each:
            with pytest.raises(IllegalLayout, match="stage3_prefetch_bucket_size: 0"):
                joint.asked([gate], there, ())
            joint.end_step()
        joint.asked([gate], there, ())


def test_parts_of_stage_3_are_those_of_ranks_with_the_same_experts() -> None:
    """A rank of 4 has 32 of 128 experts, and one of 2 ranks keeps half of them; one that has all gathers nothing."""
    shape = 32 * 768 * 2048
    for ranks, part in ((8, shape // 2), (4, shape)):
        plan = asked(3, {"dp_shard": ranks, "ep": 4})
        found = [one for layer in plan.layers for one in plan.of_layer(layer) if one.policy.name == "experts"]
        assert {(one.used, one.padded) for one in found} == {(shape, part)}
    sent = small.calls(small.program_of("zero3", {"dp_shard": 4, "ep": 4}, model=QWEN, implementation="autoep"),
                       "all_gather")
    alone = small.postings(small.program_of("zero3", {"dp_shard": 1}, model="llama-tiny"), "fetched")
    assert {axis for axis, _, size in sent if size} == {"dp_shard"}
    assert [size for _, _, size in alone if size] == []
