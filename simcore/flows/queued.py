"""Megatron-FSDP: buckets of whole units, gathered ahead of their use, reduced into a queue.

[Note: Megatron-FSDP hand-over]
Megatron-Core 0.16.1 `distributed/fsdp/src/megatron_fsdp/`, `megatron_fsdp.py` (hooks) and `param_and_grad_buffer.py`
(AllGatherPipeline, GradReducePipeline). Before a unit runs, its buckets are gathered, and with them the buckets that
follow (in backward: come before) by number, as long as those make fewer than `ahead` elements; empty ones are really
gathered. After the unit its buckets are freed. What is in no unit (embedding, last norm, head) is gathered module by
module in forward and stays until the step's gradients are there: so the last norm, whose bucket comes first, gathers
the first units again. At the start of backward units that are still gathered may go as soon as anything is gathered.
A gradient bucket is made, whole, when its unit's first gradient is there; when the last one is there, queued buckets go
from the front while they make more than `waiting` elements, and the bucket is reduce-scattered into a new shard, which
is added to the rank's part and dies. All that still waits goes when the microbatch's backward is over. After the step
the first bucket is gathered, with what follows it, for the next one. A unit that is recomputed is gathered alone for
its replay. Written here at the borders of layers: a gradient bucket is there from the beginning of its layer's
backward, and what is gathered ahead of a replay's backward from the beginning of the replay.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.flows.bucket import Bucket, bucket_padding, rank_buckets
from simcore.flows.rest import Posting, post_rest
from simcore.framework import Queues
from simcore.outline import BACKWARD_GATHER, FORWARD_GATHER, Builder, Tables
from simcore.plan import Placed, Plan
from simcore.schedule import Action
from simcore.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes

__all__ = ["QueuedFlow"]

REDUCE_HANDLE = 2


class QueuedFlow:
    """Implements `lower.Flow` over buckets."""

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        assert isinstance(plan.framework.flow, Queues)
        self.plan, self.tables, self.out, self.flow = plan, tables, builder, plan.framework.flow
        buckets = rank_buckets(plan)
        self.gathers = _Gathers(buckets, self.flow.ahead, tables, builder)
        self.reductions = _Reductions(buckets, self.flow, tables, builder)
        self.uses = _uses(plan, buckets)
        self.units = {layer for unit in plan.framework.units for layer, _ in unit.members}
        self.replayed = self.units - set(plan.framework.kept_whole) if plan.framework.checkpoint == "full" else set()
        self.is_last = self.is_fresh = False
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]

    # ---- lower.Flow ---------------------------------------------------------------------------------------------
    def rest(self) -> None:
        """Parts of parameters, masters, moments and main gradients; and what the last step's end has gathered."""
        post_rest(self.plan, self.tables, self.out, self._postings)
        params, trained = bucket_padding(self.plan)
        layer = self.plan.layers[0]
        master = 4 if self._has_master() else 0
        self.out.alloc(layer, self.tables.slot("param_buffer.padding", "sharded_param"), params)
        self.out.alloc(layer, self.tables.slot("main_param_buffer.padding", "main_param"), trained * master)
        self.out.alloc(layer, self.tables.slot("grad_buffer.padding", "main_grad"),
                       trained * dtype_bytes(self.flow.grad_dtype))
        if not self.flow.frees_at_end:
            self.gathers.gather([0], +1, FORWARD_GATHER)

    def _has_master(self) -> bool:
        return any(name == "master_param" for rule in self.plan.framework.rules for name, _ in rule.life.states)

    def _postings(self, placed: Placed) -> list[Posting]:
        name, life = placed.spec.name, placed.life
        if placed.spec.is_buffer:
            return [(name, "buffer", placed.spec.numel * placed.spec.copies * dtype_bytes(life.rest.dtype))]
        grads = placed.local * dtype_bytes(self.flow.grad_dtype) if placed.trainable else 0
        states = [(f"{name}.{state}", "main_param" if state == "master_param" else "opt_state", size)
                  for state, size in placed.states]
        return [(name, life.rest_category, placed.rest_bytes), (f"{name}.main_grad", "main_grad", grads), *states]

    def begin_microbatch(self, action: Action) -> None:
        self.is_last, self.is_fresh = action.is_last, not action.forward

    def forward_begin(self, layer: int) -> None:
        for wanted in self.uses[layer]:
            self.gathers.gather(wanted, +1, FORWARD_GATHER)
            self.gathers.wait(wanted)

    def forward_end(self, layer: int) -> None:
        if layer in self.units:
            self.gathers.release(self.uses[layer][0])

    def backward_begin(self, layer: int) -> None:
        if self.is_fresh:
            self.gathers.let_go([b for at in self.units for b in self.uses[at][0]])
            self.is_fresh = False
        if layer in self.units:
            wanted = self.uses[layer][0]
            if layer in self.replayed:  # its forward hooks run again: nothing ahead, and freed only when others come
                self.gathers.gather(wanted, 0, BACKWARD_GATHER)
                self.gathers.let_go(wanted)
            self.gathers.gather(wanted, -1, BACKWARD_GATHER)
            self.gathers.wait(wanted)
        for wanted in self.uses[layer]:
            self.reductions.open(wanted)

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        for _, slot, num_bytes in grads:
            self.out.free(layer, slot, num_bytes)
        self.reductions.finish(layer)
        if layer in self.units:
            self.gathers.release(self.uses[layer][0])

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Never: experts are buckets of their layer's unit."""

    def end_pass(self, action: Action) -> None:
        """After backward nothing waits; after the step's last one gradients are handed over and all is freed."""
        if action.forward:
            return
        self.reductions.drain()
        if action.is_last:
            if self.plan.framework.optimizer.grad_copy:
                size = 4 * bucket_elements(self.plan)
                self.out.alloc(self.plan.layers[0], self.tables.slot("fp32_grad_shard", "optim_temp"), size)
            self.gathers.reset()

    def optimize(self) -> None:
        """The step, and the gathers for the next one."""
        begin, end, step_end = self.marks
        elements = bucket_elements(self.plan)
        held = sum(count * sum(p.state_bytes for p in self.plan.kinds[kind]) for kind, count in self.plan.kind_counts)
        self.out.mark(begin)
        moved = 2 * held + (dtype_bytes(self.flow.grad_dtype) + 2) * elements
        self.out.compute(Kernel.OPTIMIZER, 12 * elements, moved)
        self.out.mark(end)
        self.gathers.gather([0], +1, FORWARD_GATHER)
        if self.flow.frees_at_end:
            self.gathers.reset()
        self.out.mark(step_end)


