"""Memory hooks of ZeRO-3: [Note: ZeRO-3].

Upstream's hooks are those of modules, and so is the order in which parameters are gathered here; but a layer's are
all gathered when it begins (in backward: up to the end of its replay), and their bytes are freed when it ends: up to a
layer more than upstream in forward. Gradients are freed when autograd has made them, because they are copied into the
bucket; one that is larger than the bucket is counted until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcore.frameworks.common.optimizer_memory import post_rest, rest_postings, step_temporaries
from simcore.frameworks.deepspeed.experts.joint_gathers import JointGathers, by_ranks
from simcore.frameworks.deepspeed.experts.layers import axis_of
from simcore.frameworks.deepspeed.experts.replayed_weights import ReplayedWeights
from simcore.frameworks.deepspeed.hpz import HpzShards, Key
from simcore.frameworks.deepspeed.modules.order import backward_calls, forward_calls, readiness
from simcore.frameworks.deepspeed.offload_gradients import GradientsOnHost
from simcore.frameworks.deepspeed.partitions import shards_of, updated_parts
from simcore.frameworks.deepspeed.prefetch_trace import (
    LivePackedWeights,
    ReuseDistance,
    bytes_by_dtype,
    elements,
    kept_views,
    recorded,
    seen_by_nodes,
)
from simcore.frameworks.deepspeed.states.low_bit import beside_tensors_of
from simcore.frameworks.deepspeed.strategy import PERSISTENT, ZeroStrategy
from simcore.frameworks.deepspeed.zero12_copies import FlatBuffers
from simcore.frameworks.deepspeed.zero12_hooks import REDUCE_HANDLE
from simcore.pipeline.schedule import Action
from simcore.placement.plan import Placed, Plan
from simcore.program.builder import Builder
from simcore.program.hooks import UnrepeatedHooks
from simcore.program.outline import Tables
from simcore.recording.rows import HOST_DRAINS, Module
from simcore.recording.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes

__all__ = ["Zero3Hooks"]

GATHER_HANDLE = 17


class Zero3Hooks(UnrepeatedHooks):
    """Writer of the memory events of one rank's step under ZeRO-3: gathers, frees, buckets of gradients.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`. It
    follows the recorded order in which modules are called, which is equal in every microbatch.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        self.plan, self.tables, self.out = plan, tables, builder
        self.strategy = plan.framework.strategy_as(ZeroStrategy)
        self.wire = self.strategy.reduce_dtype or plan.framework.compute_dtype
        self.wide = dtype_bytes(self.wire)
        self.size, self.dense = dtype_bytes(plan.framework.compute_dtype), self.strategy.axis
        self.first, self.open, self.pins = plan.layers[0], set[Key](), LivePackedWeights(plan)
        self.calls, self.closed = zip(*recorded(plan), strict=True)
        self.trace = [(at, key) for at, keys in enumerate(self.calls) for key in keys]
        placed = {key: self._placed(key) for _, key in self.trace}
        self.elements = {key: elements(parameter) for key, parameter in placed.items()}
        self.reuse = ReuseDistance(plan, self.strategy.reuse)
        self.there: dict[Key, int] = {}
        self.coming: dict[Key, list[Key]] = {}
        self.promised: dict[Key, int] = {}
        self.leaving: dict[Key, int] = {}
        self.held: dict[Key, int] = {}
        self.seen_by_nodes = seen_by_nodes(plan)
        self.views, self.keeping = kept_views(plan)
        self.at = self.cursor = self.filled = self.loose = self.live = 0
        self.over = self.dense
        self.slots = [tables.slot(name, category) for name, category in (
            ("fetched", "unsharded_param"), ("prefetched", "all_gather_output"),
            ("flat_bucket", "reduce_scatter_input"), ("persistent", "unsharded_param"),
            ("parts_from_host", "all_gather_cast_input"))]
        self.flat, self.joint, self.is_last = FlatBuffers(builder, self.slots[1]), JointGathers(), False
        self.router = ReplayedWeights(plan, builder, self.slots, self._whole)
        self.waiting: list[tuple[int, int, int]] = []
        self.in_bucket: list[int] = []
        self.on_host = GradientsOnHost(plan, tables, builder, self.strategy)
        self.from_host = tables.comm("copy", "to_device", plan.framework.compute_dtype)
        self.secondary = HpzShards(plan, tables, builder, self.strategy)
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]

    def _placed(self, key: Key) -> Placed:
        return self.plan.of_layer(key[0])[key[1]]

    def _ranks(self, placed: Placed) -> int:
        """Ranks that have a part of a parameter."""
        return self.plan.mesh.axis(axis_of(placed)).size

    def _whole(self, key: Key) -> int:
        """Bytes of a gathered parameter, padding included; none if its only rank uses its part (NoGatherHandle)."""
        placed = self._placed(key)
        ranks = self._ranks(placed) * (self._ranks(placed) > 1 or self.strategy.params_on_host)
        return placed.policy.at_rest.num_bytes(placed.padded // placed.used_copies * ranks)

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps.

        Shards of parameters, masters, moments and gradients; the bucket; small parameters, unsharded.
        """
        post_rest(self.plan, self.tables, self.out, rest_postings)
        for name, category, num_bytes in (
                ("grad_partitions", "main_grad",
                 self.size * sum(map(sum, shards_of(self.plan))) * (not self.strategy.states_on_host)),
                ("ipg_bucket", "reduce_scatter_input", self.wide * self.strategy.bucket * (not self.strategy.is_apart)),
                ("persistent", "unsharded_param", sum(self._persistent().values())),
                *((f"flat_part.{name}", "opt_state", size) for name, size in beside_tensors_of(
                    self.plan, self.strategy.moments, updated_parts(self.plan)).items())):
            self.out.alloc(self.first, self.tables.slot(name, category), num_bytes)
        self.secondary.start({key: self._whole(key) for key in self._frozen()})
        self.router.start(self.elements)

    def _frozen(self) -> Iterator[Key]:
        """Frozen parameters, small ones that stay gathered too."""
        for layer in self.plan.layers:
            for number, placed in enumerate(self.plan.of_layer(layer)):
                if placed.spec.is_owned and not placed.trainable and not placed.spec.is_buffer:
                    yield from ((layer, number, expert) for expert in range(placed.used_copies))

    def _persistent(self, *, padded: bool = False) -> dict[str, int]:
        """Bytes of small parameters, as they are stored or (`padded`) as they are gathered, by the axis of ranks.

        None where the only rank uses its part.
        """
        found = {self.dense: 0}
        for kind, count in self.plan.kind_counts:
            for p in (p for p in self.plan.kinds[kind] if p.policy.name == PERSISTENT and p.spec.is_owned):
                numel = (p.padded * self._ranks(p) if padded else p.used) * (self._ranks(p) > 1)
                found[axis_of(p)] = found.get(axis_of(p), 0) + count * p.policy.at_rest.num_bytes(numel)
        return found

    def begin_microbatch(self, action: Action) -> None:
        """Before a forward, goes back to the first recorded call (`reset_step`); nothing is simulated."""
        self.is_last = action.is_last
        if action.forward:
            self.at = self.cursor = 0
            self.promised.clear()
            self.joint.begin_microbatch()

    def forward_begin(self, layer: int) -> None:
        """Simulates the gathers and prefetches of the module calls of layer number `layer` in forward.

        Layers are numbered over the whole model, embedding 0.
        """
        self._call(len(forward_calls(self.plan, layer)))
        self.router.forward(layer)

    def forward_end(self, layer: int) -> None:
        """Simulates the frees of all parameters that module calls have released by now; `layer` is not used."""
        self._leave()

    def backward_begin(self, layer: int) -> None:
        """Simulates the gathers of the layer's module calls up to the end of its recomputation.

        `layer`: its number in the whole model, embedding 0. Without a recomputation, those of all its calls in
        backward.
        """
        replay, rest = backward_calls(self.plan, layer)
        self._call(len(replay) or len(rest))

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Takes the layer's new gradients: they are copied into the bucket, and parameters are released.

        `layer`: its number in the whole model, embedding 0. `grads`: (parameter, slot: index of its owner in
        `Tables.slots`, bytes) each. A full bucket is reduced first. With a recomputation the layer's further backward
        calls gather here.
        """
        replay, rest = backward_calls(self.plan, layer)
        if not self.strategy.is_apart:
            for _, slot, num_bytes in grads:
                self.out.free(layer, slot, num_bytes)
        grads_by_name = {param.name: [(layer, slot, num_bytes)] for param, slot,
                         num_bytes in grads if self.strategy.is_apart}
        for number, _ in readiness(self.plan, layer, weight_first=True):
            placed = self.plan.of_layer(layer)[number]
            copies = placed.used_copies
            self._put(placed.used // copies, placed.padded // copies, axis_of(placed))
            self.waiting += grads_by_name.get(placed.spec.name, [])
        self._call(len(rest) if replay else 0)
        for key in [key for key in self.held if key[0] == layer and key in self.views]:
            self.out.free(layer, self.slots[self.held.pop(key)], self._whole(key))
        self._leave()

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates nothing: experts are no separate unit here, and no argument is used."""

    def end_pass(self, action: Action) -> None:
        """Simulates, after a backward, the last reduction and the host's wait for it.

        So nothing of the next microbatch overlaps with this one. DeepSpeed 0.19.6 stage3.py:1368,
        independent_gradient_partition_epilogue: `stream.synchronize()`.
        """
        if not action.forward:
            for key in (self.pins.pinned | self.open) & self.there.keys():
                self._drop(key)
            self.pins.pinned.clear()
            self.open.clear()
            self._leave()
            self._reduce()
            self.out.wait(self.first, REDUCE_HANDLE)
            self.out.wait(self.first, HOST_DRAINS)
            for key, slot in self.held.items():
                self.out.free(key[0], self.slots[slot], self._whole(key))
            self.held.clear()

    def optimize(self) -> None:
        """Simulates the update of the rank's shards, in sub-groups.

        Small parameters, which stay gathered, are freed before it and gathered again after it.
        """
        begin, end, step_end = self.marks
        small = sum(self._persistent().values())
        self.out.mark(begin)
        self.out.free(self.first, self.slots[3], small)
        parts = shards_of(self.plan)
        norm = 8 * max(map(max, parts), default=0)  # in fp64, tensor by tensor (`get_grad_norm_direct`)
        if self.plan.framework.compute_dtype == "fp16":  # has_overflow: absolute values and a mask of all gradients
            norm = max(norm, (self.size + 1) * sum(map(sum, parts)))
        updated = updated_parts(self.plan)
        if self.strategy.states_on_host:
            self.on_host.step(updated)
        for group in () if self.strategy.states_on_host else updated:
            step_temporaries(self.plan, self.tables, self.out, (norm, group))
            norm = 0
        self.out.alloc(self.first, self.slots[3], small)
        self.secondary.drop()
        self.joint.end_step()
        for axis, num_bytes in self._persistent(padded=True).items():
            comm = self.tables.comm("all_gather", axis, self.plan.framework.compute_dtype)
            self.out.collective(self.first, comm, num_bytes, Stream.COMPUTE, int(Module.NONE))
        self.out.mark(end)
        self.out.mark(step_end)

    # ---- parameters ---------------------------------------------------------------------------------------------
    def _call(self, count: int) -> None:
        """Runs `count` calls of modules: each fetches, prefetches and releases; bytes are freed at the layer's end."""
        for _ in range(count):
            keys = self.calls[self.at]
            self._fetch(keys)
            while self.cursor < len(self.trace) and self.trace[self.cursor][0] <= self.at:
                self.cursor += 1
            self._fetch_ahead()
            self.pins.called(self.at, keys)
            if self.at in self.pins.replaying:
                self.router.replayed(keys)
            self.at += 1
            self.open.update(keys)
            self.open.difference_update(self.closed[self.at - 1])
            self._release(self.closed[self.at - 1])
            for key in self.pins.released(self.at) & self.there.keys():
                self._drop(key)
            self._release(self.pins.unpinned(self.at))

    def _fetch(self, keys: list[Key]) -> None:
        """Gathers the parameters that the module needs, or waits for those in flight."""
        for key in keys:
            if key in self.coming:
                self._arrive(self.coming[key])
        missing = [key for key in keys if key not in self.there]
        if missing:
            self._gather(missing)
            for key in missing:
                if key in self.coming:
                    self._arrive(self.coming[key])
        self.flat.asked(keys)
        self.joint.asked(keys, self.there, self.coming)

    def _gather(self, keys: list[Key]) -> None:
        """Gathers what has a second shard from that, then the others (`__all_gather_params_`)."""
        for group in ([key for key in keys if self.secondary.has(key)],
                      [key for key in keys if not self.secondary.has(key)]):
            if group:
                self._gather_together(group)

    def _gather_together(self, group: list[Key]) -> None:
        for key in group:  # it was released, and is freed before it is gathered again
            self._free(key)
        self.coming.update(dict.fromkeys(group, group))
        self.live += sum(self.elements[key] for key in group)
        for axis, keys in by_ranks(self.plan, group):
            self._gather_over(axis, keys)

    def _gather_over(self, axis: str, group: list[Key]) -> None:
        num_bytes = sum(map(self._whole, group))
        self.out.alloc(group[0][0], self.slots[1], num_bytes)
        brought = num_bytes // self.plan.mesh.axis(axis).size * self.strategy.params_on_host
        self.out.alloc(group[0][0], self.slots[4], brought)
        self.out.free(group[0][0], self.slots[4], brought)
        if brought:
            self.out.copy(group[0][0], self.from_host, brought, Stream.ALL_GATHER, GATHER_HANDLE)
        for dtype, size in bytes_by_dtype((self._placed(key).policy.at_rest.dtype, self._whole(key)) for key in group):
            comm = self.secondary.comm if self.secondary.has(group[0]) else self.tables.comm("all_gather", axis, dtype)
            self.out.collective(group[0][0], comm, size, Stream.ALL_GATHER, GATHER_HANDLE)

    def _fetch_ahead(self) -> None:
        """Prefetches parameters, until the allowed number of elements is in flight (`_fetch_sub_module_impl`)."""
        room = min(self.strategy.live - self.live, self.strategy.ahead)
        group: dict[Key, None] = {}
        while self.cursor < len(self.trace) and room > 0:
            at, key = self.trace[self.cursor]
            self.cursor += 1
            self.promised[key] = max(at, self.promised.get(key, 0))
            if key not in self.there and key not in self.coming and key not in group:
                group[key] = None
                room -= self.elements[key]
        if group:
            self._gather(list(group))

    def _arrive(self, group: list[Key]) -> None:
        """Waits for a gather: a single parameter stays in its buffer, several are copied out of the flat buffer.

        Buffers over different ranks are kept together (MultipleAllGatherHandles).
        """
        self.out.wait(group[0][0], GATHER_HANDLE)
        self.joint.arrived(groups := [keys for _, keys in by_ranks(self.plan, group)])
        for keys, is_alone in ((keys, len(keys) == 1) for keys in groups):
            for key in keys:
                del self.coming[key]
                self.there[key] = int(is_alone)
                if not is_alone:
                    self.out.alloc(key[0], self.slots[0], self._whole(key))
                    self.out.compute(Kernel.COPY, 0, 2 * self._whole(key))
            if not is_alone:
                self.flat.arrived(group, keys[0][0], sum(map(self._whole, keys)))

    def _release(self, keys: list[Key]) -> None:
        """Releases parameters that are not used again soon (`__params_to_release`); `self.at` is the next call."""
        for key in keys:
            if (key in self.there and not self.reuse.is_short(key, self.at) and key not in self.pins.pinned
                    and self.promised.get(key, 0) <= self.at):
                self._drop(key)

    def _drop(self, key: Key) -> None:
        is_kept = key in self.views and self.at - 1 in self.keeping
        is_held = (key in self.seen_by_nodes or is_kept) and key not in self.held
        slot = self.there.pop(key)
        if not self.router.keeps(key, slot):
            (self.held if is_held else self.leaving)[key] = slot
        self.live -= self.elements[key]
        self.secondary.keep(key, self._whole(key))

    def _leave(self) -> None:
        for key in list(self.leaving):
            self._free(key)

    def _free(self, key: Key) -> None:
        if key in self.leaving:
            self.out.free(key[0], self.slots[self.leaving.pop(key)], self._whole(key))

    # ---- gradients ----------------------------------------------------------------------------------------------
    def _put(self, numel: int, part: int, axis: str) -> None:
        """Puts a gradient into the bucket, which is reduced first if there is no room, or if it is of other ranks.

        `part`: elements of a rank's shard; `axis`: of the ranks that have one.
        """
        if self.filled and (self.filled + numel > self.strategy.bucket or axis != self.over):
            self._reduce()
        self.out.compute(Kernel.COPY, 0, numel * (self.size + self.wide) * (not self.strategy.is_apart))
        self.filled += numel
        self.loose += numel * (numel > self.strategy.bucket or self.strategy.is_apart)
        self.over = axis
        self.in_bucket.append(part)

    def _reduce(self) -> None:
        """Reduces the bucket (`reduce_scatter_coalesced`), from a copy ordered by ranks if the order differs.

        In another format than that of products, gradients that are not in the bucket are cast before, shards after.
        Shards of experts are scaled in a copy: they are divided by all ranks (`__avg_scatter_grads`).
        """
        if not self.filled:
            return
        parts, cast = sum(self.in_bucket), self.wide > self.size
        padded = parts * self.plan.mesh.axis(self.over).size
        copied = padded * self.wide * (len(self.in_bucket) > 1 or padded > self.filled)
        scaled = self.wide * parts * (self.over != self.dense)
        after = cast * self.size * parts
        copied = (max(copied, after) + scaled if scaled else copied + after) + cast * self.wide * self.loose
        self.out.compute(Kernel.COPY, 0, cast * (self.size + self.wide) * (self.loose + parts) + 2 * scaled)
        self.out.alloc(self.first, self.slots[2], copied)
        reduce = self.tables.comm("reduce_scatter", self.over, self.wire)
        self.out.collective(self.first, reduce, padded * self.wide, Stream.REDUCE, REDUCE_HANDLE)
        self.on_host.send(self.in_bucket, is_last=self.is_last)
        self.out.free(self.first, self.slots[2], copied)
        for layer, slot, size in self.waiting:
            self.out.free(layer, slot, size)
        self.waiting.clear()
        self.filled = self.loose = 0
        self.in_bucket.clear()
