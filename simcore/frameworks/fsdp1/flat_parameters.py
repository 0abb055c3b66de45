"""Lengths of the flat parameters of FSDP1's units: [Note: FSDP1] in `strategy.py`.

Lengths are in stored elements: an element of a weight in 4 bits holds several of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from simcore.frameworks.common.steps.own_step import Updated
from simcore.frameworks.fsdp1.strategy import Fsdp1Strategy
from simcore.placement.framework import TensorPolicy, Unit, UpdateTime
from simcore.placement.layout import TensorLayout
from simcore.placement.plan import AtRestBytes, Placed, Plan
from simcore.units import dtype_bytes

__all__ = ["FlatUnit", "exact_in_units", "flat_policy", "flat_units", "mean_in_units", "parts_updated", "ranks_updated",
           "unit_padding", "unit_padding_bytes"]

ALIGN = 16
"""Alignment of parameters in bytes (`_get_aligned_numel`)."""
_FEW: Final = 512
"""Ranks whose parts are all looked at, to find those whose update holds most; a limit of time."""


@dataclass(frozen=True, slots=True)
class FlatUnit:
    """The flat parameter of one FSDP1 unit: all of its tensors laid end to end.

    `numel`: its elements, with alignment; `shard`: those of one rank's part, rounded up. `trains`: it has a gradient,
    because any tensor of it is trained. `policy`: that of its tensors, of which all have one format. `places`: (layer
    number of the whole model, index of the tensor in its layer, first element in the flat parameter, end) of each
    tensor; of each copy, where an entry stands for several.
    """

    numel: int
    shard: int
    trains: bool
    policy: TensorPolicy
    places: tuple[tuple[int, int, int, int], ...]


def flat_units(plan: Plan) -> list[FlatUnit]:
    """Returns the flat parameter of each unit, in the order of `plan.framework.units`."""
    return [_flat_unit(plan, unit) for unit in plan.framework.units]


def flat_policy(plan: Plan) -> TensorPolicy:
    """Returns the policy of the flat parameters, as parameters that are not packed have it."""
    return next(rule.policy for rule in plan.framework.rules
                if rule.policy.updated is not UpdateTime.NEVER and rule.policy.at_rest.packed is None)


def parts_of(plan: Plan) -> int:
    """Returns the number of ranks over which a flat parameter is cut; 1 under NO_SHARD."""
    strategy = plan.framework.strategy_as(Fsdp1Strategy)
    return 1 if strategy.sharding_strategy == "NO_SHARD" else plan.mesh.axis(strategy.axis).size


def _flat_unit(plan: Plan, unit: Unit) -> FlatUnit:
    strategy, parts = plan.framework.strategy_as(Fsdp1Strategy), parts_of(plan)
    align = ALIGN // dtype_bytes(plan.framework.compute_dtype) if strategy.aligned else 1
    end, places, trains, policy = 0, [], False, flat_policy(plan)
    for layer, number, placed in _members(plan, unit):
        for _ in range(placed.used_copies):
            start = -(-end // align) * align
            end = start + placed.used // placed.used_copies // placed.policy.at_rest.values
            places.append((layer, number, start, end))
        trains = trains or placed.trainable
        policy = policy if placed.policy.at_rest.packed is not None else placed.policy
    shard = -(-end // parts)
    return FlatUnit(shard * parts if strategy.aligned else end, shard, trains, policy, tuple(places))


def _members(plan: Plan, unit: Unit) -> Iterator[tuple[int, int, Placed]]:
    """Members in the order of modules: an adapter is inside the linear that it adapts, after its weight."""
    for layer, numbers in unit.members:
        placed = plan.of_layer(layer)
        number_of = {p.spec.name: number for number, p in enumerate(placed)}
        for number in sorted(numbers, key=lambda n: number_of.get(_adapted(placed[n].spec.name), n)):
            yield layer, number, placed[number]


def _adapted(name: str) -> str:
    module, adapter, _ = name.partition(".lora_")
    return f"{module}.weight" if adapter else ""


def unit_padding(plan: Plan) -> tuple[int, int]:
    """Returns what this rank's shards have beyond `Plan`: bytes of parameters, and elements of those that train.

    They come from alignment and rounding up. `Plan` counts the mean over the ranks that are simulated as one.
    """
    units = flat_units(plan)
    placed = [(count, p) for kind, count in plan.kind_counts for p in plan.kinds[kind] if p.spec.is_owned]
    counted = sum(count * _stored(p) * dtype_bytes(p.policy.at_rest.dtype) for count, p in placed)
    trained = sum(count * _stored(p) for count, p in placed if p.trainable)
    return (sum(unit.shard * dtype_bytes(unit.policy.at_rest.dtype) for unit in units) - counted,
            sum(unit.shard for unit in units if unit.trains) - trained)


def _stored(placed: Placed) -> int:
    return placed.local // placed.policy.at_rest.values


def unit_padding_bytes(plan: Plan, components: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]:
    """Returns the device bytes of this rank's (parameter, gradient) shards beyond those in `components`.

    `components`: bytes at rest by component of the model; whether they are means or `exact` changes nothing here.
    A flat parameter has one gradient: with `use_orig_params` those of the parameters are views of it, and it exists
    also on ranks whose shard has none of them (torch 2.13 `_flat_param.py`, prepare_gradient_for_optim).
    """
    units = flat_units(plan)
    params = sum(u.shard * dtype_bytes(u.policy.at_rest.dtype) for u in units if u.policy.at_rest.space == "device")
    grads = sum(u.shard * dtype_bytes(u.policy.grad.dtype) for u in units
                if u.trains and u.policy.grad.space == "device")
    constants = sum(count * sum(p.constants for p in plan.kinds[kind]) for kind, count in plan.kind_counts)
    return (params + constants - sum(c.params_bytes for c in components.values()),
            grads - sum(c.grads_bytes for c in components.values()))


def mean_in_units(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns `Plan.at_rest` (bytes by component of the model), with gradients of frozen parameters added.

    A unit with a trained parameter has a gradient for all of its elements, also for frozen ones.
    """
    totals = plan.at_rest()
    for unit in flat_units(plan):
        held = dict.fromkeys((layer, number) for layer, number, *_ in unit.places if unit.trains)
        for placed in (plan.of_layer(layer)[number] for layer, number in held):
            policy, component = placed.policy, placed.spec.component
            frozen = placed.local // policy.at_rest.values * (not placed.trainable) * (policy.grad.space == "device")
            totals[component] = totals[component] + AtRestBytes(grads_bytes=frozen * dtype_bytes(policy.grad.dtype))
    return totals


