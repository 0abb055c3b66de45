"""Transfer of the policy's weights to the engine: tensors gathered one after the other, packed into shared buffers.

[Note: refit]
NeMo RL main of 2026-08-22 (7ea279ab) `algorithms/grpo.py` refit_policy_generation, `models/policy/utils.py`
stream_weights_via_ipc_zmq_impl, `models/policy/workers/dtensor_policy_worker_v2.py` dtensor_params_generator. On shared
GPUs: a share of the memory that is free when the engine has its weights back (NRL_REFIT_BUFFER_MEMORY_RATIO, 0.3) goes
to two buffers that take turns; the engine reads them through IPC handles, without copying; a tensor that does not fit
gets a separate buffer. On separate GPUs: two buffers that are broadcast, each filled until it passes 2% of
the device, at most 5 GiB, made of collected tensors and then of their concatenation (`utils/packed_tensor.py`). Every
entry of the state dict is gathered in the dtype in which it rests, an adapter's product is added (a product and a sum,
each of the weight's size), and cast to the engine's dtype; experts in one tensor are gathered together. Automodel's own
layers then pass on one expert after the other (`convert_single_tensor_to_hf`). A Megatron policy is
exported by Megatron-Bridge (`megatron_policy_worker.py` _iter_params_with_optional_kv_scales): parts of one matrix are
gathered and concatenated; adapters are merged before, which is not counted. Every rank exports the layers of all
pipeline stages: the stage that has a matrix broadcasts the part of its tensor-parallel rank to the others, which
receive it in a tensor of their own (Megatron-Bridge 067f987d `models/conversion/param_mapping.py`
broadcast_from_pp_rank), an expert at a time; then parts are gathered as on one stage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.operators.registry import implementation_of
from simcore.placement.mesh import Mesh
from simcore.placement.plan import Placed, PlacedKind, Plan
from simcore.timing.routes import Routes
from simcore.units import dtype_bytes

__all__ = ["Buffers", "Gather", "Gathered", "alternating", "broadcast_buffers", "flattened", "gathered",
           "gathering_ns", "ipc_buffers", "packed_bytes"]

_ADAPTER: Final = re.compile(r"\.?lora_.*")
_SENT: Final = 2
"""Bytes of an element sent to the engine: `policy.precision` bfloat16."""
_SENT_AS: Final = "bf16"
_ALIGNED: Final = 512
_PACKED_SHARE, _PACKED_MOST = 0.02, 5 * 2**30


@dataclass(frozen=True, slots=True)
class Gather:
    """Equal collectives of one rank: `num_calls` on a mesh axis, each of `num_bytes` in its full output."""

    axis: str
    dtype: str
    num_bytes: int
    num_calls: int
    collective: str = "all_gather"


@dataclass(frozen=True, slots=True)
class Gathered:
    """Sizes and time of gathering all parameters of the model on one rank, to send them to the engine.

    `transient`: most bytes that gathering one tensor takes, on a rank of another stage than the tensor's if there are
    several; `largest`: bytes of the largest tensor as it is sent (full, 2 bytes an element); `total`: bytes of all as
    they are sent. `calls`: collectives on mesh axes; `ns`: time of all, one after the other.
    """

    transient: int
    largest: int
    total: int
    calls: tuple[Gather, ...]
    ns: int


def gathered(plans: Sequence[Plan], routes: Routes) -> Gathered:
    """Sizes in bytes and time in ns of gathering all parameters of the model; adapters are merged.

    `plans`: of one rank of each pipeline stage. See [Note: refit]; an unsharded model takes no time.
    """
    first = plans[0]
    return _by_unit(first, routes) if first.framework.strategy.rl_worker.is_module else _exported(plans, routes)


def _by_unit(plan: Plan, routes: Routes) -> Gathered:
    """Gathers over the axis on which most ranks shard; without sharding there is no gather."""
    axes = sorted({unit.shard_axis for unit in plan.framework.units})
    sizes = [(placed, count * placed.spec.copies, placed.spec.numel) for kind, count in plan.kind_counts
             for placed in plan.kinds[kind] if placed.spec.is_owned and placed.spec.module != "adapter"]
    axis = max(axes, key=lambda name: plan.mesh.axis(name).size) if axes else ""
    tp = plan.mesh.tp
    calls = [Gather(over, placed.policy.at_rest.dtype, numel * dtype_bytes(placed.policy.at_rest.dtype) // parts, times)
             for placed, times, numel in sizes
             for over, parts in ((axis, tp if _is_split(placed) else 1), *(("tp", 1),) * _is_split(placed))
             ] if axis else []
    splits = implementation_of(plan.graph.implementation).exports_experts_apart
    return Gathered(
        max(_transient(placed, _parts(placed, splits=splits), gathers=bool(axis),
                       adapted=placed.spec.path in _adapted(plan.kinds[kind]))
            for kind, _ in plan.kind_counts for placed in plan.kinds[kind] if placed.spec.is_owned),
        max(numel // _parts(placed, splits=splits) * _SENT for placed, _, numel in sizes),
        sum(times * numel * _SENT for _, times, numel in sizes), tuple(calls), gathering_ns(calls, routes))


def _is_split(placed: Placed) -> bool:
    """True if tp splits the parameter: it is gathered over data first, then over tp."""
    return any(axis == "tp" for axis, _ in placed.policy.at_rest.placements)


def gathering_ns(calls: Sequence[Gather], routes: Routes) -> int:
    """Time in ns of all calls, one after the other."""
    return sum(call.num_calls * routes.of(call.collective, call.axis).ns(call.num_bytes) for call in calls)


def _exported(plans: Sequence[Plan], routes: Routes) -> Gathered:
    """Megatron-Bridge's export: a matrix gathered over tp, an expert's over ep, as parts and as their concatenation."""
    mesh = plans[0].mesh
    sizes = [(placed, count) for plan in plans for kind, count in plan.kind_counts for placed in plan.kinds[kind]
             if placed.spec.is_owned and placed.spec.module != "adapter"]
    matrices = [_matrix(placed, count, mesh) for placed, count in sizes]
    calls = [call for matrix in matrices for call in matrix.calls(mesh)]
    return Gathered(
        max(2 * matrix.num_bytes + (matrix.part if mesh.pp > 1 else 0) for matrix in matrices),
        max(placed.spec.numel * _SENT for placed, _ in sizes),
        sum(placed.spec.numel * placed.spec.copies * _SENT * count for placed, count in sizes), tuple(calls),
        gathering_ns(calls, routes))


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A kind of matrix that is exported `times` by each rank: `num_bytes` of the gathered parts, `part` of a rank's."""

    axis: str
    num_bytes: int
    part: int
    times: int

    def calls(self, mesh: Mesh) -> Iterator[Gather]:
        """Its broadcasts to the other stages, then its gathers over the ranks that split it."""
        if mesh.pp > 1:
            yield Gather("pp", _SENT_AS, self.part, self.times, "broadcast")
        if (mesh.ep if self.axis == "ep" else mesh.tp) > 1:
            yield Gather(self.axis, _SENT_AS, self.num_bytes, self.times)