def bucket_elements(plan: Plan) -> int:
    """Trained elements of this rank, as the class mean."""
    return sum(count * sum(p.local for p in plan.kinds[kind] if p.trainable) for kind, count in plan.kind_counts)


def _uses(plan: Plan, buckets: Sequence[Bucket]) -> dict[int, list[list[int]]]:
    """Layer -> buckets that are asked for together: all of a unit's at once, of others one after the other."""
    found: dict[int, list[list[int]]] = {layer: [] for layer in plan.layers}
    for b, bucket in enumerate(buckets):
        for layer in dict.fromkeys(layer for layer, _ in bucket.members):
            if bucket.unit >= 0 and found[layer]:
                found[layer][0].append(b)
            else:
                found[layer].append([b])
    return found


def _groups(buckets: Sequence[Bucket]) -> list[list[int]]:
    """For each bucket those that travel with it: of the same unit over the same ranks."""
    together: dict[tuple[int, str], list[int]] = {}
    for b, bucket in enumerate(buckets):
        together.setdefault((bucket.unit, bucket.axis), []).append(b)
    return [together[bucket.unit, bucket.axis] if bucket.unit >= 0 else [b] for b, bucket in enumerate(buckets)]


class _Gathers:
    """Which buckets are whole, and which of them may go (AllGatherPipeline)."""

    def __init__(self, buckets: Sequence[Bucket], ahead: int, tables: Tables, out: Builder) -> None:
        self.buckets, self.ahead, self.out = buckets, ahead, out
        self.groups = _groups(buckets)
        self.slot = tables.slot("unsharded_bucket", "unsharded_param")
        self.comms = [tables.comm("all_gather", b.axis, b.dtype) for b in buckets]
        self.sizes = [b.numel * dtype_bytes(b.dtype) * (b.parts > 1) for b in buckets]
        self.layers = [b.first_layer for b in buckets]
        self.whole = [False] * len(buckets)
        self.may_go = [False] * len(buckets)
        self.pending: dict[int, int] = {}

    def gather(self, wanted: Sequence[int], direction: int, handle: int) -> None:
        """Those that are asked for and those ahead of them (direction 0: none), as far as they are not whole."""
        for b in wanted:
            self.may_go[b] = False
        empty = [b for b in self._with_ahead(wanted, direction) if not self.whole[b]]
        together: dict[int, list[int]] = {}
        for b in empty:
            together.setdefault(self.groups[b][0], []).append(b)
        for b in (b for group in together.values() for b in group):
            self.may_go[b] = False
            self._recycle()
            self.whole[b] = True
            self.out.alloc(self.layers[b], self.slot, self.sizes[b])
            if self.sizes[b]:
                self.out.collective(b, self.comms[b], self.sizes[b], Stream.ALL_GATHER, handle)
                self.pending[b] = handle

    def _with_ahead(self, wanted: Sequence[int], direction: int) -> list[int]:
        """All-gather order: by number."""
        found, size = sorted(wanted), 0
        while direction and size < self.ahead:
            after = _beside(found, direction)
            if not 0 <= after < len(self.buckets):
                break
            more = [b for b in self.groups[after] if b not in found]
            size += sum(self.buckets[b].numel for b in more)
            found = sorted([*found, *more])
        return found

    def wait(self, wanted: Sequence[int]) -> None:
        """They are about to be used."""
        for b in wanted:
            if b in self.pending:
                self.out.wait(b, self.pending.pop(b))

    def release(self, buckets: Sequence[int]) -> None:
        """They are freed."""
        for b in buckets:
            if self.whole[b]:
                self.wait([b])
                self.out.free(self.layers[b], self.slot, self.sizes[b])
                self.whole[b] = False

    def let_go(self, buckets: Sequence[int]) -> None:
        """They are freed when anything is gathered next."""
        for b in buckets:
            self.may_go[b] = True

    def _recycle(self) -> None:
        gone = [b for b, may in enumerate(self.may_go) if may]
        self.release(gone)
        for b in gone:
            self.may_go[b] = False

    def reset(self) -> None:
        """Everything is freed."""
        self.release(range(len(self.buckets)))
        self.may_go = [False] * len(self.buckets)


