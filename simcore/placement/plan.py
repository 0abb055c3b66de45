"""Placement: elements and bytes of each tensor of each kind of layer on a rank.

Input: graph, mesh, framework. Output: the `Plan` of one rank (a class's representative). No function here loops over
ranks: a plan is a function of the rank's coordinates on the axes that split something.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Framework, TensorPolicies, TensorPolicy
from simcore.placement.layout import Flat, Placements, Shard, TensorLayout, local_shape, padded_numel, require_even
from simcore.placement.mesh import Mesh
from simcore.units import dtype_bytes

__all__ = ["AtRestBytes", "Placed", "PlacedKind", "Plan", "check_even", "place"]


@dataclass(frozen=True, slots=True)
class Placed:
    """One tensor as one rank holds it.

    `local`: the rank's elements at rest, `padded`: those with padding; a flat cut, whose parts vary by rank, counts the
    mean. `used_shape`, `used_copies`: the shape in which operators see it, and how many such tensors (one for each
    expert). `states`: (name, bytes) of each optimizer state on the device. `elsewhere`: (what, memory space, bytes) of
    parameters, gradients and optimizer states outside device memory. `grad_parts`: number of further parts into which
    reduced gradients are cut, beyond the cut of the parameter. `constants`: bytes of the quantization constants of
    packed values.
    """

    spec: TensorSpec
    policy: TensorPolicy
    local: int
    padded: int
    used_shape: tuple[int, ...]
    used_copies: int
    states: tuple[tuple[str, int], ...]
    elsewhere: tuple[tuple[str, str, int], ...] = ()
    grad_parts: int = 1
    constants: int = 0

    @property
    def used(self) -> int:
        """Elements of the tensor as operators of this rank see it (gathered), over all of its copies."""
        return math.prod(self.used_shape) * self.used_copies

    @property
    def trainable(self) -> bool:
        """True if the tensor has a gradient of its own: it is trained, no buffer, and not tied (but `apart`)."""
        return self.spec.trainable and (self.spec.is_owned or self.policy.apart)

    @property
    def rest_bytes(self) -> int:
        """Bytes of the parameter at rest in device memory, with padding, and of its quantization constants."""
        return self.policy.at_rest.num_bytes(self.padded) * (self.rests_here and not self.spec.tied) + self.constants

    @property
    def rests_here(self) -> bool:
        """True if the parameter at rest is in device memory."""
        return self.policy.at_rest.space == "device"

    @property
    def state_bytes(self) -> int:
        """Bytes of all optimizer states of the tensor in this rank's device memory."""
        return sum(num_bytes for _, num_bytes in self.states)


@dataclass(frozen=True, slots=True)
class AtRestBytes:
    """Bytes in one rank's device memory just before the optimizer's step, of one component's tensors, without padding.

    `grads_bytes` is 0 where gradients do not wait for that step. `num_params`: elements that the rank holds, on the
    device or elsewhere. A component is a part of the model such as attention; see `report.AtRest`.
    """

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
        """Returns the sum of `count` such values: each field multiplied by `count`."""
        return AtRestBytes(self.params_bytes * count, self.grads_bytes * count, self.optimizer_bytes * count,
                           self.num_params * count, self.num_trainable_params * count)


class PlacedKind(tuple[Placed, ...]):
    """The tensors of one kind of layer on one rank, in the order of the graph, and their sums.

    Compared by identity: each is made only once.
    """

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def at_rest(self) -> dict[str, AtRestBytes]:
        """Bytes at rest of one layer by component of the model ("attention", ...).

        Buffers and tied tensors are left out.
        """
        totals: dict[str, AtRestBytes] = {}
        for placed in self:
            if placed.spec.is_owned or placed.policy.apart:
                component = placed.spec.component
                totals[component] = totals.get(component, AtRestBytes()) + _at_rest(placed)
        return totals

    @cached_property
    def state_bytes(self) -> dict[str, int]:
        """Bytes of one layer's optimizer states on the device, by name of the state ("exp_avg", ...)."""
        sums: dict[str, int] = {}
        for name, num_bytes in (state for placed in self for state in placed.states):
            sums[name] = sums.get(name, 0) + num_bytes
        return sums

    @cached_property
    def rest_bytes(self) -> int:
        """Bytes of one layer's parameters and buffers at rest in device memory, padding included."""
        return sum(placed.rest_bytes for placed in self)

    @cached_property
    def padding_bytes(self) -> int:
        """Bytes of padding in the storage of one layer's parameters in device memory."""
        return sum(p.policy.at_rest.num_bytes(p.padded - p.local) * p.rests_here for p in self if not p.spec.tied)

    @cached_property
    def elsewhere(self) -> dict[str, int]:
        """Bytes of one layer's parameters, gradients and optimizer states outside device memory, by memory space.

        Spaces: "host_pinned", "host", "managed", ...; empty if all are on the device.
        """
        sums: dict[str, int] = {}
        for _, space, num_bytes in (one for placed in self for one in placed.elsewhere):
            sums[space] = sums.get(space, 0) + num_bytes
        return sums

    @cached_property
    def is_trained(self) -> bool:
        """True if any of the tensors is trained."""
        return any(placed.trainable for placed in self)


