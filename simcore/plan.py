"""Placement: what each tensor of each kind of layer is on a rank, in elements and bytes.

Comes in: graph, mesh, framework. Goes out: `Plan` for one rank (a class's representative). Nothing here walks ranks:
a plan is a function of the rank's coordinates on the axes that split something.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from simcore.form import Flat, Form, Shard, local_shape, padded_numel, require_even
from simcore.framework import Framework, Life
from simcore.graph import ModelGraph
from simcore.mesh import Mesh
from simcore.tensor import TensorSpec
from simcore.units import dtype_bytes

__all__ = ["AtRestBytes", "Placed", "Plan", "check_even", "place"]


@dataclass(frozen=True, slots=True)
class Placed:
    """One tensor on one rank, in elements. `states`: (name, bytes) of this rank; flat cuts as the class mean."""

    spec: TensorSpec
    life: Life
    local: int
    padded: int
    used_shape: tuple[int, ...]
    used_copies: int
    states: tuple[tuple[str, int], ...]

    @property
    def used(self) -> int:
        """Elements that operators see."""
        return math.prod(self.used_shape) * self.used_copies

    @property
    def trainable(self) -> bool:
        return self.spec.trainable and self.spec.is_owned

    @property
    def rest_bytes(self) -> int:
        """Storage at rest, padding included."""
        return self.padded * dtype_bytes(self.life.rest.dtype)

    def born_in_step(self, *, late_master: bool) -> int:
        """Bytes of the states that the first step makes: moments, and masters if those are late too."""
        return sum(num_bytes for name, num_bytes in self.states if late_master or name != "master_param")

    @property
    def state_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self.states)


@dataclass(frozen=True, slots=True)
class AtRestBytes:
    """Sums over tensors of one component; see `report.AtRest`."""

    params_bytes: int = 0
    grads_bytes: int = 0
    optimizer_bytes: int = 0
    num_params: int = 0
    num_trainable_params: int = 0

    def __add__(self, other: AtRestBytes) -> AtRestBytes:
        return AtRestBytes(self.params_bytes + other.params_bytes, self.grads_bytes + other.grads_bytes,
                           self.optimizer_bytes + other.optimizer_bytes, self.num_params + other.num_params,
                           self.num_trainable_params + other.num_trainable_params)

    def times(self, count: int) -> AtRestBytes:
        """The sum of `count` equal layers."""
        return AtRestBytes(self.params_bytes * count, self.grads_bytes * count, self.optimizer_bytes * count,
                           self.num_params * count, self.num_trainable_params * count)


@dataclass(frozen=True)
class Plan:
    """All kinds as one rank holds them; `chunks`: layers of its pipeline stage. Equal plans are lowered once."""

    graph: ModelGraph
    mesh: Mesh
    framework: Framework
    rank: int
    stage: int
    chunks: tuple[tuple[int, ...], ...]
    kinds: tuple[tuple[Placed, ...], ...]

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Those of all chunks, in order."""
        return tuple(layer for chunk in self.chunks for layer in chunk)

    def __hash__(self) -> int:
        """Of a part, for speed: a plan is looked up several times a scenario."""
        return hash((self.graph, self.mesh, self.rank, self.chunks, self.framework.flow))

    def of_layer(self, layer: int) -> tuple[Placed, ...]:
        """The tensors of layer number `layer`."""
        return self.kinds[self.graph.layers[layer].kind]

    @cached_property
    def kind_counts(self) -> tuple[tuple[int, int], ...]:
        """(kind, how many of the stage's layers are of it)."""
        counts: dict[int, int] = {}
        for layer in self.layers:
            kind = self.graph.layers[layer].kind
            counts[kind] = counts.get(kind, 0) + 1
        return tuple(counts.items())

    def at_rest(self) -> dict[str, AtRestBytes]:
        """By component, the rank's stage whole; buffers are in no component."""
        totals: dict[str, AtRestBytes] = {}
        for kind, count in self.kind_counts:
            for placed in self.kinds[kind]:
                if placed.spec.is_owned:
                    add = _at_rest(placed).times(count)
                    component = placed.spec.component
                    totals[component] = totals.get(component, AtRestBytes()) + add
        return totals

    def born_in_step(self) -> int:
        """Bytes of optimizer states that the very first step makes."""
        return sum(count * sum(placed.born_in_step(late_master=self.framework.optimizer.late_master)
                               for placed in self.kinds[kind]) for kind, count in self.kind_counts)

    def padding_bytes(self) -> int:
        """What storage adds to the parameters that the rank owns (even cuts; flat buffers count their own)."""
        return sum(count * sum((p.padded - p.local) * dtype_bytes(p.life.rest.dtype) for p in self.kinds[kind])
                   for kind, count in self.kind_counts)


