"""Hooks of frameworks whose parameters are whole on every rank: flat buffers, buckets, a sharded optimizer.

[Note: Megatron's buckets]
Megatron-Core 0.16.1 `distributed/param_and_grad_buffer.py`, `distributed_data_parallel.py`: weight gradients are added
into main_grad by the GEMM itself; in the last microbatch a bucket is reduced as soon as its last gradient is there
(`overlap_grad_reduce`); after the step parameters are gathered in the same buckets, one ahead of their use in the next
forward (`overlap_param_gather`). Without the one, buckets are reduced in one go at the end of backward; without the
other, they are gathered in one go after the step, by calls that the compute stream waits for (start_param_sync).
With virtual stages every chunk has separate buffers, and they are reduced chunk by chunk ([Note: interleaved 1F1B]).
Before the step a non-precision-aware optimizer copies 16-bit gradients of its part to fp32 and keeps them until the
next zero_grad (`optimizer/distrib_optimizer.py`).

[Note: Muon's step]
Matrix by matrix (core 0.16.1 `optimizer/muon.py`, emerging_optimizers `orthogonalized_optimizers/muon_utils.py`): the
momentum is orthogonalised in bf16, its result is fp32 and is multiplied by two numbers, which makes two tensors more:
12 bytes an element. Query, key and value are orthogonalised apart (muon_split_qkv), which adds 4 bytes for each element
of all three inputs and 4 for each of the finished ones. Modes over tensor parallel ranks other than blockwise, the
default, gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Self

from simcore.frameworks.common.cpu_optimizer import copied, cpu_bytes, waits_for_device
from simcore.frameworks.common.optimizer_memory import Posting, post_rest
from simcore.frameworks.megatron.flat_parameters import padding_bytes, padding_elements
from simcore.frameworks.megatron.sizes import BufferSizes, MegatronSizes, megatron_sizes
from simcore.frameworks.megatron.strategy import MegatronDdpStrategy
from simcore.pipeline.schedule import Action
from simcore.placement.plan import Placed, PlacedKind, Plan
from simcore.program.builder import Builder
from simcore.program.hooks import HookState, SizedHooks
from simcore.program.outline import Tables
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes

__all__ = ["MEGATRON_HOOKS", "MegatronHooks"]

REDUCE_HANDLE, GATHER_HANDLE = 16, 1 << 20
_Read = tuple[bool, int, frozenset[tuple[int, int]], frozenset[int]]
"""Fields of `MegatronHooks` that change."""
IN_LINE = int(Module.NONE)
"""Number in the place of a handle: the module of a call in line with kernels."""


class MegatronHooks:
    """Writer of the memory events of one rank's step under Megatron-Core: flat buffers, their collectives.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder, sizes: MegatronSizes) -> None:
        self.plan, self.tables, self.out, self.sizes = plan, tables, builder, sizes
        self.strategy = plan.framework.strategy_as(MegatronDdpStrategy)
        self.buffers = sizes.buffers
        self.first_use = [dict(buffer.first_use) for buffer in self.buffers]
        self.is_last = False
        self.gathered: set[tuple[int, int]] = set()
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]
        self.seen_forward: set[int] = set()
        self.chunk = 0

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of parameters, main gradients, masters and moments, padding included."""
        _post_persistent(self.plan, self.tables, self.out)

    def begin_microbatch(self, action: Action) -> None:
        """Records the chunk of the pass `action`, and whether it is its last of the step; nothing is simulated."""
        self.is_last, self.chunk = action.is_last, action.chunk

    def forward_begin(self, layer: int) -> None:
        """Simulates, in a chunk's first forward, the gathers of the buckets that this layer uses first, and a wait.

        `layer`: its number in the whole model, embedding 0. The next bucket is gathered ahead. Nothing unless
        parameters are gathered during forward.
        """
        if self.chunk in self.seen_forward or not (self.strategy.param_gather and self.strategy.gathers_ahead):
            return
        for b, buffer in enumerate(self.buffers):
            for bucket in self.first_use[b].get(layer, ()):
                self._gather(b, buffer, bucket)
                self.out.wait(bucket, GATHER_HANDLE + b)
                if bucket > 0:  # the next one of the chunk in forward order
                    self._gather(b, buffer, bucket - 1)

    def forward_end(self, layer: int) -> None:
        """Simulates nothing: parameters stay."""

    def backward_begin(self, layer: int) -> None:
        """Simulates nothing: parameters are whole already."""

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Simulates the release of gradients that operators allocated, which are added into main_grad.

        `layer`: number of their layer in the whole model, embedding 0. `grads`: (parameter, slot: index of its owner in
        `Tables.slots`, bytes) each. In the last microbatch, with overlap and one chunk a rank, buckets that are
        complete are reduced.
        """
        for _, slot, num_bytes in grads:
            self.out.free(layer, slot, num_bytes)
        if self.is_last and self.strategy.overlap and len(self.plan.chunks) == 1:
            for b, buffer in enumerate(self.buffers):
                for bucket in self.first_use[b].get(layer, ()):
                    self._reduce(b, buffer, bucket)

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates nothing: experts are no separate unit here, and no argument is used."""

    def end_pass(self, action: Action) -> None:
        """Simulates the reductions of whole chunks that are due; after the step's last backward all others.

        After a chunk's first forward it records that its parameters are gathered.
        """
        if action.forward:
            self.seen_forward.add(action.chunk)
        for chunk in action.reduces if self.strategy.overlap else ():
            self._reduce_chunk(chunk)
        if not action.forward and action.is_last and action.chunk == 0:
            for b, buffer in enumerate(self.buffers):
                for bucket in range(len(buffer.gathers)):
                    if not self.strategy.overlap:
                        self._reduce(b, buffer, bucket)
                    self.out.wait(bucket, REDUCE_HANDLE + b)
            self._average()

    def optimize(self) -> None:
        """Simulates this rank's optimizer step, then the gathers that are not left to the next forward.

        fp32 copies of gradients stay until zero_grad.
        """
        begin, end, step_end = self.marks
        layer, slot = self.plan.layers[0], self.tables.slot("fp32_grad_shard", "optim_temp")
        sizes = self.sizes
        self.out.mark(begin)
        self.out.alloc(layer, slot, sizes.copied)
        work = self.tables.slot("orthogonalised", "optim_temp")
        self.out.alloc(layer, work, sizes.muon)
        scaled = self.tables.slot("unscaled_states", "optim_temp")
        self.out.alloc(layer, scaled, sizes.scaled)
        self._to_host(layer, sizes.away)
        self.out.compute(Kernel.OPTIMIZER, sizes.flops, sizes.moved)
        self.out.free(layer, scaled, sizes.scaled)
        self.out.free(layer, work, sizes.muon)
        self._on_host(layer, sizes.away)
        self._exchange_updated()
        if self.strategy.param_gather and not self.strategy.gathers_ahead:
            for b, buffer in enumerate(self.buffers):
                for bucket in range(len(buffer.gathers)):
                    self._gather(b, buffer, bucket, Stream.COMPUTE)
        self.out.mark(end)
        self.out.mark(step_end)

    def of_reference(self) -> Self:
        """These hooks; no reference model passes inside a loss here."""
        return self

    def state(self) -> HookState[_Read]:
        """State between passes: which is under way, and which buckets and chunks are gathered."""
        return HookState((self.is_last, self.chunk, frozenset(self.gathered), frozenset(self.seen_forward)))

    def follow(self, before: HookState[_Read], after: HookState[_Read]) -> None:
        """Takes the state after a pass that was written before, as `MemoryHooks.follow`."""
        self.is_last, self.chunk, gathered, seen_forward = after.read
        self.gathered, self.seen_forward = set(gathered), set(seen_forward)

    def _to_host(self, layer: int, elements: int) -> None:
        """Gradients in fp32, which the CPU waits for ([Note: optimizer on the host] in `rules.py`)."""
        if elements:
            copied(layer, "to_host", "fp32", 4 * elements, self.tables, self.out)
            waits_for_device(layer, self.out)

    def _on_host(self, layer: int, elements: int) -> None:
        """The CPU's step, beside the device's own, a cast to 16 bits (from 4 bytes to 2), and the way back."""
        if elements:
            self.out.host(cpu_bytes(self.plan.framework.optimizer.name, "", elements, 4) + 6 * elements)
            copied(layer, "to_device", self.plan.framework.compute_dtype, 2 * elements, self.tables, self.out)

    def _exchange_updated(self) -> None:
        """Flat copies of what each rank updated, its own twice (`layer_wise_optimizer.py`, _allgather_helper)."""
        if not self.plan.framework.dealt:
            return
        layer, slot = self.plan.layers[0], self.tables.slot("updated_parameters", "optim_temp")
        mine = self.plan.framework.dealt[self.plan.stage]
        for axis_name, share in zip(mine.axes, mine.shares, strict=True):
            axis, dtype = self.plan.mesh.axis(axis_name), self.plan.of_layer(layer)[0].policy.at_rest.dtype
            size = dtype_bytes(dtype)
            total = size * sum(muon + adam for muon, adam in share)
            if axis.size == 1 or not total:
                continue
            own = size * sum(share[axis.coordinate(self.plan.rank)])
            copies = 0 if mine.in_place else total + own
            self.out.alloc(layer, slot, copies)
            comm = self.tables.comm("all_gather", axis_name, dtype)
            self.out.collective(layer, comm, total, Stream.COMPUTE, IN_LINE)
            self.out.free(layer, slot, copies)

    def _average(self) -> None:
        """One copy of gradients that are averaged over tp, and back (core `finalize_model_grads.py:416`)."""
        if not (size := self.sizes.averaged):
            return
        layer, slot = self.plan.layers[0], self.tables.slot("averaged_gradients", "backward_temp")
        self.out.alloc(layer, slot, size)
        self.out.compute(Kernel.COPY, 0, 2 * size)
        comm = self.tables.comm("all_reduce", "tp", self.strategy.grad_dtype)
        self.out.collective(layer, comm, size, Stream.COMPUTE, IN_LINE)
        self.out.compute(Kernel.COPY, 0, 2 * size)
        self.out.free(layer, slot, size)

    # ---- pieces -------------------------------------------------------------------------------------------------
    def _gather(self, b: int, buffer: BufferSizes, bucket: int, stream: Stream = Stream.ALL_GATHER) -> None:
        """Beside kernels, or in line with them."""
        if (b, bucket) in self.gathered:
            return
        self.gathered.add((b, bucket))
        comm = self.tables.comm("all_gather", buffer.axis, buffer.dtype)
        self.out.collective(bucket, comm, buffer.gathers[bucket], stream,
                            IN_LINE if stream is Stream.COMPUTE else GATHER_HANDLE + b)

    def _reduce(self, b: int, buffer: BufferSizes, bucket: int) -> None:
        name = "reduce_scatter" if self.strategy.scatter else "all_reduce"
        comm = self.tables.comm(name, buffer.axis, self.strategy.grad_dtype)
        self.out.collective(bucket, comm, buffer.reductions[bucket], Stream.REDUCE, REDUCE_HANDLE + b)
        if buffer.replicate_axis:
            comm = self.tables.comm("all_reduce", buffer.replicate_axis, self.strategy.grad_dtype)
            self.out.collective(bucket, comm, buffer.replicas[bucket], Stream.REDUCE, REDUCE_HANDLE + b)

    def _reduce_chunk(self, chunk: int) -> None:
        for b, buffer in enumerate(self.buffers):
            for bucket in range(len(buffer.gathers)) if buffer.chunk == chunk else ():
                self._reduce(b, buffer, bucket)


def _post_persistent(plan: Plan, tables: Tables, builder: Builder) -> None:
    """Writes parameters, main gradients, masters and moments of the rank, padding included."""
    grad_bytes, layer = dtype_bytes(plan.framework.strategy_as(MegatronDdpStrategy).grad_dtype), plan.layers[0]
    post_rest(plan, tables, builder, partial(_postings, grad_bytes, bool(plan.framework.dealt)))
    builder.alloc(layer, tables.slot("param_buffer.padding", "sharded_param"), padding_bytes(plan))
    builder.alloc(layer, tables.slot("grad_buffer.padding", "main_grad"), padding_elements(plan) * grad_bytes)
    if plan.framework.dealt:
        muon, adam = plan.dealt
        builder.alloc(layer, tables.slot("layer_wise.master_param", "main_param"), 4 * (muon + adam))
        builder.alloc(layer, tables.slot("layer_wise.states", "opt_state"), 4 * muon + 8 * adam)


@lru_cache(maxsize=1024)
def _postings(grad_bytes: int, is_dealt: bool, kind: PlacedKind) -> tuple[Posting, ...]:  # noqa: FBT001
    return tuple(posting for placed in kind for posting in _of_tensor(grad_bytes, is_dealt, placed))


def _of_tensor(grad_bytes: int, is_dealt: bool, placed: Placed) -> list[Posting]:  # noqa: FBT001
    name, policy = placed.spec.name, placed.policy
    if placed.spec.is_buffer:
        return [(name, "buffer", placed.local * dtype_bytes(policy.at_rest.dtype))]
    grads = placed.local * grad_bytes if placed.trainable else 0
    states = [(f"{name}.{state}", "main_param" if state == "master_param" else "opt_state", size)
              for state, size in (() if is_dealt else placed.states)]
    return [(name, policy.at_rest_category, placed.rest_bytes), (f"{name}.main_grad", "main_grad", grads), *states]


MEGATRON_HOOKS = SizedHooks(megatron_sizes, _post_persistent, MegatronHooks)
"""Factory of `MegatronHooks`."""