@dataclass(frozen=True)
class Plan:
    """All tensors that one rank holds.

    `stage`: its pipeline rank. `chunks`: for each of its pipeline chunks, the layer numbers. `kinds`: the placed
    tensors of every kind of layer of the model, by the kind's index. Ranks with equal plans are simulated once.
    """

    graph: ModelGraph
    mesh: Mesh
    framework: Framework
    rank: int
    stage: int
    chunks: tuple[tuple[int, ...], ...]
    kinds: tuple[PlacedKind, ...]

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layer numbers of all chunks of this rank, chunk by chunk."""
        return tuple(layer for chunk in self.chunks for layer in chunk)

    def __hash__(self) -> int:
        """Hashes only some fields, once, for speed: a plan is looked up many times in a scenario."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        framework = self.framework
        return hash((self.graph, self.mesh, self.rank, self.chunks, framework.strategy, framework.checkpoint))

    def of_layer(self, layer: int) -> PlacedKind:
        """Returns this rank's tensors of layer number `layer`."""
        return self.kinds[self.graph.layers[layer].kind]

    @cached_property
    def kind_counts(self) -> tuple[tuple[int, int], ...]:
        """(index of a kind of layer, number of this rank's layers of that kind) pairs, in order of first occurrence."""
        return _kind_counts(self.graph, self.layers)

    def at_rest(self) -> dict[str, AtRestBytes]:
        """Returns device bytes at rest of all layers of this rank, by component ("attention", ...).

        Buffers and tied tensors are left out.
        """
        totals: dict[str, AtRestBytes] = {}
        for kind, count in self.kind_counts:
            for component, one in self.kinds[kind].at_rest.items():
                totals[component] = totals.get(component, AtRestBytes()) + one.times(count)
        return totals

    @cached_property
    def dealt(self) -> tuple[int, int]:
        """Elements that only this rank updates, as (with Muon, with Adam).

        Only for frameworks that assign whole parameters to ranks (`Framework.dealt`); IndexError under others.
        """
        mine = self.framework.dealt[self.stage]
        shares = [share[self.mesh.axis(axis).coordinate(self.rank)]
                  for axis, share in zip(mine.axes, mine.shares, strict=True)]
        return sum(muon for muon, _ in shares), sum(adam for _, adam in shares)

    def born_in_step(self) -> int:
        """Returns the bytes of optimizer states that the first optimizer step allocates.

        They are all states in device memory but the fp32 masters, and these too if `Optimizer.late_master`.
        """
        if self.framework.dealt:
            return 4 * self.dealt[0] + 8 * self.dealt[1]
        late = self.framework.optimizer.late_master
        return sum(count * size for kind, count in self.kind_counts
                   for name, size in self.kinds[kind].state_bytes.items() if late or name != "master_param")

    def elsewhere(self) -> dict[str, int]:
        """Returns this rank's bytes of tensors outside device memory, by memory space ("host_pinned", ...)."""
        found: dict[str, int] = {}
        for kind, count in self.kind_counts:
            for space, num_bytes in self.kinds[kind].elsewhere.items():
                found[space] = found.get(space, 0) + count * num_bytes
        return found

    def host_bytes(self, tokens: int) -> int:
        """Returns the bytes of the rank on the host while one microbatch of `tokens` tokens runs.

        They are offloaded tensors, and inputs of recomputed layers (`offloaded_input_bytes`); no buffers of the
        framework.
        """
        rests = sum(size for space, size in self.elsewhere().items() if space.startswith("host"))
        return rests + self.offloaded_input_bytes(tokens)

    def offloaded_input_bytes(self, tokens: int) -> int:
        """Returns the host bytes of the inputs that one microbatch of `tokens` tokens keeps for recomputation.

        One input [tokens, hidden] for each transformer layer of this rank, but for `Framework.kept_inputs`. 0 unless
        they are offloaded. Not pinned.
        """
        if not self.framework.options.inputs_on_host:
            return 0
        layers = sum(self.graph.kinds[self.graph.layers[layer].kind].block is None for layer in self.layers
                     if layer not in self.framework.kept_inputs)
        return layers * tokens * self.graph.architecture.hidden * dtype_bytes(self.framework.compute_dtype)

    def padding_bytes(self) -> int:
        """Returns the bytes of padding in this rank's parameter storage on the device.

        Padding of flat buffers, which hold many tensors end to end, is not included.
        """
        return sum(count * self.kinds[kind].padding_bytes for kind, count in self.kind_counts)


