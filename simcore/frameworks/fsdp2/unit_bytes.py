"""Sizes in bytes of a unit's buffers on a rank."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from simcore.placement.framework import Unit
from simcore.placement.layout import Shard
from simcore.placement.optimizer_step import is_updated_in_backward, step_of
from simcore.placement.plan import Placed, Plan
from simcore.recording.rows import Step
from simcore.units import dtype_bytes

__all__ = ["GradBytes", "ParamBytes", "UnitBytes", "Weigher"]


@dataclass(frozen=True, slots=True)
class ParamBytes:
    """Sizes of one parameter of a unit on this rank, or of `copies` that are alike (one for each expert).

    Sizes are in bytes, of all copies together: `used`: gathered. `kept_shard`: its part of a smaller group after
    forward, an equal part of what was gathered, padding included, which that group gathers again (torch 2.13
    `_fsdp_param.py`, to_sharded_post_forward). `extra_copy`: the second buffer of a parameter cut on another dimension
    than the first. `accumulated`: its whole gradient in the reduce dtype, 0 when frozen. `reduced`, `stored`: its
    sharded gradient in the reduce dtype, and as kept. `step`: the optimizer's step that runs when the gradient is
    reduced, or None.
    """

    name: str
    copies: int
    used: int
    kept_shard: int
    extra_copy: int
    accumulated: int
    reduced: int
    stored: int
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class GradBytes:
    """Sizes in bytes of reducing some of a unit's gradients together.

    `num_params`: number of gradients. `input` of the reduce-scatter, its `output`, and the output as it is `stored`.
    """

    num_params: int
    input: int
    output: int
    stored: int

    @property
    def is_grad(self) -> bool:
        """True if the output of the reduce-scatter is the stored gradient, without a cast."""
        return self.stored == self.output


@dataclass(frozen=True)
class UnitBytes:
    """Sizes in bytes of a unit's buffers on this rank.

    A group of one rank needs no gather buffers and no collective. `world`: number of ranks that gather. `gathered`: the
    all-gather's output; `used`: the parameters copied out of it. `cast`: shards in the gathered dtype, 0 if they are
    stored in it; `cast_alone`: temporaries, beyond the result, of a group of one rank, which casts parameters one by
    one (torch 2.13 `_fsdp_param_group.py`, wait_for_unshard). `kept_shard`, `extra_copy`: sums over `params`. With
    parameters and gradients on the host, in `host_dtype` (else ""), parameters are copied to the device one by one, and
    cast there: `staged` is the memory that this needs beyond the result, `cast`; `from_host` is the size of the copies
    (`_fsdp_param.py`, all_gather_inputs).
    """

    params: tuple[ParamBytes, ...]
    world: int
    cast: int
    cast_alone: int
    gathered: int
    used: int
    kept_shard: int
    extra_copy: int
    staged: int
    from_host: int
    host_dtype: str

    @cached_property
    def num_params(self) -> int:
        """Number of tensors that are gathered and freed; copies (one for each expert) count."""
        return sum(p.copies for p in self.params)

    @property
    def offloaded(self) -> bool:
        """True if the unit's parameters and gradients rest on the host."""
        return bool(self.host_dtype)

    @property
    def cast_again(self) -> int:
        """Bytes of a copy of the part kept by a smaller group, made before that group gathers it again.

        0 if shards need no cast or rest on the host. The copy is made although the kept part already has the gathered
        dtype. torch 2.13 `_fsdp_collectives.py`, _get_param_all_gather_inputs: use_foreach_copy.
        """
        return self.kept_shard if self.cast and not self.offloaded else 0

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """All sizes that hooks read, in the order in which `renumbered` takes them."""
        own = (self.world, self.cast, self.cast_alone, self.gathered, self.used, self.kept_shard, self.extra_copy,
               self.staged, self.from_host)
        return (*own, *(size for p in self.params for size in (p.accumulated, p.reduced, p.stored)))

    @cached_property
    def form(self) -> Hashable:
        """All else that hooks read: of parameters how many are alike, and their optimizer's steps."""
        return self.host_dtype, tuple((p.copies, p.step) for p in self.params)

    def renumbered(self, numbers: Iterator[int]) -> UnitBytes:
        """Copy with other sizes, taken from `numbers` in the order of the property of that name."""
        world, cast, cast_alone, gathered, used, kept_shard, extra_copy, staged, from_host = (
            next(numbers) for _ in range(9))
        params = tuple(replace(p, accumulated=next(numbers), reduced=next(numbers), stored=next(numbers))
                       for p in self.params)
        return UnitBytes(params, world, cast, cast_alone, gathered, used, kept_shard, extra_copy, staged, from_host,
                         self.host_dtype)

    def steps(self, places: tuple[int, ...]) -> tuple[Step, ...]:
        """Returns the optimizer steps that run when the gradients of some parameters are reduced.

        `places`: the parameters' indices in `params`. Empty unless the optimizer runs inside backward.
        """
        return tuple(step for step in (self.params[place].step for place in places) if step is not None)

    def grads(self, places: tuple[int, ...]) -> GradBytes:
        """Returns the sizes of reducing the gradients of the parameters with the indices `places` in `params`.

        An adapter that a fused kernel bypasses has no gradient, so its index is not among them.
        """
        mine = [self.params[place] for place in places]
        output = sum(p.reduced for p in mine)
        return GradBytes(sum(p.copies for p in mine), output * self.world, output, sum(p.stored for p in mine))


