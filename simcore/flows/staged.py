"""What lies on the host beside tensors: [Note: ZeRO on the host] in `simcore.zero`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simcore.flows.partition import aligned, places, trained_of
from simcore.plan import Placed, Plan
from simcore.units import dtype_bytes
from simcore.zero import Zero

__all__ = ["beside_tensors", "touched", "trained"]

FP32 = 4


def beside_tensors(plan: Plan, *, rounded: bool) -> Counter[str]:
    """Bytes by owner beyond tensors themselves: alignment, buffers, and, `rounded`, what pinned blocks add.

    Pinned blocks are powers of two (torch 2.13 ATen/core/CachingHostAllocator.h:300); flat buffers are one block each.
    """
    flow = plan.framework.flow
    if not isinstance(flow, Zero) or not (flow.states_on_host or flow.params_on_host):
        return Counter()
    held = Counter[str]()
    for owner, num_bytes, pinned in _buffers(plan, flow):
        held[owner] += _block(num_bytes) if rounded and pinned and flow.pinned else num_bytes
    for owner, size in _of_tensors(plan).items():
        held[owner] -= size
    return held


def _block(num_bytes: int) -> int:
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


def _of_tensors(plan: Plan) -> Counter[str]:
    """What `Placed.elsewhere` counts of them."""
    held = Counter[str]()
    for kind, count in plan.kind_counts:
        for owner, _, num_bytes in (one for placed in plan.kinds[kind] for one in placed.elsewhere):
            held[owner] += count * num_bytes
    return held


def _buffers(plan: Plan, flow: Zero) -> Iterator[tuple[str, int, bool]]:
    """(owner, bytes, whether they are pinned) of every buffer on the host."""
    size, moments = dtype_bytes(plan.framework.compute_dtype), _num_moments(plan)
    if flow.stage < 3:
        part = aligned(plan) // plan.mesh.axis(flow.axis).size
        yield from (("optimizer states", FP32 * part, True), ("optimizer states", FP32 * moments * part, False),
                    ("gradients", FP32 * part, True), ("copies on their way", size * part, True),
                    ("copies on their way", size * _largest(plan), True))
        if flow.accumulates and flow.stage == 2:
            yield from (("gradients", size * numel, True) for numel in touched(plan, flow))
        return
    parts = sum(placed.padded for placed in trained(plan))
    if flow.params_on_host:
        yield "parameters", sum(p.life.rest.num_bytes(p.padded) for p in _owned(plan)), True
    if flow.states_on_host:
        yield from (("optimizer states", FP32 * (1 + moments) * parts, False), ("gradients", size * parts, True),
                    ("gradients", FP32 * parts, True))


def _num_moments(plan: Plan) -> int:
    lives = [placed.life for placed in trained(plan)]
    return sum(name not in ("master_param", "grad_copy") for name, _ in lives[0].states) if lives else 0


def _owned(plan: Plan) -> Iterator[Placed]:
    return (placed for layer in plan.layers for placed in plan.of_layer(layer) if placed.spec.is_owned)


def trained(plan: Plan) -> Iterator[Placed]:
    """Parameters that are, in order."""
    return (placed for placed in _owned(plan) if placed.trainable)


def _largest(plan: Plan) -> int:
    return max((numel for layer in plan.layers for _, numel in trained_of(plan, layer)), default=0)


def touched(plan: Plan, flow: Zero) -> list[int]:
    """Elements of every parameter of which some lies in this rank's part, whole."""
    axis = plan.mesh.axis(flow.axis)
    part = aligned(plan) // axis.size
    low = axis.coordinate(plan.rank) * part
    return [end - start for start, end in places(plan).values() if start < low + part and end > low]