def _matrix(placed: Placed, count: int, mesh: Mesh) -> _Matrix:
    numel, part = placed.spec.numel * _SENT, math.prod(placed.used_shape) * _SENT
    if placed.spec.copies > 1:
        return _Matrix("ep", numel * mesh.ep, part, max(1, placed.spec.copies // mesh.ep) * count)
    return _Matrix("tp", numel, part, count)


def _adapted(kind: PlacedKind) -> frozenset[str]:
    """Modules of a layer that carry adapters."""
    return frozenset(_ADAPTER.sub("", placed.spec.name) for placed in kind if placed.spec.module == "adapter")


def _parts(placed: Placed, *, splits: bool) -> int:
    """Number of tensors that one entry of the state dict becomes."""
    return placed.spec.shape[0] if splits and placed.spec.module == "grouped" else 1


def _transient(placed: Placed, parts: int, *, gathers: bool, adapted: bool) -> int:
    """Bytes of the gathered weight, an adapter's product and their sum, and the tensor that is sent."""
    numel, width = placed.spec.numel, dtype_bytes(placed.policy.at_rest.dtype)
    part = placed.used if gathers and _is_split(placed) else 0  # gathered over data
    return numel * width * (gathers + 2 * adapted) + part * width + numel // parts * _SENT


def ipc_buffers(free: int, ratio: float, largest: int) -> dict[str, int]:
    """Bytes, under the key `buffer`, of the buffers through which weights are passed on a shared GPU.

    Two alternating ones take the share `ratio` of `free` bytes; a tensor of `largest` bytes that does not fit gets a
    third.
    """
    each = -(-int(free * ratio) // 2 // _ALIGNED) * _ALIGNED
    return {"buffer": 2 * each + (largest if largest > each else 0)}


Buffers = Callable[[int, float, Gathered], dict[str, int]]
"""Buffers, in bytes under the key `buffer`, by free bytes, the share that a refit may take, and the weights."""


def alternating(free: int, ratio: float, weights: Gathered) -> dict[str, int]:
    """Buffers that take turns, as vLLM is sent weights."""
    return ipc_buffers(free, ratio, weights.largest)


def flattened(free: int, ratio: float, weights: Gathered) -> dict[str, int]:
    """Tensors of one bucket, and their concatenation that SGLang reads.

    NeMo RL 7ea279ab `models/policy/utils.py` stream_weights_via_http_impl, _flush_bucket: a bucket is of one tensor at
    least.
    """
    return {"buffer": 2 * max(min(int(free * ratio), weights.total), weights.largest)}


def packed_bytes(device_bytes: int) -> int:
    """Bytes that tensors which are broadcast together reach, on a device of `device_bytes`."""
    return min(int(device_bytes * _PACKED_SHARE), _PACKED_MOST)


def broadcast_buffers(device_bytes: int, largest: int, *, sends: bool) -> dict[str, int]:
    """Bytes, under the key `buffer`, of the buffers through which weights are broadcast to other GPUs.

    Two buffers, each of 2% of `device_bytes`, at most 5 GiB, plus one tensor of `largest` bytes; the sender (`sends`)
    has each twice (collected tensors and their concatenation).
    """
    each = packed_bytes(device_bytes) + largest  # the last tensor exceeds the limit
    return {"buffer": 2 * each * (1 + sends)}
