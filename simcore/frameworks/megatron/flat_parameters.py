"""A rank's parameters in flat buffers, dense and expert apart: [Note: Megatron buffers]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from simcore.frameworks.megatron.buffers import FlatBuffer, lay_out
from simcore.frameworks.megatron.strategy import MegatronDdpStrategy
from simcore.placement.mesh import IntArray
from simcore.placement.plan import AtRestBytes, Placed, Plan
from simcore.units import dtype_bytes, packed_bytes

__all__ = ["RankBuffer", "buffer_padding", "exact_at_rest", "padding_bytes", "padding_elements", "rank_buffers",
           "registered_pools"]


@dataclass(frozen=True, eq=False)
class RankBuffer:
    """One flat buffer of a rank: the trained parameters of one pipeline chunk and one stored dtype.

    Dense parameters and experts have separate ones. `chunk`: its index on the rank. `axis`: mesh axis over which its
    gradients are reduced; `replicate_axis`: over which the reduced parts are summed again, "" for none. Entry i, in
    order of registration, is tensor `tensors[i]` of layer `layers[i]` (number in the whole model), once for each
    expert; `flat` says where it lies.
    """

    chunk: int
    axis: str
    replicate_axis: str
    dtype: str
    layers: IntArray
    tensors: IntArray
    flat: FlatBuffer


@lru_cache(maxsize=64)  # one plan asks twice: for its hooks and, after those of all other stages, for its padding
def rank_buffers(plan: Plan) -> tuple[RankBuffer, ...]:
    """Returns the flat buffers of the plan's rank: chunk by chunk, dense before expert, dtype by dtype.

    Buffers without parameters are left out.
    """
    strategy = plan.framework.strategy_as(MegatronDdpStrategy)
    found = (_buffer(plan, strategy, chunk, expert, dtype) for chunk in range(len(plan.chunks)) for expert in (0, 1)
             for dtype in _stored(plan))
    return tuple(b for b in found if len(b.layers))


def _stored(plan: Plan) -> tuple[str, ...]:
    """Formats of trained parameters, in order of first appearance."""
    return tuple(dict.fromkeys(p.policy.at_rest.dtype for kind, _ in plan.kind_counts for p in plan.kinds[kind]
                               if p.trainable))


def _buffer(plan: Plan, strategy: MegatronDdpStrategy, chunk: int, expert: int, dtype: str) -> RankBuffer:
    layers, tensors, sizes = _registered(plan, plan.chunks[chunk], expert=bool(expert), dtype=dtype)
    parts = plan.mesh.axis(strategy.axes[expert]).size
    # Only the model's first chunk has several: core 0.16.1 distributed_data_parallel.py:101, `disable_bucketing or
    # pp_rank > 0`; Bridge 0.3.1 models/model_provider.py:718, `model_chunk_idx > 0`.
    bucket = strategy.bucket_numel if plan.stage == 0 and chunk == 0 else 0
    align = math.lcm(parts, strategy.align_bucket) if strategy.align_bucket > 1 else 1
    # Core 0.16.1 models/common/language_module/language_module.py:203: `shared_embedding` has a bucket of its own.
    own = plan.graph.copied if strategy.scatter else frozenset()
    alone = [i for i, at in enumerate(zip(layers, tensors, strict=True)) if at in own]
    flat = lay_out(sizes, bucket_numel=bucket, align_param=strategy.align_param, align_bucket=align, alone=alone)
    return RankBuffer(chunk, strategy.axes[expert], strategy.replicate_axes[expert], dtype,
                      np.array(layers, dtype=np.int64), np.array(tensors, dtype=np.int64), flat)


def _registered(plan: Plan, chunk: Sequence[int], *, expert: bool,
                dtype: str) -> tuple[list[int], list[int], list[int]]:
    """(layers, tensors, elements) of a chunk's parameters in order of registration.

    A table that a module of multi-token prediction looks up is a module of the model's own, and made before its layers
    (core 0.16.1 models/gpt/gpt_model.py:150; main 2026-08-22 models/hybrid/hybrid_model.py:240).
    """
    entries = {kind: _entries(plan.kinds[kind], expert=expert, dtype=dtype) for kind, _ in plan.kind_counts}
    found = [(layer, number, size) for layer in chunk for number, size in entries[plan.graph.layers[layer].kind]]
    if chunk and plan.graph.copied:
        found.sort(key=lambda one: plan.of_layer(one[0])[one[1]].spec.module != "embedding")
    layers, tensors, sizes = ([one[part] for one in found] for part in range(3))
    return layers, tensors, sizes


def _entries(kind: Sequence[Placed], *, expert: bool, dtype: str) -> list[tuple[int, int]]:
    """(tensor number, elements) of each parameter of a layer: every expert's matrix is its own.

    A grouped GEMM registers weight0, bias0, weight1, bias1 (TE 2.18 pytorch/module/grouped_linear.py).
    """
    found = []
    for _, group in groupby(enumerate(kind), key=lambda at: at[1].spec.path if at[1].spec.copies > 1 else str(at[0])):
        mine = [(number, placed) for number, placed in group if placed.trainable
                and (placed.policy.name == "expert") == expert and placed.policy.at_rest.dtype == dtype]
        copies = max((placed.used_copies for _, placed in mine), default=0)
        found += [(number, placed.local // copies) for _ in range(copies) for number, placed in mine]
    return found


def padding_bytes(plan: Plan) -> int:
    """Returns the bytes in this rank's parameter buffers that belong to no parameter."""
    return sum(packed_bytes(buffer.flat.padding, buffer.dtype) for buffer in rank_buffers(plan))