def exact_in_units(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns bytes at rest by component of the model, from the elements in this rank's own shards.

    A unit has one gradient: if any parameter of it is trained, all of its elements have one.
    """
    strategy, totals = plan.framework.strategy_as(Fsdp1Strategy), dict[str, AtRestBytes]()
    at = plan.mesh.axis(strategy.axis).coordinate(plan.rank) if parts_of(plan) > 1 else 0
    for unit in flat_units(plan):
        low, high = at * unit.shard, (at + 1) * unit.shard
        for layer, number, start, end in unit.places:
            placed = plan.of_layer(layer)[number]
            inside = max(0, min(end, high) - max(start, low))
            component = placed.spec.component
            totals[component] = totals.get(component, AtRestBytes()) + _held(placed, inside, trains=unit.trains)
    for kind, count in plan.kind_counts:
        for placed in (placed for placed in plan.kinds[kind] if placed.constants):
            totals[placed.spec.component] += AtRestBytes(params_bytes=count * placed.constants)
    return totals


def ranks_updated(plan: Plan) -> tuple[list[Updated], ...]:
    """Returns `parts_updated` of every rank that shares the shards, or of first, own and last if they are many.

    () where parameters keep their shapes, under NO_SHARD with `use_orig_params`, or are updated on the host.
    """
    strategy, parts = plan.framework.strategy_as(Fsdp1Strategy), parts_of(plan)
    if strategy.on_host or (strategy.aligned and parts == 1):
        return ()
    own = plan.mesh.axis(strategy.axis).coordinate(plan.rank) if parts > 1 else 0
    chosen = range(parts) if parts <= _FEW else (0, own, parts - 1)
    return tuple(parts_updated(plan, at) for at in (chosen if strategy.aligned else (own,)))


def parts_updated(plan: Plan, at: int) -> list[Updated]:
    """Returns what the optimizer sees on the rank at coordinate `at`, unit by unit: flat parts that train.

    With `use_orig_params` they are views of the parts of each parameter that lie in the rank's shard, in the order of
    modules.
    """
    strategy, found = plan.framework.strategy_as(Fsdp1Strategy), []
    for unit in (unit for unit in flat_units(plan) if unit.trains):
        sizes = dtype_bytes(unit.policy.at_rest.dtype), dtype_bytes(unit.policy.grad.dtype)
        if not strategy.aligned:
            found.append(Updated("_flat_param", (unit.shard,), *sizes))
            continue
        for layer, number, start, end in unit.places:
            placed = plan.of_layer(layer)[number]
            inside = min(end, (at + 1) * unit.shard) - max(start, at * unit.shard)
            if inside > 0 and placed.trainable:
                found.append(Updated(placed.spec.name, (inside,), *sizes, placed.spec.module == "norm"))
    return found


def _held(placed: Placed, inside: int, *, trains: bool) -> AtRestBytes:
    """`inside`: stored elements of the tensor, or of one of its copies, in the rank's shard."""
    policy, trained = placed.policy, inside * placed.trainable
    grads = inside * trains * dtype_bytes(policy.grad.dtype) * (policy.grad.space == "device")
    states = sum(_state_bytes(layout, trained, placed) for _,
                 layout in policy.optimizer_states if layout.space_of(inside) == "device")
    return AtRestBytes(inside * dtype_bytes(policy.at_rest.dtype) * placed.rests_here, grads, states,
                       inside * policy.at_rest.values, trained)


def _state_bytes(layout: TensorLayout, numel: int, placed: Placed) -> int:
    """Bytes of a state of `numel` elements of a tensor; one of another shape is only of a whole tensor, or copy."""
    if layout.extent is not None:
        return layout.extent(placed.spec.name, placed.used_shape) * dtype_bytes(layout.dtype) * placed.trainable
    return numel * dtype_bytes(layout.dtype) if layout.blocks is None else layout.blocks.num_bytes(numel, layout.dtype)
