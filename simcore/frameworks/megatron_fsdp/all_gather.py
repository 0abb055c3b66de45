"""Prefetch of buckets: the parameters in [Note: Megatron-FSDP hand-over] of `hooks.py`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from simcore.frameworks.megatron_fsdp.buckets import POOL, Bucket, shared_units, together
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.program.builder import Builder
from simcore.program.outline import BUCKET_GATHER, Tables
from simcore.recording.tape import Stream
from simcore.units import dtype_bytes

__all__ = ["ParameterPrefetch"]

OUTER_GATHER = 4


class ParameterPrefetch:
    """Writer of the memory events of all parameter buckets in one step (AllGatherPipeline).

    It remembers which buckets are gathered, and which of those may be freed. Buckets are given by their index in
    `buckets`. `is_stale`: shards are yet to be gathered from the parts of them that ranks have updated, as before every
    gather until the step's first microbatch is over. Columns of fp8 weights, which backward gathers, are numbered after
    all buckets: [Note: fp8 weights in buckets] in `frameworks/megatron_fsdp/table.py`.
    """

    def __init__(self, buckets: Sequence[Bucket], strategy: MegatronFsdpStrategy, tables: Tables, out: Builder) -> None:
        self.ahead, self.out, self.count = strategy.ahead, out, len(buckets)
        self.columns = {b: b + self.count for b, bucket in enumerate(buckets)
                        if strategy.has_columns and bucket.dtype == "fp8"}
        self.kept = [b for b, bucket in enumerate(buckets) if bucket.unit < 0] if strategy.keeps_outside else []
        self.pooled = shared_units(buckets) if strategy.double_buffer else frozenset()
        self.is_strict = strategy.double_buffer and strategy.keeps_outside
        self.groups = together(buckets)
        buckets = self.buckets = [*buckets, *buckets]
        self.slot = tables.slot("unsharded_bucket", "unsharded_param")
        self.comms = [tables.comm("all_gather", b.axis, b.dtype) for b in buckets]
        self.sizes = [b.numel * dtype_bytes(b.dtype) * (b.parts > 1) for b in buckets]
        self.is_stale = True
        self.shards = [b.shard * dtype_bytes(b.dtype) for b in buckets]
        self.between = [tables.comm("all_gather", strategy.replicate_axis, b.dtype)
                        for b in buckets] if strategy.shards_outer else []
        self.layers = [b.first_layer for b in buckets]
        self.whole = bytearray(len(buckets))
        self.whole_backward = bytearray(self.count)
        self.until = [0, *accumulate(b.numel for b in buckets[:self.count])]
        self.may_go: set[int] = set()
        self.pending: set[int] = set()
        self.refreshing: set[int] = set()

    def gather(self, wanted: Sequence[int], direction: int, *, columns: bool = False) -> None:
        """Simulates the gathering of the `wanted` buckets (indices) and of those ahead, unless they are gathered.

        `direction`: +1 prefetches the following buckets, -1 those before, 0 none. `columns`: backward's columns of fp8
        weights. On main, buckets of no unit prefetch nothing where units share buffers.
        """
        if self.is_strict and all(self.buckets[b].unit < 0 for b in wanted):
            direction = 0
        self.may_go.difference_update(self._for(wanted, columns=columns))
        gathered = self.whole_backward if columns else self.whole
        empty = self._for(_zeros(gathered, self._with_ahead(wanted, direction)), columns=columns)
        by_group: dict[int, list[int]] = {}
        for b in empty:
            by_group.setdefault(self.groups[b % self.count][0], []).append(b)
        for group in by_group.values():
            self._refresh(group)
            self._gather_group(group)

    def _refresh(self, group: Sequence[int]) -> None:
        """Gathers the shards of buckets from the ranks that have updated their parts, on their way to be gathered."""
        for b in group if self.between and self.is_stale else ():
            self.out.collective(b, self.between[b], self.shards[b], Stream.ALL_GATHER, OUTER_GATHER)
            self.refreshing.add(b)

    def _gather_group(self, group: Sequence[int]) -> None:
        for b in group:
            self.may_go.discard(b)
            self._recycle()
            self._set(b, is_whole=True)
            if b not in self.kept and self.buckets[b].unit not in self.pooled:
                self.out.alloc(self.layers[b], self.slot, self.sizes[b])
            if self.sizes[b]:
                self.out.collective(b, self.comms[b], self.sizes[b], Stream.ALL_GATHER, BUCKET_GATHER)
                self.pending.add(b)

    def _set(self, key: int, *, is_whole: bool) -> None:
        """Records a bucket's state; backward asks for columns if there are any, forward for rows."""
        self.whole[key] = is_whole
        if key >= self.count or key not in self.columns:
            self.whole_backward[key % self.count] = is_whole

    def _for(self, wanted: Sequence[int], *, columns: bool) -> list[int]:
        return [self.columns.get(b, b) if columns else b for b in wanted]

    def post_persistent(self) -> None:
        """Simulates the allocation of buckets that stay gathered, and of the buffers that units share."""
        for b in self.kept:
            self.out.alloc(self.layers[b], self.slot, self.sizes[b])
        keys = (*range(self.count), *self.columns.values())
        for b in (b for b in keys if self.pooled and self.buckets[b].unit == min(self.pooled)):
            self.out.alloc(self.layers[b], self.slot, min(POOL, len(self.pooled)) * self.sizes[b])

    def _with_ahead(self, wanted: Sequence[int], direction: int) -> Sequence[int]:
        """Requested buckets and those ahead, in the order of their numbers."""
        first, last = min(wanted), max(wanted)
        is_run = self.are_runs and last - first + 1 == len(wanted)
        reaches_back = self.groups[last][0] < first if direction > 0 else self.groups[first][-1] > last
        if direction and self.ahead > 0 and is_run and not reaches_back and not self.pooled:
            return self._run(first, last, direction)
        return self._one_by_one(wanted, direction)

    def _run(self, first: int, last: int, direction: int) -> range:
        """Result of `_one_by_one` for buckets first to last, if the following groups have no buckets before them."""
        if direction > 0:
            stop = bisect_left(self.until, self.until[last + 1] + self.ahead, last + 1)
            return range(first, self.groups[min(stop, self.count) - 1][-1] + 1)
        start = bisect_right(self.until, self.until[first] - self.ahead, 0, first + 1) - 1
        return range(self.groups[max(start, 0)][0], last + 1)

    @cached_property
    def are_runs(self) -> bool:
        """True if the buckets of each group (those that are gathered together) have consecutive numbers."""
        return all(group[-1] - group[0] + 1 == len(group) for group in self.groups)

    def _one_by_one(self, wanted: Sequence[int], direction: int) -> list[int]:
        buckets, size = sorted(wanted), 0
        units = {self.buckets[b].unit for b in wanted} & self.pooled
        while direction and size < self.ahead:
            after = _beside(buckets, direction)
            if not 0 <= after < self.count:
                break
            units.add(self.buckets[after].unit)
            if self.pooled and len(units) > POOL:
                break
            more = [b for b in self.groups[after] if b not in buckets]
            size += sum(self.buckets[b].numel for b in more)
            buckets = sorted([*buckets, *more])
        return buckets

    def wait(self, wanted: Sequence[int]) -> None:
        """Simulates the wait for the gathers of the buckets `wanted` (indices), as far as they are under way."""
        for b in self._with_columns(wanted):
            self._wait(b)

    def _wait(self, key: int) -> None:
        if key in self.pending:
            self.pending.discard(key)
            self.out.wait(key, BUCKET_GATHER)
        if key in self.refreshing:
            self.refreshing.discard(key)
            self.out.wait(key, OUTER_GATHER)

    def _with_columns(self, buckets: Sequence[int]) -> list[int]:
        return [key for b in buckets for key in ((b, self.columns[b]) if b in self.columns else (b,))]

    def release(self, buckets: Sequence[int]) -> None:
        """Simulates the release of those `buckets` (indices) that are gathered, after a wait if they are under way."""
        self._free(self._with_columns(buckets))

    def _free(self, keys: Sequence[int]) -> None:
        for b in keys:
            if self.whole[b]:
                self._wait(b)
                self._set(b, is_whole=False)
                if b not in self.kept and self.buckets[b].unit not in self.pooled:
                    self.out.free(self.layers[b], self.slot, self.sizes[b])

    def let_go(self, buckets: Sequence[int]) -> None:
        """Records that `buckets` (indices) may be freed as soon as another is gathered; nothing is simulated."""
        self.may_go.update(buckets)

    def _recycle(self) -> None:
        if self.may_go:
            self._free(sorted(self.may_go))
            self.may_go.clear()

    def reset(self) -> None:
        """Simulates the release of all gathered buckets: the optimizer has made their contents out of date."""
        self.release(range(self.count))
        self.may_go.clear()


def _zeros(flags: bytearray, numbers: Sequence[int]) -> list[int]:
    """Numbers whose flag is 0, in order."""
    if not isinstance(numbers, range):
        return [number for number in numbers if not flags[number]]
    clear, at = [], flags.find(0, numbers.start, numbers.stop)
    while at >= 0:
        clear.append(at)
        at = flags.find(0, at + 1, numbers.stop)
    return clear


def _beside(numbers: Sequence[int], direction: int) -> int:
    """Number after the first run of consecutive numbers, or before the last run."""
    at, rest = (numbers[0], numbers[1:]) if direction > 0 else (numbers[-1], numbers[-2::-1])
    at += direction
    for number in rest:
        if number != at:
            break
        at += direction
    return at
