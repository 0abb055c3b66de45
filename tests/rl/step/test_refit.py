"""Buffers and gathered tensors of a refit."""

from __future__ import annotations

import math

import pytest

from rl.step.test_forward import parts
from simcore.rl.step.refit import broadcast_buffers, gathered, ipc_buffers

GIB = 2**30


def test_two_buffers_share_a_part_of_what_is_free() -> None:
    assert ipc_buffers(10 * GIB, 0.3, GIB)["buffer"] in range(3 * GIB - 1024, 3 * GIB + 1024)
    assert ipc_buffers(10 * GIB, 0.3, 2 * GIB)["buffer"] - ipc_buffers(10 * GIB, 0.3, GIB)["buffer"] == 2 * GIB
    assert ipc_buffers(0, 0.3, GIB) == {"buffer": GIB}


def test_broadcast_buffers_pass_their_aim_by_a_tensor() -> None:
    assert broadcast_buffers(100 * GIB, GIB, sends=True) == {"buffer": 4 * 3 * GIB}
    assert broadcast_buffers(1000 * GIB, GIB, sends=False) == {"buffer": 2 * 6 * GIB}


def test_every_parameter_is_sent_once_in_16_bits() -> None:
    made = parts(precision={"params": "fp32"})
    found = gathered(made.plans[:1], made.routes)
    assert found.total == 2 * made.job.graph.count()
    largest = max(spec.numel for specs in made.job.graph.tensors for spec in specs)
    assert found.largest == 2 * largest
    assert found.transient == largest * (4 + 2)
    assert found.ns > 0


def test_automodel_hands_on_one_expert_after_the_other() -> None:
    nano = "nemotron-3-nano-30b-a3b"
    whole, split = (parts(framework, model=nano, precision={"params": "fp32"}) for framework in ("fsdp2", "automodel"))
    experts, vocabulary = 128 * 1856 * 2688, 131072 * 2688
    found, one = (gathered(made.plans[:1], made.routes) for made in (whole, split))
    assert (found.largest, found.transient) == (2 * experts, 6 * experts)
    assert (one.largest, one.transient) == (2 * vocabulary, 4 * experts + 2 * experts // 128)
    assert one.total == found.total


def test_an_adapters_product_is_added_in_the_weights_own_size() -> None:
    made = parts(method="lora", lora={"rank": 4, "target_modules": ["lm_head"]}, precision={"params": "fp32"})
    plain = parts(precision={"params": "fp32"})
    head = next(spec.numel for specs in made.job.graph.tensors for spec in specs if spec.component == "lm_head")
    found, without = (gathered(one.plans[:1], one.routes) for one in (made, plain))
    assert found.transient == max(without.transient, head * (3 * 4 + 2)) > without.transient
    assert found.total == without.total


def test_automodel_alone_gathers_nothing() -> None:
    """One GPU: what is sent is the only copy, and an adapter's product with its sum."""
    alone = {"dp_shard": 1}
    plain = parts("automodel", mesh=alone)
    adapted = parts("automodel", mesh=alone, method="lora", lora={"rank": 4, "target_modules": ["*_proj"]})
    found, merged = (gathered(made.plans[:1], made.routes) for made in (plain, adapted))
    assert found.ns == 0
    assert found.transient == found.largest
    assert found.total == 2 * plain.job.graph.count()
    assert merged.transient > found.transient


def test_megatron_exports_matrix_by_matrix() -> None:
    nano = "nemotron-3-nano-30b-a3b"
    made = parts("megatron", model=nano, mesh={"dp_shard": 8, "ep": 8})
    found = gathered(made.plans[:1], made.routes)
    assert found.total == pytest.approx(2 * made.job.graph.count(), rel=1e-6)
    vocabulary = 131072 * 2688
    assert found.largest == 2 * vocabulary
    assert found.transient == 2 * found.largest


def test_every_rank_exports_the_layers_of_all_stages() -> None:
    """A stage broadcasts the part of its tensor-parallel rank; parts are gathered as on one stage."""
    mesh = {"dp_shard": 4, "tp": 2, "etp": 1}
    whole = parts("megatron", model="llama-tiny", mesh=mesh)
    cut = parts("megatron", model="llama-tiny", mesh=mesh | {"dp_shard": 2, "pp": 2})
    stages = list({plan.stage: plan for plan in cut.plans}.values())
    found, plain = gathered(stages, cut.routes), gathered(whole.plans[:1], whole.routes)
    assert (found.total, found.largest) == (plain.total, plain.largest)
    sent = {axis: sum(call.num_bytes * call.num_calls for call in found.calls if call.axis == axis)
            for axis in ("pp", "tp")}
    assert sent["tp"] == sum(call.num_bytes * call.num_calls for call in plain.calls if call.axis == "tp")
    assert {call.collective for call in found.calls if call.axis == "pp"} == {"broadcast"}
    parted = sum(math.prod(placed.used_shape) * placed.used_copies * count for plan in stages
                 for kind, count in plan.kind_counts for placed in plan.kinds[kind] if placed.spec.is_owned)
    assert sent["pp"] == 2 * parted < found.total
    assert found.transient > plain.transient
    assert found.ns > plain.ns
