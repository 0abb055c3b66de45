"""Sizes of a unit's buffers, from the shapes of a Llama layer."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.fsdp2.unit_bytes import UnitBytes, Weigher

LAYER = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688 + 2 * 256
LLAMA = "llama-tiny"


def weights(mesh: dict[str, int], name: str, **given: Any) -> UnitBytes:
    plan = small.plan_of("fsdp2", mesh, **given)
    return Weigher(plan)(next(unit for unit in plan.framework.units if unit.name == name))


def test_two_ranks_gather_the_whole_layer_in_bf16() -> None:
    found = weights({"dp_shard": 2}, "model.layers.1", model=LLAMA)
    assert (found.world, found.used, found.gathered) == (2, 2 * LAYER, 2 * LAYER)
    assert found.cast == LAYER  # half of it, from fp32 to bf16
    assert sum(p.used for p in found.params) == found.used


def test_rows_are_padded_before_they_are_gathered() -> None:
    """Over 3 ranks 256 rows become 258, 128 become 129, 688 become 690."""
    padded = 2 * 258 * 256 + 2 * 129 * 256 + 2 * 690 * 256 + 258 * 688 + 2 * 258
    found = weights({"dp_shard": 3}, "model.layers.0", model=LLAMA)
    assert found.gathered == 2 * padded


def test_one_shard_is_cast_parameter_by_parameter() -> None:
    """The cast of the last large one is held until that of a norm is made; two norms are not whole yet."""
    assert weights({}, "model.layers.0", model=LLAMA).cast_alone == 2 * (688 * 256 + 256 - 2 * 256)
    assert weights({}, "model.layers.0", model=LLAMA, precision={"params": "bf16"}).staged == 0
    assert weights({"dp_shard": 2}, "model.layers.0", model=LLAMA).staged == 0


def test_nothing_is_cast_that_is_stored_as_it_is_used() -> None:
    assert weights({"dp_shard": 2}, "model.layers.0", model=LLAMA, precision={"params": "bf16"}).cast == 0


@pytest.mark.parametrize(("shards", "parts"), [(8, 2), (8, 4), (12, 4), (6, 3)])
def test_a_smaller_group_keeps_equal_parts_of_what_all_have_padded(shards: int, parts: int) -> None:
    """Over 12 ranks 256 rows become 264, 128 become 132, 688 become 696, whatever the group that gathers them again."""
    rows = {size: -(-size // shards) * shards for size in (128, 256, 688)}
    padded = 2 * (2 * rows[256] * 256 + 2 * rows[128] * 256 + 2 * rows[688] * 256 + rows[256] * 688 + 2 * rows[256])
    found = weights({"dp_shard": shards}, "model.layers.0", model=LLAMA, options={"reshard_after_forward": parts})
    assert (found.gathered, found.kept_shard) == (padded, padded // parts)


def test_gradients_are_reduced_in_their_own_dtype() -> None:
    found = weights({"dp_shard": 2}, "model.layers.0", model=LLAMA, precision={"grad_reduce": "fp32"})
    everything = found.grads(tuple(range(len(found.params))))
    assert (everything.input, everything.output, everything.stored) == (4 * LAYER, 2 * LAYER, 2 * LAYER)
    assert everything.is_grad
    halved = weights({"dp_shard": 2}, "model.layers.0", model=LLAMA, precision={"grad_reduce": "bf16"})
    assert not halved.grads((0,)).is_grad


def test_frozen_parameters_have_no_gradients() -> None:
    """Rank 4 adapters of q, k, v, o and the three matrices: (in + out) x 4."""
    found = weights({"dp_shard": 2}, "model.layers.0", model=LLAMA, method="lora", lora={"rank": 4})
    adapters = 4 * (2 * 512 + 2 * 384 + 3 * (256 + 688))
    everything = found.grads(tuple(range(len(found.params))))
    assert everything.stored == 4 * adapters // 2
    assert found.used == 2 * (LAYER + adapters)


def test_equal_units_are_weighed_once() -> None:
    plan = small.plan_of("fsdp2", {"dp_shard": 2}, model=LLAMA)
    weigh = Weigher(plan)
    first, second = (next(u for u in plan.framework.units if u.name == f"model.layers.{i}") for i in (0, 1))
    assert weigh(first) is weigh(second)


HOST = {"params": "host", "gradients": "host", "optimizer": "host"}


def test_shards_on_the_host_are_copied_and_cast_one_by_one() -> None:
    """The last matrix, 688 x 256, is copied in fp32 beside all that was cast before and its own cast."""
    found = weights({"dp_shard": 2}, "model.layers.0", model=LLAMA, offload=HOST)
    here = weights({"dp_shard": 2}, "model.layers.0", model=LLAMA)
    norms = 2 * 256 // 2
    assert (found.cast, here.cast, here.staged) == (LAYER, LAYER, 0)
    assert found.staged == 4 * 688 * 256 // 2 - 2 * norms
    stored = weights({"dp_shard": 2}, "model.layers.0", model=LLAMA, offload=HOST, precision={"params": "bf16"})
    assert (stored.cast, stored.staged) == (LAYER, 0)
