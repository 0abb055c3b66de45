"""What a unit's buffers weigh on a rank."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.form import Shard
from simcore.framework import Unit
from simcore.plan import Placed, Plan
from simcore.units import dtype_bytes

__all__ = ["ParamBytes", "UnitBytes", "Weigher"]



@dataclass(frozen=True, slots=True)
class ParamBytes:
    """One parameter of a unit on this rank. `grad`: its unsharded gradient, 0 when frozen."""

    name: str
    used: int
    kept_shard: int
    extra_copy: int
    grad: int
    accumulated: int


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """What a unit's buffers weigh on this rank. Gathering over one rank needs no buffers and no collective."""

    params: tuple[ParamBytes, ...]
    world: int
    cast: int
    gathered: int
    regathered: int
    reduce_input: int
    reduce_output: int
    sharded_grad: int
    reduce_is_grad: bool

    @property
    def used(self) -> int:
        return sum(p.used for p in self.params)

    @property
    def has_grad(self) -> bool:
        return self.reduce_input > 0


def unit_bytes(plan: Plan, unit: Unit) -> UnitBytes:
    """Weigh a unit; all members have the same stored and reduced dtype or are weighed one by one."""
    placed = [plan.of_layer(layer)[i] for layer, numbers in unit.members for i in numbers]
    world = plan.mesh.axis(unit.shard_axis).size
    partial = unit.reshard_after_forward if _is_int(unit.reshard_after_forward) else 0
    params = tuple(_param_bytes(p, unit, world, int(partial)) for p in placed)
    param_b = [_compute_bytes(unit, p.life.rest.dtype) for p in placed]
    uses_cast = any(dtype_bytes(p.life.rest.dtype) != b for p, b in zip(placed, param_b, strict=True))
    shard = sum(p.padded * b for p, b in zip(placed, param_b, strict=True))
    reduced = sum(p.padded * dtype_bytes(unit.reduce_dtype) for p in placed if p.trainable)
    stored = sum(p.padded * dtype_bytes(p.life.grad.dtype) for p in placed if p.trainable)
    regathered = sum(-(-p.spec.shape[0] // int(partial)) * int(partial) * (p.spec.numel // p.spec.shape[0]) * b
                     for p, b in zip(placed, param_b, strict=True)) if partial else shard * world
    return UnitBytes(params, world, shard if uses_cast else 0, shard * world, regathered, reduced * world, reduced,
                     stored, stored == reduced)


def _param_bytes(placed: Placed, unit: Unit, world: int, partial: int) -> ParamBytes:
    b = _compute_bytes(unit, placed.life.rest.dtype)
    full = placed.padded * world * b
    sideways = any(isinstance(cut, Shard) and cut.dim > 0 for axis, cut in placed.life.rest.layout
                   if axis == unit.shard_axis)
    train = placed.trainable
    return ParamBytes(placed.spec.name, full, full // partial if partial else 0, full if sideways and world > 1 else 0,
                      placed.used * b if train else 0, placed.used * dtype_bytes(unit.reduce_dtype) if train else 0)


def _compute_bytes(unit: Unit, stored: str) -> int:
    return dtype_bytes(unit.param_dtype or stored)


def _is_int(value: bool | int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Weigher:
    """`unit_bytes`, once for units that are alike."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.known: dict[object, UnitBytes] = {}

    def __call__(self, unit: Unit) -> UnitBytes:
        layers = self.plan.graph.layers
        key = (unit.shard_axis, unit.reshard_after_forward, unit.param_dtype, unit.reduce_dtype,
               tuple((layers[layer].kind, numbers) for layer, numbers in unit.members))
        if key not in self.known:
            self.known[key] = unit_bytes(self.plan, unit)
        return self.known[key]
