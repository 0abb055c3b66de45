"""Queue of unsharded gradients: the gradients in [Note: Megatron-FSDP hand-over] of `hooks.py`."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.megatron_fsdp.buckets import POOL, Bucket, shared_units, together
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.tape import Stream
from simcore.units import dtype_bytes

__all__ = ["ReduceScatterQueue"]

REDUCE_HANDLE, REPLICATE_HANDLE = 2, 3


class ReduceScatterQueue:
    """Writer of the memory events of all unsharded gradient buckets in one step (GradReducePipeline).

    A bucket is being filled, or it is reduced and waits in a queue to be freed. Buckets are given by their index in
    `buckets`.
    """

    def __init__(self, buckets: Sequence[Bucket], strategy: MegatronFsdpStrategy, tables: Tables, out: Builder) -> None:
        self.buckets, self.waiting, self.out = buckets, strategy.waiting, out
        self.pooled = shared_units(buckets) if strategy.double_buffer else frozenset()
        self.whole = tables.slot("unsharded_grad_bucket", "unsharded_grad")
        self.part = tables.slot("reduced_grad_shard", "reduce_scatter_output")
        self.comms = [tables.comm("reduce_scatter", b.axis, strategy.comm_dtype) for b in buckets]
        further = "reduce_scatter" if strategy.shards_outer else "all_reduce"
        self.replicate = tables.comm(further, strategy.replicate_axis,
                                     strategy.comm_dtype) if strategy.replicate_axis else -1
        size = dtype_bytes(strategy.comm_dtype)
        self.is_cast = strategy.comm_dtype != strategy.grad_dtype and bool(strategy.replicate_axis)
        self.cast = tables.slot("hsdp_comm_gbuf", "reduce_scatter_output") if self.is_cast else -1
        self.casts: set[int] = set()
        self.sizes = [b.numel * size * (b.parts > 1) for b in buckets]
        self.shards = [b.shard * size * (not strategy.reduces_in_place) for b in buckets]
        self.kept = [b.shard * size for b in buckets]
        self.layers = [b.first_layer for b in buckets]
        self.ending: dict[int, list[list[int]]] = {}
        for group in {group[0]: group for group in together(buckets)}.values():
            trained = [b for b in group if buckets[b].trainable]
            if trained:
                self.ending.setdefault(self.layers[trained[0]], []).append(trained)
        self.is_open = [False] * len(buckets)
        self.queue: list[int] = []
        self.waiting_numel = 0

    def open(self, buckets: Sequence[int]) -> None:
        """Simulates the allocation of those buckets, given by index, that are trained and not yet allocated.

        Called before their first gradients.
        """
        for b in buckets:
            if self.buckets[b].trainable and not self.is_open[b]:
                self._make_room([b])
                self.is_open[b] = True
                self.out.alloc(self.layers[b], self.whole, self._own(b))

    def post_persistent(self) -> None:
        """Simulates the allocation of the gradient buffers that equal units share; nothing without `double_buffer`.

        They live across steps.
        """
        for b in (b for b, bucket in enumerate(self.buckets)
                  if self.pooled and bucket.unit == min(self.pooled) and bucket.trainable):
            self.out.alloc(self.layers[b], self.whole, min(POOL, len(self.pooled)) * self.sizes[b])

    def _own(self, b: int) -> int:
        """Bytes of a bucket; 0 if its unit uses shared buffers."""
        return 0 if self.buckets[b].unit in self.pooled else self.sizes[b]

    def _make_room(self, group: Sequence[int]) -> None:
        """Frees queued buckets so that no more units wait than share buffers (_enforce_double_buffer_limit)."""
        units = {self.buckets[b].unit for b in group} & self.pooled
        stay = len(self.queue) if self.pooled else 0
        for b in reversed(self.queue if self.pooled else []):
            units.add(self.buckets[b].unit)
            stay -= len(units) > POOL
        while self.pooled and len(self.queue) > min(stay, len(self.buckets) - 1):
            self._drop(self.queue.pop(0))

    def finish(self, layer: int, *, is_last: bool) -> None:
        """Simulates the reduction of the buckets that this layer's gradients complete, and queues them.

        `layer`: its number in the whole model, embedding 0. If `is_last` (microbatch of the step), also over copies of
        the model. The oldest queued buckets are freed first, while they make more elements than may wait.
        """
        for group in reversed(self.ending.get(layer, [])):
            while self.waiting_numel > self.waiting:
                self._drop(self.queue.pop(0))
            self._make_room(group)
            for b in group:
                self.out.alloc(self.layers[b], self.part, self.shards[b])
                if self.sizes[b]:
                    self.out.collective(b, self.comms[b], self.sizes[b], Stream.REDUCE, REDUCE_HANDLE)
            for b in group:
                self.out.free(self.layers[b], self.part, self.shards[b])
            for b in group if is_last and self.replicate >= 0 else ():
                if self.is_cast:
                    self.casts.add(b)
                    self.out.alloc(self.layers[b], self.cast, self.kept[b])
                self.out.collective(b, self.replicate, self.kept[b], Stream.ALL_REDUCE, REPLICATE_HANDLE)
            self.queue += group
            self.waiting_numel += sum(self.buckets[b].numel for b in group)

    def drain(self) -> None:
        """Simulates the release of all queued buckets, after a wait for their reductions."""
        for b in self.queue:
            self._drop(b)
        self.queue.clear()

    def _drop(self, b: int) -> None:
        """Frees the unsharded gradients of a queued bucket."""
        self.waiting_numel -= self.buckets[b].numel
        if self.sizes[b]:
            self.out.wait(b, REDUCE_HANDLE)
        if self.replicate >= 0:
            self.out.wait(b, REPLICATE_HANDLE)
        self.out.free(self.layers[b], self.whole, self._own(b))
        if b in self.casts:
            self.casts.discard(b)
            self.out.free(self.layers[b], self.cast, self.kept[b])
        self.is_open[b] = False
