"""Gathering buckets ahead of their use: the parameter half of [Note: Megatron-FSDP hand-over] in `queued.py`."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.builder import Builder
from simcore.flows.bucket import POOL, Bucket, shared_units, together
from simcore.framework import Queues
from simcore.outline import BUCKET_GATHER, Tables
from simcore.tape import Stream
from simcore.units import dtype_bytes

__all__ = ["GathersAhead"]


class GathersAhead:
    """Which buckets are whole, and which of them may go (AllGatherPipeline).

    Columns of fp8 weights, which backward gathers, have numbers behind all buckets: [Note: fp8 weights in buckets] in
    `frameworks/megatron_fsdp.py`.
    """

    def __init__(self, buckets: Sequence[Bucket], flow: Queues, tables: Tables, out: Builder) -> None:
        self.ahead, self.out, self.count = flow.ahead, out, len(buckets)
        self.columns = {b: b + self.count for b, bucket in enumerate(buckets)
                        if flow.has_columns and bucket.dtype == "fp8"}
        self.kept = [b for b, bucket in enumerate(buckets) if bucket.unit < 0] if flow.keeps_outside else []
        self.pooled = shared_units(buckets) if flow.double_buffer else frozenset()
        self.groups = together(buckets)
        buckets = self.buckets = [*buckets, *buckets]
        self.slot = tables.slot("unsharded_bucket", "unsharded_param")
        self.comms = [tables.comm("all_gather", b.axis, b.dtype) for b in buckets]
        self.sizes = [b.numel * dtype_bytes(b.dtype) * (b.parts > 1) for b in buckets]
        self.layers = [b.first_layer for b in buckets]
        self.whole = [False] * len(buckets)
        self.may_go: set[int] = set()
        self.pending: set[int] = set()

    def gather(self, wanted: Sequence[int], direction: int, *, columns: bool = False) -> None:
        """Those that are asked for and those ahead of them (direction 0: none), as far as they are not whole."""
        self.may_go.difference_update(self._for(wanted, columns=columns))
        empty = [b for b in self._for(self._with_ahead(wanted, direction), columns=columns) if not self.whole[b]]
        by_group: dict[int, list[int]] = {}
        for b in empty:
            by_group.setdefault(self.groups[b % self.count][0], []).append(b)
        for b in (b for group in by_group.values() for b in group):
            self.may_go.discard(b)
            self._recycle()
            self.whole[b] = True
            if b not in self.kept and self.buckets[b].unit not in self.pooled:
                self.out.alloc(self.layers[b], self.slot, self.sizes[b])
            if self.sizes[b]:
                self.out.collective(b, self.comms[b], self.sizes[b], Stream.ALL_GATHER, BUCKET_GATHER)
                self.pending.add(b)

    def _for(self, wanted: Sequence[int], *, columns: bool) -> list[int]:
        return [self.columns.get(b, b) if columns else b for b in wanted]

    def rest(self) -> None:
        """What stays whole, and what units share."""
        for b in self.kept:
            self.out.alloc(self.layers[b], self.slot, self.sizes[b])
        keys = (*range(self.count), *self.columns.values())
        for b in (b for b in keys if self.pooled and self.buckets[b].unit == min(self.pooled)):
            self.out.alloc(self.layers[b], self.slot, min(POOL, len(self.pooled)) * self.sizes[b])

    def _with_ahead(self, wanted: Sequence[int], direction: int) -> list[int]:
        """All-gather order: by number."""
        found, size = sorted(wanted), 0
        units = {self.buckets[b].unit for b in wanted} & self.pooled
        while direction and size < self.ahead:
            after = _beside(found, direction)
            if not 0 <= after < self.count:
                break
            units.add(self.buckets[after].unit)
            if self.pooled and len(units) > POOL:
                break
            more = [b for b in self.groups[after] if b not in found]
            size += sum(self.buckets[b].numel for b in more)
            found = sorted([*found, *more])
        return found

    def wait(self, wanted: Sequence[int]) -> None:
        """They are about to be used."""
        for b in self._with_columns(wanted):
            self._wait(b)

    def _wait(self, key: int) -> None:
        if key in self.pending:
            self.pending.discard(key)
            self.out.wait(key, BUCKET_GATHER)

    def _with_columns(self, buckets: Sequence[int]) -> list[int]:
        return [key for b in buckets for key in ((b, self.columns[b]) if b in self.columns else (b,))]

    def release(self, buckets: Sequence[int]) -> None:
        """They are freed."""
        self._free(self._with_columns(buckets))

    def _free(self, keys: Sequence[int]) -> None:
        for b in keys:
            if self.whole[b]:
                self._wait(b)
                self.whole[b] = False
                if b not in self.kept and self.buckets[b].unit not in self.pooled:
                    self.out.free(self.layers[b], self.slot, self.sizes[b])

    def let_go(self, buckets: Sequence[int]) -> None:
        """They are freed when anything is gathered next."""
        self.may_go.update(buckets)

    def _recycle(self) -> None:
        if self.may_go:
            self._free(sorted(self.may_go))
            self.may_go.clear()

    def reset(self) -> None:
        """Everything is freed, or at least out of date."""
        self.release(range(self.count))
        self.may_go.clear()


def _beside(found: Sequence[int], direction: int) -> int:
    """The number after the first run of numbers in a row, or before the last run."""
    at, rest = (found[0], found[1:]) if direction > 0 else (found[-1], found[-2::-1])
    at += direction
    for one in rest:
        if one != at:
            break
        at += direction
    return at