def padding_elements(plan: Plan) -> int:
    """Returns the elements, of all of this rank's buffers, that belong to no parameter: alignment."""
    return sum(buffer.flat.padding for buffer in rank_buffers(plan))


def buffer_padding(plan: Plan, components: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]:
    """Returns the bytes of padding in buffers of (parameters, gradients); no parameter owns it.

    `components` and `exact` change nothing.
    """
    strategy = plan.framework.strategy_as(MegatronDdpStrategy)
    return padding_bytes(plan), padding_elements(plan) * dtype_bytes(strategy.grad_dtype)


def registered_pools(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Returns the bytes of the tensors in each memory pool that NCCL registers: one pool a buffer (`nccl_ub`).

    A pool has the parameters, with the distributed optimizer, and the gradients; of mxfp8 weights gradients alone,
    whose memory gathers use too. () without `nccl_ub`. Core 0.16.1 and main `param_and_grad_buffer.py`, nccl_ub.
    """
    strategy = plan.framework.strategy_as(MegatronDdpStrategy)
    if not strategy.nccl_ub:
        return ()
    grad = dtype_bytes(strategy.grad_dtype)
    return tuple((packed_bytes(b.flat.numel, b.dtype) * (strategy.scatter and not _shares(strategy, b)),
                  b.flat.numel * grad) for b in rank_buffers(plan))


def _shares(strategy: MegatronDdpStrategy, buffer: RankBuffer) -> bool:
    """True if parameters are gathered through the gradients' memory: those in 8 bits that are gathered in 16."""
    return strategy.gather_dtype not in ("", buffer.dtype)


def exact_at_rest(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns bytes at rest by component of the model, with the optimizer states of this rank's own parts.

    Without the distributed optimizer states are not cut, and it is `Plan.at_rest`.
    """
    strategy = plan.framework.strategy_as(MegatronDdpStrategy)
    if not strategy.scatter:
        return plan.at_rest()
    totals = {name: AtRestBytes(r.params_bytes, r.grads_bytes, 0, r.num_params, r.num_trainable_params)
              for name, r in plan.at_rest().items()}
    for buffer in rank_buffers(plan):
        axis = plan.mesh.axis(buffer.axis)
        inside = buffer.flat.part(axis.coordinate(plan.rank), axis.size)
        for layer, number in dict.fromkeys(zip(buffer.layers.tolist(), buffer.tensors.tolist(), strict=True)):
            mine = (buffer.layers == layer) & (buffer.tensors == number)
            placed = plan.of_layer(layer)[number]
            add = AtRestBytes(optimizer_bytes=round(int(inside[mine].sum()) * _state_bytes_per_element(placed)))
            totals[placed.spec.component] = totals[placed.spec.component] + add
    return totals


def _state_bytes_per_element(placed: Placed) -> float:
    return sum(dtype_bytes(layout.dtype) * layout.share for _,
               layout in placed.policy.optimizer_states if layout.space == "device")