def _beside(found: Sequence[int], direction: int) -> int:
    """The number after the first run of numbers in a row, or before the last run."""
    at, rest = (found[0], found[1:]) if direction > 0 else (found[-1], found[-2::-1])
    at += direction
    for one in rest:
        if one != at:
            break
        at += direction
    return at


class _Reductions:
    """Whole gradient buckets: being filled, or reduced and waiting (GradReducePipeline)."""

    def __init__(self, buckets: Sequence[Bucket], flow: Queues, tables: Tables, out: Builder) -> None:
        self.buckets, self.waiting, self.out = buckets, flow.waiting, out
        self.whole = tables.slot("unsharded_grad_bucket", "unsharded_grad")
        self.part = tables.slot("reduced_grad_shard", "reduce_scatter_output")
        self.comms = [tables.comm("reduce_scatter", b.axis, flow.grad_dtype) for b in buckets]
        size = dtype_bytes(flow.grad_dtype)
        self.sizes = [b.numel * size * (b.parts > 1) for b in buckets]
        self.shards = [b.shard * size for b in buckets]
        self.layers = [b.first_layer for b in buckets]
        self.ending: dict[int, list[list[int]]] = {}
        for group in {group[0]: group for group in _groups(buckets)}.values():
            trained = [b for b in group if buckets[b].trainable]
            if trained:
                self.ending.setdefault(self.layers[trained[0]], []).append(trained)
        self.is_open = [False] * len(buckets)
        self.queue: list[int] = []

    def open(self, buckets: Sequence[int]) -> None:
        """Their first gradients are about to be there."""
        for b in buckets:
            if self.buckets[b].trainable and not self.is_open[b]:
                self.is_open[b] = True
                self.out.alloc(self.layers[b], self.whole, self.sizes[b])

    def finish(self, layer: int) -> None:
        """Buckets whose last gradients this layer has made are reduced."""
        for group in reversed(self.ending.get(layer, [])):
            while sum(self.buckets[b].numel for b in self.queue) > self.waiting:
                self._drop(self.queue.pop(0))
            for b in group:
                self.out.alloc(self.layers[b], self.part, self.shards[b])
                if self.sizes[b]:
                    self.out.collective(b, self.comms[b], self.sizes[b], Stream.REDUCE, REDUCE_HANDLE)
            for b in group:
                self.out.free(self.layers[b], self.part, self.shards[b])
            self.queue += group

    def drain(self) -> None:
        """Nothing waits any longer."""
        for b in self.queue:
            self._drop(b)
        self.queue.clear()

    def _drop(self, b: int) -> None:
        if self.sizes[b]:
            self.out.wait(b, REDUCE_HANDLE)
        self.out.free(self.layers[b], self.whole, self.sizes[b])
        self.is_open[b] = False
