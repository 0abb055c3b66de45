"""Memory hooks of ZeRO-1 and ZeRO-2: [Note: ZeRO-1 and ZeRO-2]."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from simcore.frameworks.common.cpu_optimizer import copied, updated_on_host
from simcore.frameworks.common.optimizer_memory import post_rest, rest_postings, step_temporaries
from simcore.frameworks.deepspeed.experts.groups import Group
from simcore.frameworks.deepspeed.gradients.orthogonal import OrthogonalUpdates
from simcore.frameworks.deepspeed.gradients.uncontiguous import UnbucketedGradients
from simcore.frameworks.deepspeed.modules.order import readiness
from simcore.frameworks.deepspeed.partitions import (
    flat_padding,
    groups_of,
    held_elements,
    largest_piece,
    largest_trained,
    most_gradients,
    of_copies,
    places,
    states_beside,
    trained_of,
    updated_parts,
    updated_shapes,
)
from simcore.frameworks.deepspeed.states.low_bit import beside_tensors_of
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.pipeline.schedule import Action
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import UnrepeatedHooks
from simcore.program.outline import Tables
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes

__all__ = ["Zero12Hooks"]

REDUCE_HANDLE = 16
LOOKED_AT = 11
"""Bytes an element in the search for infinities: fp32, its absolute value and three masks (`_has_inf_or_nan`)."""


class Zero12Hooks(UnrepeatedHooks):
    """Writer of the memory events of one rank's step under ZeRO-1 and ZeRO-2.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`. ZeRO-2
    frees gradients at once: they are in the bucket.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        self.plan, self.tables, self.out = plan, tables, builder
        self.strategy = plan.framework.strategy_as(ZeroStrategy)
        self.size = dtype_bytes(plan.framework.compute_dtype)
        self.wire = self.strategy.reduce_dtype or plan.framework.compute_dtype
        self.first = plan.layers[0]
        self.groups = groups_of(plan)
        self.kept = [self.size * (held_elements(plan, group, group.part) if self.strategy.orthogonalizes else
                                  most_gradients(plan, group)) for group in self.groups]
        self.group_of = {entry[:2]: number for number, group in enumerate(self.groups) for entry in group.entries}
        self.apart = UnbucketedGradients(builder, self._is_mine, behind=self.strategy.num_buffers > 1)
        self.updates = [OrthogonalUpdates(plan, one.part, updated_shapes(plan, one), tables, builder)
                        for one in self.groups if one.is_matrices]
        self.in_bucket: list[tuple[int, int]] = []
        self.larger: list[tuple[int, int]] = []
        self.places = places(plan)
        self.slices: list[tuple[str, int, int]] = []
        self.largest = largest_trained(plan)
        self.largest_in_bucket = self.touched_in_bucket = self.mine_in_bucket = self.microbatch = 0
        self.dtype = plan.framework.compute_dtype
        self.filled = self.parts = self.unsent = 0
        self.has_bucket = self.has_part = self.is_last = False
        self.slots = {name: tables.slot(name, category) for name, category in (
            ("ipg_bucket", "reduce_scatter_input"), ("flat_bucket", "reduce_scatter_input"),
            ("grads_in_partition", "sharded_grad"), ("grad_on_its_way", "reduce_scatter_output"),
            ("waiting_gradient", "unsharded_grad"))}
        self.overlapped = self.strategy.stage == 1 and self.strategy.num_buffers > 1
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps: parameters, and this rank's part of states.

        That part has masters and moments, alignment included; with states on the host there is only a buffer.
        """
        post_rest(self.plan, self.tables, self.out, rest_postings)
        self._alloc("flat_buffer.padding", "sharded_param", self.size * flat_padding(self.plan))
        if self.strategy.states_on_host:
            self._alloc("grad_buffer_for_offload", "reduce_scatter_input", self.size * self.largest)
            return
        for name, num_bytes in self._beside().items():
            self._alloc(f"flat_partition.{name}", "main_param" if name == "master_param" else "opt_state", num_bytes)

    def _beside(self) -> dict[str, int]:
        if self.strategy.orthogonalizes:
            return states_beside(self.plan)
        return beside_tensors_of(self.plan, self.strategy.moments, updated_parts(self.plan))

    def _alloc(self, name: str, category: str, num_bytes: int) -> None:
        self.out.alloc(self.first, self.tables.slot(name, category), num_bytes)

    def begin_microbatch(self, action: Action) -> None:
        """Records the number of the microbatch of `action`, and whether it is the last; nothing is simulated."""
        self.is_last, self.microbatch = action.is_last, action.microbatch

    def forward_begin(self, layer: int) -> None:
        """Simulates nothing: parameters are never sharded."""

    def forward_end(self, layer: int) -> None:
        """Simulates nothing: there is nothing to free."""

    def backward_begin(self, layer: int) -> None:
        """Simulates the allocation of the bucket before the first gradient of a microbatch (ZeRO-1: of the step).

        `layer`: number of the layer, in the whole model; nothing if it trains nothing, or gradients have no bucket.
        """
        if not (self.has_bucket or self.strategy.is_apart) and trained_of(self.plan, layer):
            self.out.alloc(self.first, self.slots["ipg_bucket"], self._bucket_bytes())
            self.has_bucket = True

    def _bucket_bytes(self) -> int:
        return self.strategy.num_buffers * self.strategy.bucket * self.size

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Takes the layer's new gradients: ZeRO-1 keeps them, ZeRO-2 simulates their copy into the bucket.

        `layer`: its number in the whole model, embedding 0. `grads`: (parameter, slot: index of its owner in
        `Tables.slots`, bytes) each. A full bucket is reduced first. ZeRO-1 with overlap_comm does so in the last
        microbatch (0.19.6 `stage_1_and_2.py`, process_gradients).
        """
        numbers = {placed.spec.name: number for number, placed in enumerate(self.plan.of_layer(layer))}
        for param, slot, num_bytes in grads:
            self.apart.made((layer, numbers[param.name]), slot, num_bytes)
        if self.strategy.stage > 1 or (self.is_last and self.overlapped):
            for number in dict.fromkeys(number for number, _ in readiness(self.plan, layer)):
                put = self._put_kept if self.overlapped else self._put
                put((layer, number))

    def _put_whole(self) -> None:
        """Puts ZeRO-1's gradients into the bucket, in the order of groups and their parameters (`reduce_gradients`).

        One that is larger than the bucket stays where it is until it is reduced.
        """
        ordered = sorted(self.apart.fresh, key=lambda key: (
            self.group_of[key], self.places[key] if self.updates else key))
        for key in () if self.overlapped or (self.strategy.stage > 1 and self.strategy.is_apart) else ordered:
            self._put_kept(key)

    def _put_kept(self, key: tuple[int, int]) -> None:
        self._put(key)
        if self.filled > self.strategy.bucket:
            self.larger.append(key)
        elif not self.strategy.is_apart:
            self.apart.sent(key)

    def _put(self, key: tuple[int, int]) -> None:
        """Puts a gradient, or those of all experts one by one, into the bucket; reduced first if there is no room."""
        for start, end in of_copies(self.plan, key, self.places[key]):
            self._put_one(key, start, end)

    def _put_one(self, key: tuple[int, int], start: int, end: int) -> None:
        """Puts one gradient into the bucket. ZeRO-2's lives until it is there, or sent, if it is larger.

        0.19.6 `stage_1_and_2.py`, reduce_independent_p_g_buckets_and_remove_grads: the bucket is reduced before the
        copy, and one that is larger is sent from where it is (extra_large_param_to_reduce).
        """
        numel, copied = end - start, not self.strategy.is_apart
        waits = numel * self.size * (self.strategy.stage > 1 and copied)
        self.out.alloc(self.first, self.slots["waiting_gradient"], waits)
        if self.filled and self.filled + numel > self.strategy.bucket:
            self._reduce()
        self.out.compute(Kernel.COPY, 0, 2 * numel * self.size * copied)
        self.in_bucket.append(key)
        self.filled += numel
        self.largest_in_bucket = max(self.largest_in_bucket, numel)
        group = self.groups[self.group_of[key]]
        for owner, piece in group.owners(start, end):
            if owner == group.at:
                self.mine_in_bucket += piece
                self.touched_in_bucket += numel
            before = self.slices.pop()[2] if self.slices and self.slices[-1][:2] == (group.axis, owner) else 0
            self.slices.append((group.axis, owner, before + piece))
        is_larger = numel > self.strategy.bucket
        self.unsent += waits * is_larger
        self.out.free(self.first, self.slots["waiting_gradient"], waits * (not is_larger))

    def _reduce(self) -> None:
        """All-reduces the bucket, in a flat copy if it has pieces of several partitions; own pieces are copied out.

        The rank's partition exists from the first reduction on, as on the rank whose partition is filled first.
        """
        if not self.filled:
            return
        wide = dtype_bytes(self.wire)
        for axis, pieces in self._together():
            is_copied, cast = len(self.in_bucket if self.strategy.is_apart else pieces) > 1, wide > self.size
            num_bytes = sum(pieces) * (self.size * is_copied + wide * cast)
            self.out.alloc(self.first, self.slots["flat_bucket"], num_bytes)
            self.out.compute(Kernel.COPY, 0, 2 * sum(pieces) * (self.size + wide) * cast)
            comm = self.tables.comm("all_reduce", axis, self.wire)
            self.out.collective(self.first, comm, sum(pieces) * wide, Stream.REDUCE, REDUCE_HANDLE)
            self.out.free(self.first, self.slots["flat_bucket"], num_bytes)
        if self.strategy.states_on_host:
            self._send_to_host()
        elif self.strategy.is_apart:
            self.apart.reduced(self.in_bucket if self.strategy.stage > 1 else ())
        elif self.mine_in_bucket or not self.updates:
            self._keep_part()
        self.filled = self.largest_in_bucket = self.touched_in_bucket = self.mine_in_bucket = 0
        self.out.free(self.first, self.slots["waiting_gradient"], self.unsent)
        self.unsent = 0
        for key in self.larger if not self.strategy.is_apart else ():
            if self._is_mine(key):
                self.apart.sent(key)
        self.larger.clear()
        self.slices.clear()
        self.in_bucket.clear()

    def _keep_part(self) -> None:
        if not self.has_part:
            self.out.alloc(self.first, self.slots["grads_in_partition"], sum(self.kept))
            self.has_part, self.parts = True, self.parts + 1

    def _is_mine(self, key: tuple[int, int]) -> bool:
        """True if the parameter has elements in the rank's partition."""
        (start, end), group = self.places[key], self.groups[self.group_of[key]]
        low, high = group.own(group.at)
        return start < high and end > low

    def _together(self) -> list[tuple[str, list[int]]]:
        """(axis, pieces) that are sent together: of one axis, until they exceed a bucket (`allreduce_and_scatter`)."""
        found: list[tuple[str, list[int]]] = []
        for axis in dict.fromkeys(axis for axis, *_ in self.slices):
            groups, total = [list[int]()], 0
            for piece in (piece for at, _, piece in self.slices if at == axis):
                if not self.strategy.is_apart and total > self.strategy.bucket:
                    groups.append([])
                    total = 0
                groups[-1].append(piece)
                total += piece
            found += [(axis, group) for group in groups]
        return found

    def _send_to_host(self) -> None:
        """Copies the rank's pieces of the bucket to the host.

        In the last microbatch in fp32, each tensor checked first.

        Temporary bytes are those of the rank with the largest tensor. With several microbatches every parameter with
        elements in the partition is fetched, added to and sent back.
        """
        if self.is_last:
            taken = LOOKED_AT * self.largest_in_bucket
            self.out.alloc(self.first, self.slots["grad_on_its_way"], taken)
            self.out.free(self.first, self.slots["grad_on_its_way"], taken)
        if self.strategy.accumulates and self.strategy.stage > 1:
            self._copied("to_device", self.dtype, self.size * self.touched_in_bucket * (self.microbatch > 0))
            self._copied("to_host", self.dtype, self.size * self.touched_in_bucket)
        self._copied("to_host", "fp32", 4 * self.mine_in_bucket * self.is_last)

    def _copied(self, direction: str, dtype: str, num_bytes: int) -> None:
        if num_bytes:
            copied(self.first, direction, dtype, num_bytes, self.tables, self.out)

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates nothing: experts are no separate unit here, and no argument is used."""

    def end_pass(self, action: Action) -> None:
        """Simulates, after a backward, the reduction of the last bucket, and its release.

        The partition of a further microbatch is added to that of the first. ZeRO-1 does all this only after the last
        one.
        """
        if action.forward or (self.strategy.stage == 1 and not self.is_last):
            return
        self._put_whole()
        self._reduce()
        self.out.wait(self.first, REDUCE_HANDLE)
        if self.strategy.is_apart:
            self.apart.end_microbatch()
        for updates in self.updates if self.is_last else ():
            self._keep_part()
            updates.make()
        for key in list(self.apart.fresh) if not self.strategy.is_apart else ():
            self.apart.sent(key)  # ZeRO-1: larger than the bucket, and of other ranks (_clear_param_grad_only)
        if self.parts > 1:
            kept = sum(self.kept)
            self.out.compute(Kernel.ELEMENTWISE, kept // self.size, 3 * kept)
            self.out.free(self.first, self.slots["grads_in_partition"], kept)
            self.parts = 1
        if self.has_bucket:
            self.out.free(self.first, self.slots["ipg_bucket"], self._bucket_bytes())
        self.has_bucket = self.has_part = False

    def optimize(self) -> None:
        """Simulates norms, then for each parameter group the fp32 copy of the partition and the update; all-gathers.

        One all-gather a group, not overlapped. With states on the host: the update there, and the copy of the partition
        to the device. DeepSpeed 0.19.6 runtime/zero/stage_1_and_2.py step, all_gather_dp_groups: calls that the stream
        waits for.
        """
        begin, end, step_end = self.marks
        self.out.mark(begin)
        looked_at = LOOKED_AT * max(self._largest(group) for group in self.groups)
        for group in self.groups:
            kept = sum(self.kept) * (group is self.groups[-1])  # one storage for all groups
            if group.is_matrices:
                self.updates[0].step(looked_at)
                looked_at = 0
                self._drop_part(kept)
            elif self.strategy.states_on_host:
                updated_on_host(self.plan, group.part, self.out)
                self._copied("to_device", self.dtype, self.size * group.part)
            else:
                step_temporaries(self.plan, self.tables, self.out, (looked_at, group.part),
                                 partial(self._drop_part, kept))
                looked_at = 0
        self.parts = 0
        for group in (group for group in self.groups if group.ranks > 1):
            comm = self.tables.comm("all_gather", group.axis, self.plan.framework.compute_dtype)
            self.out.collective(self.first, comm, group.aligned * self.size, Stream.COMPUTE, int(Module.NONE))
        self.out.mark(end)
        self.out.mark(step_end)

    def _largest(self, group: Group) -> int:
        """Elements of the largest piece of a parameter of a group: of any rank, with Muon of this one."""
        if self.updates:
            return largest_piece(self.plan, group)
        placed = (self.plan.of_layer(layer)[number] for layer, number, _ in group.entries)
        return min(max((one.used // one.used_copies for one in placed), default=0), group.part)

    def _drop_part(self, kept: int) -> None:
        """Frees `kept` bytes of averaged gradients when their fp32 copy exists."""
        self.out.free(self.first, self.slots["grads_in_partition"], kept * self.parts)
        self.apart.drop_kept()
