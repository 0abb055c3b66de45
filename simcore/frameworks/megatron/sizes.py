"""Sizes of a plan from which Megatron's hooks compute the amounts in their rows.

[Note: states in fp16]
TransformerEngine d0067d0d `pytorch/optimizers/fused_adam.py` step: a state in fp16 (a master, or moments) is copied to
fp32 and multiplied by its scale, for all parameters of a group before the kernel runs; afterwards the largest value of
each makes a new scale, and the copies are written back. Moments in bf16 are read by the kernel itself. Groups are those
with and without weight decay (Bridge and core: not biases and vectors), of the dense and of the expert optimizer, one
after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from simcore.frameworks.common.cpu_optimizer import share_on_host
from simcore.frameworks.common.optimizer_memory import muon_transient
from simcore.frameworks.megatron.flat_parameters import RankBuffer, rank_buffers
from simcore.frameworks.megatron.strategy import MegatronDdpStrategy
from simcore.frameworks.megatron.vision.averaged import averaged_elements
from simcore.placement.plan import Plan
from simcore.units import dtype_bytes, packed_bytes

__all__ = ["BufferSizes", "MegatronSizes", "megatron_sizes"]

_RESCALED: Final = 6 + 8 + 4 + 4 + 8 + 6
"""Bytes that move for an element of a state in fp16: copied, scaled, 4 more in the kernel, which reads and writes fp32
instead of 16 bits, searched for the largest value, scaled, copied back."""


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Payloads in bytes of the collectives of a flat buffer, by bucket.

    `first_use`: (layer, buckets that it uses first) pairs. `gathers`, `reductions`: of the calls over its axis;
    `replicas`: of those that sum reduced parts over `replicate_axis`.
    """

    chunk: int
    axis: str
    replicate_axis: str
    dtype: str
    first_use: tuple[tuple[int, tuple[int, ...]], ...]
    gathers: tuple[int, ...]
    reductions: tuple[int, ...]
    replicas: tuple[int, ...]

    @property
    def form(self) -> Hashable:
        """Settings on which rows depend besides sizes."""
        return self.chunk, self.axis, self.replicate_axis, self.dtype, self.first_use, len(self.gathers)


@dataclass(frozen=True)
class MegatronSizes:
    """Sizes of the rank's flat buffers and of its optimizer's step (`program.hooks.Sizes`).

    `copied`: fp32 copies of gradients; `scaled`: fp32 copies of states in fp16; `muon`: temporary memory of Muon;
    `away`: elements that a CPU updates; `flops`, `moved`: of the update on the device. `averaged`: bytes of gradients
    that are averaged over tp. `own`: the plan, where whole parameters are dealt to ranks, else None.
    """

    buffers: tuple[BufferSizes, ...]
    copied: int
    scaled: int
    muon: int
    away: int
    flops: int
    moved: int
    averaged: int
    own: Plan | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """All sizes, as `renumbered` takes them."""
        calls = (size for b in self.buffers for sizes in (b.gathers, b.reductions, b.replicas) for size in sizes)
        average = (self.averaged,) * self._averages
        return (self.copied, self.scaled, self.muon, self.away, self.flops, self.moved, *calls, *average)

    @property
    def form(self) -> Hashable:
        """Settings on which rows depend besides sizes."""
        return tuple(buffer.form for buffer in self.buffers), self._averages, self.own

    @property
    def _averages(self) -> bool:
        return self.averaged > 0

    def renumbered(self, numbers: Sequence[int]) -> MegatronSizes:
        """Copy with other sizes."""
        left = iter(numbers)
        copied, scaled, muon, away, flops, moved = (next(left) for _ in range(6))
        buffers = tuple(BufferSizes(b.chunk, b.axis, b.replicate_axis, b.dtype, b.first_use, *(
            tuple(next(left) for _ in sizes) for sizes in (b.gathers, b.reductions, b.replicas))) for b in self.buffers)
        return MegatronSizes(buffers, copied, scaled, muon, away, flops, moved,
                             next(left) if self._averages else 0, self.own)