class Weigher:
    """Function that returns the sizes in bytes of one unit's buffers (`UnitBytes`) on the rank of `plan`.

    Units with equal settings and tensors are computed only once, for all plans with the same tensors.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.known = _known(plan.graph, plan.mesh, plan.kinds, plan.framework.optimizer.implementation)

    def __call__(self, unit: Unit) -> UnitBytes:
        layers = self.plan.graph.layers
        key = (unit.shard_axis, unit.reshard_after_forward, unit.joins_copies, unit.param_dtype, unit.reduce_dtype,
               tuple((layers[layer].kind, numbers) for layer, numbers in unit.members))
        if key not in self.known:
            self.known[key] = _unit_bytes(self.plan, unit)
        return self.known[key]


@lru_cache(maxsize=64)
def _known(*_: Hashable) -> dict[object, UnitBytes]:
    """Sizes of units by their settings and tensors. Arguments: all else of a plan on which `_unit_bytes` depends."""
    return {}


def _unit_bytes(plan: Plan, unit: Unit) -> UnitBytes:
    placed = [plan.of_layer(layer)[i] for layer, numbers in unit.members for i in numbers]
    world = plan.mesh.axis(unit.shard_axis).size
    partial = int(unit.reshard_after_forward) if _is_int(unit.reshard_after_forward) else 0
    params = tuple(_param_bytes(plan, p, unit, world, partial) for p in placed)
    shard = sum(_gathered(unit, p, p.padded) for p in placed)
    away = [p for p in placed if not p.rests_here]
    uses_cast = bool(away) or any(p.policy.at_rest.num_bytes(p.padded) != _gathered(unit, p, p.padded) for p in placed)
    alone = _cast_alone(plan, unit, placed, away=bool(away)) if world == 1 else 0
    return UnitBytes(params, world, shard if uses_cast else 0, alone, shard * world, sum(p.used for p in params),
                     sum(p.kept_shard for p in params), sum(p.extra_copy for p in params),
                     _staged(unit, placed) if away else 0,
                     sum(p.policy.at_rest.num_bytes(p.padded) for p in away),
                     away[0].policy.at_rest.dtype if away else "")


def _staged(unit: Unit, placed: list[Placed]) -> int:
    """The most that lies on the device while shards are copied and cast, beyond all that was cast."""
    done = most = 0
    for p in placed:
        stored, gathered = p.policy.at_rest.num_bytes(p.padded), _gathered(unit, p, p.padded)
        most = max(most, done + stored + gathered * (stored != gathered))
        done += gathered
    return max(0, most - done)


def _cast_alone(plan: Plan, unit: Unit, placed: list[Placed], *, away: bool) -> int:
    """The most that casts add to a unit of one shard, whose parameters are cast one by one and then copied.

    The cast before the last is still held when the next is made (torch 2.13 `_fsdp_param_group.py`, wait_for_unshard:
    all_gather_input).
    """
    if away:
        return _staged(unit, placed)
    done = most = last = 0
    for p in (p for layer, numbers in unit.members for p in _registered([plan.of_layer(layer)[i] for i in numbers])):
        copies = 1 if unit.joins_copies else p.used_copies
        one = _gathered(unit, p, p.padded) // copies
        cast = one * (p.policy.at_rest.num_bytes(p.padded) != one * copies)
        most = max(most, done + last + cast, done + copies * one + cast)
        done, last = done + copies * one, cast
    return max(0, most - done)


def _registered(placed: list[Placed]) -> list[Placed]:
    """In the order of registration: adapters are inside the module that they adapt."""
    modules = [re.sub(r"\.lora_([abAB]|magnitude_vector)$", "", p.spec.path) for p in placed]
    return [placed[i] for i in sorted(range(len(placed)), key=lambda i: modules.index(modules[i]))]


def _param_bytes(plan: Plan, placed: Placed, unit: Unit, world: int, partial: int) -> ParamBytes:
    full = _gathered(unit, placed, placed.padded) * world
    sideways = world > 1 and any(isinstance(cut, Shard) and cut.dim > 0 for axis,
                                 cut in placed.policy.at_rest.placements
                                 if axis == unit.shard_axis)
    reduce_bytes = dtype_bytes(unit.reduce_dtype) if placed.trainable else 0
    stored_bytes = dtype_bytes(placed.policy.grad.dtype) if placed.trainable else 0
    implementation = plan.framework.optimizer.implementation
    copies = 1 if unit.joins_copies else placed.used_copies
    return ParamBytes(placed.spec.name, copies, full, full // partial if partial else 0,
                      full if sideways else 0, _whole(plan, placed) * reduce_bytes, placed.padded * reduce_bytes,
                      placed.padded * stored_bytes,
                      step_of(placed, implementation) if is_updated_in_backward(placed) else None)


def _whole(plan: Plan, placed: Placed) -> int:
    """Elements of the gradient as backward leaves it: with all that an axis cuts of the parameter alone."""
    uncut = {axis for axis, _ in placed.policy.in_use.placements} - {
        axis for axis, _ in placed.policy.unreduced_grad.placements}
    return placed.used * math.prod(plan.mesh.axis(axis).size for axis in uncut)


def _gathered(unit: Unit, placed: Placed, numel: int) -> int:
    """Bytes of `numel` elements as they are gathered: torchao casts a shard to fp8 itself (`fsdp_pre_all_gather`).

    A column of packed values has the type of the products already, or is none of the unit's.
    """
    if placed.policy.in_use.dtype == "fp8":
        return numel
    if placed.policy.at_rest.packed is not None:
        return placed.policy.at_rest.num_bytes(numel)
    return numel * dtype_bytes(unit.param_dtype or placed.policy.at_rest.dtype)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
