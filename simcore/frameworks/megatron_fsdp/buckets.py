"""A rank's parameters in buckets, the units of gathers and reductions: [Note: Megatron-FSDP buckets] in `chunks.py`.

A bucket has the tensors of one unit (or of no unit), of one dtype, experts' or not, trained or not; buckets are
numbered in the order in which their first tensor is registered (core 0.16.1 `param_and_grad_buffer.py`,
`_get_parameter_groups`). A bucket of no unit is closed at `MegatronFsdpStrategy.bucket_numel` elements. Frozen buckets
have no gradients and no masters (`only_create_grad_buffer_and_main_weight_buffer_for_param_requires_grad`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from simcore.frameworks.megatron_fsdp.chunks import Chunked, lay_in_chunks
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.placement.mesh import Mesh
from simcore.placement.plan import AtRestBytes, Placed, PlacedKind, Plan
from simcore.units import dtype_bytes

__all__ = ["POOL", "Bucket", "bucket_padding", "bucket_padding_bytes", "exact_in_buckets", "outer_parts",
           "rank_buckets", "registered_pool", "shared_units", "together"]

ADAPTER = ".adapter."
"""Between the path of a linear and the names of its adapter's tensors."""
POOL = 2
"""Number of buffers that units share (core 0.16.1 param_and_grad_buffer.py, UB_BUFFER_NUM)."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """One flat buffer of parameters that are gathered and reduced together, cut over `parts` ranks.

    `axis`: the mesh axis of these ranks. `unit`: index of its FSDP unit in `Framework.units`, or -1. `members`: (layer
    number of the whole model, index of the tensor in the layer) of every parameter, once for each expert. `chunked`:
    where each begins. `outer`: parts of a shard, each with its optimizer states on another rank.
    """

    unit: int
    axis: str
    parts: int
    dtype: str
    trainable: bool
    members: tuple[tuple[int, int], ...]
    chunked: Chunked
    outer: int = 1

    @property
    def numel(self) -> int:
        """Elements of the bucket, padding included."""
        return self.chunked.numel

    @property
    def shard(self) -> int:
        """Elements that one rank keeps: an equal part of the bucket, with padding."""
        return self.numel // self.parts

    @property
    def state_shard(self) -> int:
        """Elements whose optimizer states one rank keeps, with padding."""
        return self.shard // self.outer

    @property
    def first_layer(self) -> int:
        """Lowest layer number of its members: backward makes that layer's gradients last."""
        return min(layer for layer, _ in self.members)


_Key = tuple[int, str, str, bool]
_Entry = tuple[int, int, tuple[int, ...]]
"""(layer, tensor number, shape) of a parameter."""


@lru_cache(maxsize=8)
def rank_buckets(plan: Plan) -> tuple[Bucket, ...]:
    """Returns all buckets of the plan's rank; a bucket's number is its index here."""
    strategy = plan.framework.strategy_as(MegatronFsdpStrategy)
    unit_of = {layer: number for number, unit in enumerate(plan.framework.units) for layer, _ in unit.members}
    groups: dict[_Key, list[_Entry]] = {}
    orders = [_registered(kind) for kind in plan.kinds]
    for layer in plan.layers:
        kind = plan.of_layer(layer)
        for number in orders[plan.graph.layers[layer].kind]:
            placed = kind[number]
            if placed.spec.is_owned and not placed.spec.is_buffer:
                key = (unit_of.get(layer, -1), strategy.axes[placed.policy.name == "expert"],
                       placed.policy.at_rest.dtype, placed.trainable)
                groups.setdefault(key, []).extend([(layer, number, placed.used_shape)] * placed.used_copies)
    return tuple(_bucket(plan, key, piece) for key, entries in groups.items()
                 for piece in _closed(entries, strategy.bucket_numel if key[0] < 0 else 0))


def _registered(kind: PlacedKind) -> list[int]:
    """Numbers of a layer's tensors in the order of `named_parameters`: adapters are behind the linear that they wrap.

    Bridge main `peft/adapter_wrapper.py` registers `to_wrap`, then `adapter`.
    """
    last = {placed.spec.path: number for number, placed in enumerate(kind) if placed.spec.module != "adapter"}
    behind = {number: last[placed.spec.name.partition(ADAPTER)[0]] for number, placed in enumerate(kind)
              if placed.spec.module == "adapter"}
    return sorted(range(len(kind)), key=lambda number: (behind.get(number, number), number in behind))


def _closed(entries: Sequence[_Entry], limit: int) -> Iterator[list[_Entry]]:
    """Groups with at least `limit` elements; the last one has the remainder."""
    piece: list[_Entry] = []
    numel = 0
    for entry in entries:
        piece.append(entry)
        numel += _numel(entry[2])
        if limit and numel >= limit:
            yield piece
            piece, numel = [], 0
    if piece:
        yield piece