@lru_cache(maxsize=256)
def _kind_counts(graph: ModelGraph, layers: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(Counter(graph.layers[layer].kind for layer in layers).items())


def place(graph: ModelGraph, mesh: Mesh, framework: Framework, rank: int) -> Plan:
    """Returns the plan of one rank, numbered over the whole job: each of its tensors in elements and bytes."""
    stage = mesh.axis("pp").coordinate(rank)
    kinds = _kinds(graph, mesh, framework.policies(graph), rank)
    chunks = tuple(framework.stages[part] for part in framework.schedule.parts_of(stage))
    return Plan(graph, mesh, framework, rank, stage, chunks, kinds)


@lru_cache(maxsize=256)
def _kinds(graph: ModelGraph, mesh: Mesh, policies: TensorPolicies, rank: int) -> tuple[PlacedKind, ...]:
    return tuple(PlacedKind(_place_tensor(spec, policy, mesh, rank) for spec, policy in zip(specs, of, strict=True))
                 for specs, of in zip(graph.tensors, policies.of, strict=True))


def _place_tensor(spec: TensorSpec, policy: TensorPolicy, mesh: Mesh, rank: int) -> Placed:
    used_copies, *used_shape = local_shape(spec.copies, spec.shape, policy.in_use.placements, mesh, rank)
    if spec.tied and not policy.apart:
        return Placed(spec, policy, 0, 0, tuple(used_shape), used_copies, ())
    stored, values = policy.at_rest.stored_shape(spec.shape), policy.at_rest.values
    whole = math.prod(local_shape(spec.copies, stored, policy.at_rest.placements, mesh, rank)) * values
    local = whole // _flat_parts(policy.at_rest.placements, mesh)
    padded = (padded_numel(spec.copies, stored, policy.at_rest.placements, mesh) * values if policy.pad_storage
              else _storage(whole // values, spec.copies, policy.at_rest.placements, mesh) * values)
    trains = spec.trainable and spec.is_owned
    states = tuple((name, layout.space_of(spec.numel // _flat_parts(layout.placements, mesh)),
                    _state_bytes(spec, layout, policy, whole, mesh, rank)) for name,
                   layout in policy.optimizer_states) if trains else ()
    shaped = {name for name, layout in policy.optimizer_states if layout.extent is not None}
    here = tuple((name, num_bytes) for name, space, num_bytes in states
                 if space == "device" and (num_bytes or name not in shaped))
    cut_more = _flat_parts(tuple(cut for cut in policy.grad.placements if cut not in policy.at_rest.placements), mesh)
    kept = (("parameters", policy.at_rest.space, policy.at_rest.num_bytes(padded)),
            ("gradients", policy.grad.space, local // cut_more * dtype_bytes(policy.grad.dtype) * trains),
            *(("gradients" if name == "grad_copy" else "optimizer states", space, num_bytes)
              for name, space, num_bytes in states))
    away = tuple((what, space, num_bytes) for what, space, num_bytes in kept if space != "device" and num_bytes)
    return Placed(spec, policy, local, padded, tuple(used_shape), used_copies, here, away, cut_more,
                  spec.copies * policy.at_rest.constants(spec.shape))


def _state_bytes(spec: TensorSpec, layout: TensorLayout, policy: TensorPolicy, whole: int, mesh: Mesh,
                 rank: int) -> int:
    """`whole`: elements of the parameter at rest before a flat cut, which most states are cut like."""
    if layout.extent is not None:
        copies, *shape = local_shape(spec.copies, spec.shape, layout.placements, mesh, rank)
        return copies * layout.extent(spec.name, tuple(shape)) * dtype_bytes(layout.dtype)
    numel = whole
    if layout.placements is not policy.at_rest.placements:
        numel = math.prod(local_shape(spec.copies, spec.shape, layout.placements, mesh, rank))
    if layout.blocks is not None:
        copies = max(1, local_shape(spec.copies, spec.shape, layout.placements, mesh, rank)[0])
        return copies * layout.blocks.num_bytes(numel // copies // _flat_parts(layout.placements, mesh), layout.dtype)
    if any(isinstance(cut, Flat) and cut.scope == "tensor" for _, cut in layout.placements):
        return _storage(numel, spec.copies, layout.placements, mesh) * dtype_bytes(layout.dtype)
    return round(numel * dtype_bytes(layout.dtype) * layout.share) // _flat_parts(layout.placements, mesh)


def _storage(numel: int, copies: int, placements: Placements, mesh: Mesh) -> int:
    """Elements of a rank's part: padded where each tensor is cut alone, else the mean of what is cut together.

    `numel`: elements of all `copies`, of which each is such a tensor.
    """
    parts = _flat_parts(placements, mesh)
    is_alone = any(isinstance(cut, Flat) and cut.scope == "tensor" for _, cut in placements)
    return copies * -(-numel // copies // parts) if is_alone else numel // parts


def _flat_parts(placements: Placements, mesh: Mesh) -> int:
    return math.prod(mesh.axis(axis).size for axis, cut in placements if isinstance(cut, Flat))


def _at_rest(placed: Placed) -> AtRestBytes:
    policy = placed.policy
    trained = placed.local if placed.trainable else 0
    grads = trained // placed.grad_parts * dtype_bytes(policy.grad.dtype) * policy.grad_waits
    if placed.spec.tied:  # the parameter is counted where it rests
        return AtRestBytes(grads_bytes=grads)
    own = policy.at_rest.num_bytes(placed.local) * placed.rests_here + placed.constants
    return AtRestBytes(own, grads, placed.state_bytes, placed.local, trained)


def check_even(graph: ModelGraph, mesh: Mesh, framework: Framework, rule: str) -> None:
    """Raises IllegalLayout, which cites `rule`, for the first tensor that ranks cannot divide evenly.

    Only tensors that the framework requires to be cut evenly are looked at.
    """
    kinds = tuple(dict.fromkeys(graph.layers[layer].kind for stage in framework.stages for layer in stage))
    _check_even(graph, mesh, framework.policies(graph), kinds, rule)


@lru_cache(maxsize=256)
def _check_even(graph: ModelGraph, mesh: Mesh, policies: TensorPolicies, kinds: tuple[int, ...], rule: str) -> None:
    for kind in kinds:
        for spec, policy in zip(graph.tensors[kind], policies.of[kind], strict=True):
            if not spec.is_buffer:
                require_even(spec.name, spec.shape, spec.copies, policy.at_rest.placements, mesh, rule)


def cuts(graph: ModelGraph, policies: TensorPolicies) -> Iterable[tuple[tuple[int, ...], Sequence[tuple[str, Shard]]]]:
    """Yields, for each parameter and buffer of each kind of layer, (shape as stored, cuts at rest).

    The shape is (copies, dimensions...); a cut is (mesh axis, `Shard`); other placements are left out. Ranks whose
    parts are equal by these cuts can be simulated as one.
    """
    for specs, of in zip(graph.tensors, policies.of, strict=True):
        for spec, policy in zip(specs, of, strict=True):
            shape = (spec.copies, *policy.at_rest.stored_shape(spec.shape))
            yield shape, tuple((axis, cut) for axis, cut in policy.at_rest.placements if isinstance(cut, Shard))
