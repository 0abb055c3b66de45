"""torch's caching allocator, replayed on the postings of a program: what it would reserve, segment by segment.

Rules of `c10/cuda/CUDACachingAllocator.cpp`: sizes in 512 B; two pools; best fit; a block is split if at least 512 B
(small pool) or more than 1 MiB remain; neighbours that are free are joined; segments of 2 MiB, 20 MiB or multiples of
2 MiB. Expandable: one segment a pool that grows by pages of 2 and 20 MiB. Nothing is given back to the driver. FSDP2's
buffers for gathering and reducing are allocated on streams of their own, which share no blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Op

MIB = 2**20
Posting = tuple[int, int, int]


@dataclass(eq=False, slots=True)
class Block:
    """A stretch of a segment, with its neighbours."""

    number: int
    size: int
    small: bool
    before: Block | None = None
    after: Block | None = None
    used: bool = False


STREAMS = {"all_gather_cast_input": 1, "all_gather_output": 1, "reduce_scatter_input": 2, "reduce_scatter_output": 2}
"""Stream of a category; all others are on stream 0 (torch 2.13 `_fsdp_param_group.py`, `FSDPCommContext`)."""


class Allocator:
    """One stream's blocks: `allocated` and `reserved` bytes."""

    def __init__(self, *, expandable: bool) -> None:
        self.expandable = expandable
        self.free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self.last: dict[bool, Block | None] = {True: None, False: None}
        self.number = self.allocated = self.reserved = 0

    def take(self, num_bytes: int) -> Block:
        size = max(512, -(-num_bytes // 512) * 512)
        small = size <= MIB
        at = bisect_left(self.free[small], (size, -1))
        block = self.free[small].pop(at)[2] if at < len(self.free[small]) else self._grown(size, small=small)
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            self._split(block, size)
        block.used = True
        self.allocated += block.size
        return block

    def give(self, block: Block) -> None:
        self.allocated -= block.size
        block.used = False
        if block.before and not block.before.used:
            self._forget(block.before)
            block = self._joined(block.before, block)
        if block.after and not block.after.used:
            self._forget(block.after)
            block = self._joined(block, block.after)
        self._keep(block)

    def _grown(self, size: int, *, small: bool) -> Block:
        last = self.last[small]
        if not self.expandable:
            segment = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            return self._new(segment, small=small)
        page, free = 2 * MIB if small else 20 * MIB, last.size if last and not last.used else 0
        grown = self._new(-(-(size - free) // page) * page, small=small, before=last)
        if last and free:
            self._forget(last)
            grown = self._joined(last, grown)
        return grown

    def _new(self, size: int, *, small: bool, before: Block | None = None) -> Block:
        self.number += 1
        self.reserved += size
        block = self.last[small] = Block(self.number, size, small, before)
        if before:
            before.after = block
        return block

    def _split(self, block: Block, size: int) -> None:
        self.number += 1
        rest = Block(self.number, block.size - size, block.small, block, block.after)
        if block.after:
            block.after.before = rest
        block.after, block.size = rest, size
        if self.last[block.small] is block:
            self.last[block.small] = rest
        self._keep(rest)

    def _joined(self, left: Block, right: Block) -> Block:
        left.size += right.size
        left.after = right.after
        if right.after:
            right.after.before = left
        if self.last[left.small] is right:
            self.last[left.small] = left
        return left

    def _keep(self, block: Block) -> None:
        free = self.free[block.small]
        free.insert(bisect_left(free, (block.size, block.number)), (block.size, block.number, block))

    def _forget(self, block: Block) -> None:
        free = self.free[block.small]
        free.pop(bisect_left(free, (block.size, block.number)))


def fragmentation(program: Program, *, expandable: bool, steps: int = 2) -> float:
    """Reserved over allocated, less one, after the first steps; moments are made by the first optimizer step."""
    rest: list[Posting] = []
    states: list[Posting] = []
    step: list[Posting] = []
    optimizer = 0
    for phase, row in zip(program.phase.tolist(), program.columns.tolist(), strict=True):
        if row[0] <= Op.FREE:
            is_state = phase == Phase.BUILD and program.outline.owners[row[2]][1] == "opt_state"
            (states if is_state else rest if phase == Phase.BUILD else step).append((row[1], row[2], row[3]))
            optimizer += phase not in (Phase.BUILD, Phase.OPTIMIZER)
    order = [rest, step[:optimizer], states, step[optimizer:], *[step] * (steps - 1)]
    allocators = [Allocator(expandable=expandable) for _ in range(3)]
    streams = [STREAMS.get(category, 0) for _, category in program.outline.owners]
    most = _play(allocators, streams, (posting for part in order for posting in part))
    return sum(one.reserved for one in allocators) / most - 1


def _play(allocators: list[Allocator], streams: list[int], postings: Iterable[Posting]) -> int:
    """The most that was allocated on all streams together."""
    held: dict[Posting, list[Block]] = defaultdict(list)
    most = 0
    for layer, slot, amount in postings:
        allocator = allocators[streams[slot]]
        if amount > 0:
            held[layer, slot, amount].append(allocator.take(amount))
            most = max(most, sum(one.allocated for one in allocators))
        else:
            allocator.give(held[layer, slot, -amount].pop())
    return most