def _numel(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _bucket(plan: Plan, key: _Key, entries: Sequence[_Entry]) -> Bucket:
    unit, axis, dtype, trainable = key
    strategy = plan.framework.strategy_as(MegatronFsdpStrategy)
    parts, outer = plan.mesh.axis(axis).size, outer_parts(plan.mesh, strategy)
    return Bucket(unit, axis, parts, dtype, trainable, tuple((layer, number) for layer, number, _ in entries),
                  lay_in_chunks(tuple(shape for _, _, shape in entries), parts * outer), outer)


def outer_parts(mesh: Mesh, strategy: MegatronFsdpStrategy) -> int:
    """Returns the number of parts into which the states of a shard are cut: 1 without `shards_outer`."""
    return mesh.axis(strategy.replicate_axis).size if strategy.shards_outer else 1


def _bucket_storage(plan: Plan) -> tuple[int, int]:
    """(bytes of parameters, elements of trained parameters) of the rank's shards of buckets, padding included."""
    buckets = rank_buckets(plan)
    return sum(b.shard * dtype_bytes(b.dtype) for b in buckets), sum(b.shard for b in buckets if b.trainable)


def bucket_padding(plan: Plan) -> tuple[int, int, int]:
    """Returns padding in this rank's shards: (bytes of parameters, elements of gradients, elements of masters).

    It is what the shards have beyond the tensors, which `Plan` counts as the mean over ranks simulated as one.
    """
    params, trained = _bucket_storage(plan)
    owned = [(count, p) for kind, count in plan.kind_counts for p in plan.kinds[kind]
             if p.spec.is_owned and not p.spec.is_buffer]
    masters = sum(b.state_shard for b in rank_buckets(plan) if b.trainable)
    return (params - sum(count * p.rest_bytes for count, p in owned),
            trained - sum(count * p.local for count, p in owned if p.trainable),
            masters - sum(count * size // 4 for count, p in owned for name, size in p.states if name == "master_param"))


def bucket_padding_bytes(plan: Plan, components: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]:
    """Returns the bytes of this rank's shards of (parameters, gradients) beyond those in `components`."""
    params, trained = _bucket_storage(plan)
    grads = trained * dtype_bytes(plan.framework.strategy_as(MegatronFsdpStrategy).grad_dtype)
    return (params - sum(c.params_bytes for c in components.values()),
            grads - sum(c.grads_bytes for c in components.values()))


def exact_in_buckets(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns bytes at rest by component of the model, from the elements in this rank's own shards."""
    elements: dict[tuple[int, int], tuple[int, int]] = {}
    axis = plan.framework.strategy_as(MegatronFsdpStrategy).replicate_axis
    for bucket in rank_buckets(plan):
        index = plan.mesh.axis(bucket.axis).coordinate(plan.rank)
        part = index * bucket.outer + (plan.mesh.axis(axis).coordinate(plan.rank) if bucket.outer > 1 else 0)
        for member, inside, updated in zip(bucket.members, bucket.chunked.part(index, bucket.parts),
                                           bucket.chunked.part(part, bucket.parts * bucket.outer), strict=True):
            before = elements.get(member, (0, 0))
            elements[member] = before[0] + inside, before[1] + updated
    totals = {name: AtRestBytes() for name in plan.at_rest()}
    for (layer, number), (inside, updated) in elements.items():
        placed = plan.of_layer(layer)[number]
        component = placed.spec.component
        totals[component] = totals[component] + _at_rest(placed, inside, updated)
    return totals


def _at_rest(placed: Placed, inside: int, updated: int) -> AtRestBytes:
    trained = inside if placed.trainable else 0
    states = sum(dtype_bytes(layout.dtype) for _, layout in placed.policy.optimizer_states)
    return AtRestBytes(inside * dtype_bytes(placed.policy.at_rest.dtype),
                       trained * dtype_bytes(placed.policy.grad.dtype), updated * states * placed.trainable, inside,
                       trained)


def registered_pool(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Returns the bytes of the tensors in the one memory pool that NCCL registers with `nccl_ub`; () without it.

    Shards of parameters, the buffers that equal units share, then the same of gradients; masters and buckets without
    shared buffers are outside (core 0.16.1 and main param_and_grad_buffer.py: mem_alloc_context).
    """
    strategy = plan.framework.strategy_as(MegatronFsdpStrategy)
    if not strategy.nccl_ub:
        return ()
    buckets = rank_buckets(plan)
    columns = [b for b in buckets if strategy.has_columns and b.dtype == "fp8"]
    weights = [(b, dtype_bytes(b.dtype)) for b in (*buckets, *columns)]
    kept, sent = ([(b, dtype_bytes(dtype)) for b in buckets if b.trainable]
                  for dtype in (strategy.grad_dtype, strategy.comm_dtype))
    pooled = shared_units(buckets)
    return (tuple(size for shards, whole in ((weights, weights), (kept, sent)) for size in (
        *(b.shard * width for b, width in shards),
        *(b.numel * width for b, width in whole if pooled and b.unit == min(pooled) and b.parts > 1
          for _ in range(min(POOL, len(pooled)))))),)


def together(buckets: Sequence[Bucket]) -> list[list[int]]:
    """Returns for each bucket the indices of the buckets that are gathered with it, itself included.

    They are those of the same unit over the same ranks; a bucket of no unit is alone.
    """
    groups: dict[tuple[int, str], list[int]] = {}
    for b, bucket in enumerate(buckets):
        groups.setdefault((bucket.unit, bucket.axis), []).append(b)
    return [groups[bucket.unit, bucket.axis] if bucket.unit >= 0 else [b] for b, bucket in enumerate(buckets)]


def shared_units(buckets: Sequence[Bucket]) -> frozenset[int]:
    """Returns the indices (`Bucket.unit`) of the largest set of units with equal buckets, in dtypes and elements.

    Of equally large sets the first one; empty without units.
    """
    units_by_shape: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for unit in dict.fromkeys(b.unit for b in buckets if b.unit >= 0):
        key = tuple((b.dtype, sum(b.chunked.sizes)) for b in buckets if b.unit == unit)
        units_by_shape.setdefault(key, []).append(unit)
    return frozenset(max(units_by_shape.values(), key=len) if units_by_shape else ())
