"""Tensors of one rank and the owners of the bytes at its peak, as rows of the report's `detail`.

Input: a `Plan`, or a `MemoryPeak` with all of its owners. Output: rows of `detail`. Layers of one kind hold the same
tensors, so a row stands for all of them. Sums over rows equal those of the report, except for flat shards, where a row
is the mean of its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from simcore.memory.ledger import MemoryPeak
from simcore.placement.layout import Flat, Placements, Shard
from simcore.placement.mesh import Mesh
from simcore.placement.plan import Placed, Plan
from simcore.results.detail import Holder, TensorRow
from simcore.units import dtype_bytes

__all__ = ["holders", "kinds_by_path", "tensor_rows"]

OUTSIDE_LAYERS = "between stages"


def tensor_rows(plan: Plan) -> tuple[TensorRow, ...]:
    """Parameters and buffers of the plan's rank, an entry for each tensor of each kind of layer.

    Kinds come as they first occur on the rank; an entry's bytes are those of all of the rank's layers of that kind.
    Tensors whose storage another layer owns (tied weights) are left out, but for those with gradients of their own.
    """
    kinds = plan.graph.kinds
    return tuple(_row(kinds[kind].name, count, placed, plan.mesh)
                 for kind, count in plan.kind_counts for placed in plan.kinds[kind]
                 if not placed.spec.tied or placed.policy.apart)


def _row(layers: str, count: int, placed: Placed, mesh: Mesh) -> TensorRow:
    spec, policy = placed.spec, placed.policy
    trained = placed.local if placed.trainable else 0
    grads = trained // placed.grad_parts * dtype_bytes(policy.grad.dtype) * (policy.grad.space == "device")
    return TensorRow(
        layers=layers, num_layers=count, name=spec.name, component="buffer" if spec.is_buffer else spec.component,
        dtype=policy.at_rest.dtype, shape=spec.shape, copies=spec.copies, num_elements=placed.local,
        cut=tuple(_cuts(policy.at_rest.placements, mesh)), params_bytes=count * placed.rest_bytes,
        grads_bytes=count * grads, optimizer_bytes=count * placed.state_bytes, trainable=placed.trainable,
        life=policy.name)


def _cuts(placements: Placements, mesh: Mesh) -> Iterator[str]:
    """Cuts of a tensor, such as `ep 8: copies`, `tp 2: dim 0`, `dp_cp 4: flat in its buffer`.

    Axes of size 1 have none.
    """
    for name, placement in placements:
        size = mesh.axis(name).size
        if size > 1 and isinstance(placement, Shard):
            yield f"{name} {size}: {'copies' if placement.dim < 0 else f'dim {placement.dim}'}"
        elif size > 1 and isinstance(placement, Flat):
            yield f"{name} {size}: flat in its {placement.scope}"


def kinds_by_path(plan: Plan) -> dict[str, str]:
    """Name of each layer's kind (such as "decoder" or "head") by module path, for all layers of the whole model."""
    return {layer.path: plan.graph.kinds[layer.kind].name for layer in plan.graph.layers}


def holders(balance: MemoryPeak, kinds: Mapping[str, str]) -> tuple[Holder, ...]:
    """Tensors that hold bytes at the peak, summed over layers of one kind, largest first.

    `balance.top` must have all owners of one rank. `kinds`: name of the kind by module path (`kinds_by_path`); bytes of
    other owners count for "between stages".
    """
    sizes: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    for owner, category, num_bytes in balance.top:
        path, _, name = owner.partition("/")
        key = (kinds.get(path, OUTSIDE_LAYERS), name, category)
        sizes[key] += num_bytes
        counts[key] += 1
    order = sorted(sizes, key=lambda key: (-sizes[key], key))
    return tuple(Holder(owner=key[1], layers=key[0], num_layers=counts[key], category=key[2], bytes=sizes[key])
                 for key in order)