@lru_cache(maxsize=64)
def megatron_sizes(plan: Plan) -> MegatronSizes:
    """Sizes of the plan's rank."""
    strategy = plan.framework.strategy_as(MegatronDdpStrategy)
    buffers = rank_buffers(plan)
    elements, held = _shard_elements(plan, strategy, buffers)
    away = round(elements * share_on_host(plan))
    here = elements - away
    states = _half_states(plan)
    return MegatronSizes(tuple(_buffer(plan, strategy, buffer) for buffer in buffers),
                         4 * elements if plan.framework.optimizer.grad_copy else 0,
                         4 * states * _largest_group(plan, strategy, buffers) if states else 0,
                         muon_transient(plan), away,
                         12 * here, 2 * held + (dtype_bytes(strategy.grad_dtype) + 2 + _RESCALED * states) * here,
                         dtype_bytes(strategy.grad_dtype) * averaged_elements(plan),
                         plan if plan.framework.dealt else None)


def _half_states(plan: Plan) -> int:
    """Number of states in fp16 of a parameter that the device updates."""
    return max((sum(layout.dtype == "fp16" and layout.space == "device" for _, layout in p.policy.optimizer_states)
                for kind, _ in plan.kind_counts for p in plan.kinds[kind] if p.trainable), default=0)


def _largest_group(plan: Plan, strategy: MegatronDdpStrategy, buffers: Sequence[RankBuffer]) -> int:
    """Elements of the rank's part of the matrices of an optimizer, the dense or the expert one."""
    groups: Counter[str] = Counter()
    for buffer in buffers:
        sizes = (buffer.flat.ends - buffer.flat.starts).tolist()
        groups[buffer.axis] += sum(size for layer, tensor, size in zip(
            buffer.layers.tolist(), buffer.tensors.tolist(), sizes, strict=True)
            if len(plan.of_layer(layer)[tensor].spec.shape) > 1)
    return max((size // (plan.mesh.axis(axis).size if strategy.scatter else 1) for axis, size in groups.items()),
               default=0)


def _buffer(plan: Plan, strategy: MegatronDdpStrategy, buffer: RankBuffer) -> BufferSizes:
    dtype, parts = strategy.gather_dtype or buffer.dtype, plan.mesh.axis(buffer.axis).size if strategy.scatter else 1
    elements = [end - start for start, end in buffer.flat.buckets]
    reduced = tuple(size * dtype_bytes(strategy.grad_dtype) for size in elements)
    return BufferSizes(buffer.chunk, buffer.axis, buffer.replicate_axis, dtype, _first_layers(buffer),
                       tuple(packed_bytes(size, dtype) for size in elements), reduced,
                       tuple(size // parts for size in reduced))


def _shard_elements(plan: Plan, strategy: MegatronDdpStrategy, buffers: Sequence[RankBuffer]) -> tuple[int, int]:
    """(elements, state bytes) of the rank's part of the optimizer, as the class mean if it is cut."""
    if plan.framework.dealt:
        muon, adam = plan.dealt
        return muon + adam, 8 * muon + 12 * adam
    parts = {b.axis: plan.mesh.axis(b.axis).size if strategy.scatter else 1 for b in buffers}
    elements = sum(int((b.flat.ends - b.flat.starts).sum()) // parts[b.axis] for b in buffers)
    held = sum(count * sum(p.state_bytes for p in plan.kinds[kind]) for kind, count in plan.kind_counts)
    return elements, held


def _first_layers(buffer: RankBuffer) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Buckets by the lowest layer in them: the first to use it, the last to finish its gradients."""
    lowest = np.full(len(buffer.flat.buckets), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(lowest, buffer.flat.bucket_of, buffer.layers)
    buckets: dict[int, list[int]] = {}
    for bucket, layer in enumerate(lowest.tolist()):
        buckets.setdefault(layer, []).append(bucket)
    return tuple((layer, tuple(some)) for layer, some in buckets.items())