def place(graph: ModelGraph, mesh: Mesh, framework: Framework, rank: int) -> Plan:
    """The plan of one rank."""
    stage = mesh.axis("pp").coordinate(rank)
    kinds = tuple(tuple(_place_tensor(spec, framework.life(spec), mesh, rank) for spec in specs)
                  for specs in graph.tensors)
    return Plan(graph, mesh, framework, rank, stage, framework.stages[stage::mesh.pp], kinds)


def _place_tensor(spec: TensorSpec, life: Life, mesh: Mesh, rank: int) -> Placed:
    used_copies, *used_shape = local_shape(spec.copies, spec.shape, life.use.layout, mesh, rank)
    if spec.tied:
        return Placed(spec, life, 0, 0, tuple(used_shape), used_copies, ())
    local = math.prod(local_shape(spec.copies, spec.shape, life.rest.layout, mesh, rank))
    padded = padded_numel(spec.copies, spec.shape, life.rest.layout, mesh) if life.pad_storage else local
    trains = spec.trainable and not spec.is_buffer
    states = tuple((name, _state_bytes(spec, form, life, local, mesh, rank))
                   for name, form in life.states) if trains else ()
    return Placed(spec, life, local, padded, tuple(used_shape), used_copies, states)


def _state_bytes(spec: TensorSpec, form: Form, life: Life, local: int, mesh: Mesh, rank: int) -> int:
    """`local`: elements of the parameter at rest, which most states are cut like."""
    numel = local
    if form.layout is not life.rest.layout:
        numel = math.prod(local_shape(spec.copies, spec.shape, form.layout, mesh, rank))
    parts = math.prod(mesh.axis(axis).size for axis, cut in form.layout if isinstance(cut, Flat))
    return numel * dtype_bytes(form.dtype) // parts


def _at_rest(placed: Placed) -> AtRestBytes:
    life = placed.life
    trained = placed.local if placed.trainable else 0
    return AtRestBytes(placed.local * dtype_bytes(life.rest.dtype), trained * dtype_bytes(life.grad.dtype),
                       placed.state_bytes, placed.local, trained)


def check_even(graph: ModelGraph, mesh: Mesh, framework: Framework, rule: str) -> None:
    """IllegalLayout for the first tensor that a framework cuts evenly and that leaves a remainder."""
    for kind in dict.fromkeys(graph.layers[layer].kind for stage in framework.stages for layer in stage):
        for spec in graph.tensors[kind]:
            if not spec.is_buffer:
                require_even(spec.name, spec.shape, spec.copies, framework.life(spec).rest.layout, mesh, rule)


def cuts(graph: ModelGraph, framework: Framework) -> Iterable[tuple[TensorSpec, Sequence[tuple[str, Shard]]]]:
    """Every distinct tensor with the cuts of its resting layout (what folding looks at)."""
    for specs in graph.tensors:
        for spec in specs:
            layout = framework.life(spec).rest.layout
            yield spec, tuple((axis, cut) for axis, cut in layout if isinstance(cut, Shard))
