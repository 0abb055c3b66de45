"""Host memory of ZeRO beyond its tensors: [Note: ZeRO on the host]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simcore.frameworks.deepspeed.partitions import aligned, largest_trained, touching
from simcore.frameworks.deepspeed.states.low_bit import sub_groups
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.hardware.nvme import aligned as aligned_to_drives
from simcore.hardware.nvme import is_swapped
from simcore.placement.plan import Placed, Plan
from simcore.units import dtype_bytes

__all__ = ["beside_tensors", "num_moments", "touched", "trained"]

FP32 = 4


def beside_tensors(plan: Plan, *, rounded: bool) -> Counter[str]:
    """Returns this rank's host bytes beyond those of its offloaded tensors, by owner: alignment and buffers.

    Owners: "parameters", "gradients", "optimizer states", ... If `rounded`, also what pinned blocks are rounded up by:
    they are powers of two (torch 2.13 ATen/core/CachingHostAllocator.h:300); flat buffers are one block each. Empty if
    nothing is offloaded.
    """
    strategy = plan.framework.strategy_as(ZeroStrategy)
    if not (strategy.states_on_host or strategy.params_on_host):
        return Counter()
    sizes = Counter[str]()
    for owner, num_bytes, pinned in _buffers(plan, strategy):
        sizes[owner] += _block(num_bytes) if rounded and pinned and strategy.pinned else num_bytes
    for owner, size in _of_tensors(plan).items():
        sizes[owner] -= size
    return sizes


def _block(num_bytes: int) -> int:
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


def _of_tensors(plan: Plan) -> Counter[str]:
    """Bytes by owner that `Placed.elsewhere` counts."""
    sizes = Counter[str]()
    for kind, count in plan.kind_counts:
        for owner, space, num_bytes in (entry for placed in plan.kinds[kind] for entry in placed.elsewhere):
            sizes[owner] += count * num_bytes * (space != "nvme")
    return sizes


def _buffers(plan: Plan, strategy: ZeroStrategy) -> Iterator[tuple[str, int, bool]]:
    """(owner, bytes, whether they are pinned) of every buffer on the host."""
    size, moments = dtype_bytes(plan.framework.compute_dtype), num_moments(plan)
    if strategy.stage < 3:
        part = aligned(plan) // plan.mesh.axis(strategy.axis).size
        yield from (("optimizer states", FP32 * part, True), ("optimizer states", FP32 * moments * part, False),
                    ("gradients", FP32 * part, True), ("copies on their way", size * part, True),
                    ("copies on their way", size * _largest(plan), True))
        yield from _of_the_update(plan, part)
        if strategy.accumulates and strategy.stage == 2:
            yield from (("gradients", size * numel, True) for numel in touched(plan, strategy))
        return
    parts = sum(placed.padded for placed in trained(plan))
    if strategy.params_on_host:
        yield "parameters", sum(p.policy.at_rest.num_bytes(p.padded) for p in _owned(plan)), True
    if strategy.swap_buffers:
        yield from _beside_drives(plan, strategy, size * parts)
    elif strategy.states_on_host:
        largest = max(sub_groups([placed.padded for placed in trained(plan)], strategy.sub_group), default=0)
        yield from (("optimizer states", FP32 * (1 + moments) * parts, False), ("gradients", size * parts, True),
                    ("gradients", FP32 * parts, True))
        yield from _of_the_update(plan, largest)


def _of_the_update(plan: Plan, elements: int) -> Iterator[tuple[str, int, bool]]:
    """The square root of the second moments and its quotient, which torch's loop makes for one tensor at a time.

    torch 2.13 `optim/adam.py` _single_tensor_adam; a fused step has neither.
    """
    if plan.framework.optimizer.implementation == "for_loop":
        yield "temporaries of the update", 2 * FP32 * elements, False


def _beside_drives(plan: Plan, strategy: ZeroStrategy, gradients: int) -> Iterator[tuple[str, int, bool]]:
    """16-bit gradients, buffers (which torch does not round), and sub-groups that are too small to become files."""
    groups = list(sub_groups([placed.padded for placed in trained(plan)], strategy.sub_group))
    unswapped = sum(numel for numel in groups if not is_swapped(numel))
    yield from (("gradients", gradients, True), ("gradients", FP32 * unswapped, True),
                ("optimizer states", FP32 * (1 + num_moments(plan)) * unswapped, False),
                ("buffers of drives", FP32 * strategy.swap_buffers * aligned_to_drives(max(groups, default=0)), False))


def num_moments(plan: Plan) -> int:
    """Returns the number of optimizer states of a parameter, without its master; 0 if nothing is trained."""
    policies = [placed.policy for placed in trained(plan)]
    return sum(name not in ("master_param", "grad_copy") for name, _ in policies[0].optimizer_states) if policies else 0


def _owned(plan: Plan) -> Iterator[Placed]:
    return (placed for layer in plan.layers for placed in plan.of_layer(layer) if placed.spec.is_owned)


def trained(plan: Plan) -> Iterator[Placed]:
    """Yields the trained parameters of this rank, layer by layer."""
    return (placed for placed in _owned(plan) if placed.trainable)


def _largest(plan: Plan) -> int:
    return largest_trained(plan)


def touched(plan: Plan, strategy: ZeroStrategy) -> list[int]:
    """Returns the elements of every parameter that is, at least in part, in this rank's partition.

    A parameter counts with all of its elements.
    """
    return touching(plan, plan.mesh.axis(strategy.axis).coordinate(plan.rank))
