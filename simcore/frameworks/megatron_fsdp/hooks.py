"""Memory hooks of Megatron-FSDP: buckets of units, gathered ahead of their use, reduced into a queue.

[Note: Megatron-FSDP hand-over]
Megatron-Core 0.16.1 `distributed/fsdp/src/megatron_fsdp/`, `megatron_fsdp.py` (hooks) and `param_and_grad_buffer.py`
(AllGatherPipeline, GradReducePipeline). Before a unit runs, its buckets are gathered, and with them the buckets that
follow (in backward: come before) by number, as long as those make fewer than `ahead` elements; empty ones are really
gathered. After the unit its buckets are freed. Parameters of no unit (embedding, last norm, head) are gathered module
by module in forward and stay until the step's gradients exist: so the last norm, whose bucket comes first, gathers
the first units again. At the start of backward units that are still gathered may go as soon as anything is gathered.
A gradient bucket is allocated, unsharded, at its unit's first gradient; at the last one, queued buckets are freed
from the front while they make more than `waiting` elements, and the bucket is reduce-scattered into a new shard, which
is added to the rank's shard and freed. All that still waits is freed at the end of the microbatch's backward. After the
step the first bucket is gathered, with what follows it, for the next one. A unit that is recomputed is gathered without
prefetch for its replay.

On the main branch of 2026-08-22 buckets of no unit stay gathered from step to step (and are gathered again in place),
prefetch nothing in forward, and a reduced shard is a view of its bucket. With `fsdp_double_buffer` the largest set of
units with equal buckets shares two persistent buffers of each (FixedPoolAllocator): no more than two units are
gathered, or wait. On main the first bucket, where it is of no unit, is then gathered alone after the step. Without
`fsdp_all_gather_in_start_param_sync` nothing is gathered there, so that forward begins with it.

With `outer_dp_sharding_strategy: optim` a bucket is padded to all ranks, and a rank keeps the states of one
part of its shard; shards of parameters and gradients are as without it (hfsdp_helper_wbuf, hfsdp_helper_gbuf). In the
last microbatch a reduced shard is reduced further, by a reduce-scatter between copies; every gather until the first
microbatch is over is preceded by one that fills the shard from its parts (microbatch_count 0).

Main reduces in a format of its own (`megatron_fsdp_grad_comm_dtype`; `training.precision.grad_reduce`): whole gradients
are in it, and between copies a copy of the reduced shard, which is kept until its bucket is freed (hsdp_comm_gbuf).

With adapters (main; core 0.16.1 refuses frozen parameters) the first adapted unit, and those before it, have no
gradient at their input. The post-backward hook, which hangs there, is not set (`_register_post_backward_hook`: no input
requires a gradient): such a unit is not freed after its backward and stays PRE_BACKWARD for good, so that in forward it
prefetches nothing and is freed by the next gather alone. Those before it have no backward at all. Where all layers are
recomputed Bridge makes the first input require a gradient (`peft/recompute.py`), and every unit is as without adapters.

Weights in fp8 may have columns besides their rows, in separate buckets that backward gathers instead.

`simcore/frameworks/megatron_fsdp/all_gather.py` has the gathers, `simcore/frameworks/megatron_fsdp/reduce_scatter.py`
the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.common.optimizer_memory import Posting, post_rest
from simcore.frameworks.megatron_fsdp.all_gather import ParameterPrefetch
from simcore.frameworks.megatron_fsdp.buckets import Bucket, bucket_padding, outer_parts, rank_buckets
from simcore.frameworks.megatron_fsdp.reduce_scatter import ReduceScatterQueue
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.pipeline.schedule import Action
from simcore.placement.plan import Placed, PlacedKind, Plan
from simcore.program.builder import Builder
from simcore.program.hooks import UnrepeatedHooks
from simcore.program.outline import Tables
from simcore.recording.tape import Kernel, Param
from simcore.units import dtype_bytes

__all__ = ["MegatronFsdpHooks"]


class MegatronFsdpHooks(UnrepeatedHooks):
    """Writer of the memory events of one rank's step under Megatron-FSDP: buckets gathered and reduced.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        self.plan, self.tables, self.out = plan, tables, builder
        self.strategy = plan.framework.strategy_as(MegatronFsdpStrategy)
        self.buckets = buckets = rank_buckets(plan)
        self.gathers = ParameterPrefetch(buckets, self.strategy, tables, builder)
        self.reductions = ReduceScatterQueue(buckets, self.strategy, tables, builder)
        self.uses = _uses(plan, buckets)
        self.units = {layer for unit in plan.framework.units for layer, _ in unit.members} & set(plan.layers)
        self.replayed = self.units - set(plan.framework.kept_whole) if plan.framework.checkpoint == "full" else set()
        self.unhooked = self.units - _with_gradient_below(plan)
        self.idle = {layer for layer in self.unhooked if not _trains(plan, layer)}
        self.is_last = self.is_fresh = False
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps.

        Shards of parameters, masters, moments and main gradients; and buckets gathered at the last step's end.
        """
        post_rest(self.plan, self.tables, self.out, self._postings)
        params, trained, masters = bucket_padding(self.plan)
        layer = self.plan.layers[0]
        master = 4 if self._has_master() else 0
        self.out.alloc(layer, self.tables.slot("param_buffer.padding", "sharded_param"), params)
        self.out.alloc(layer, self.tables.slot("main_param_buffer.padding", "main_param"), masters * master)
        self.out.alloc(layer, self.tables.slot("grad_buffer.padding", "main_grad"),
                       trained * dtype_bytes(self.strategy.grad_dtype))
        columns = sum(self.buckets[b].shard for b in self.gathers.columns)
        self.out.alloc(layer, self.tables.slot("transpose_weight_buffer", "buffer"), columns)
        self.gathers.post_persistent()
        self.reductions.post_persistent()
        if self.strategy.gathers_first and not self.strategy.frees_at_end:
            self.gathers.gather([0], +1)

    def _has_master(self) -> bool:
        return any(name == "master_param" for rule in self.plan.framework.rules for name,
                   _ in rule.policy.optimizer_states)

    def _postings(self, kind: PlacedKind) -> list[Posting]:
        return [posting for placed in kind for posting in self._of_tensor(placed)]

    def _of_tensor(self, placed: Placed) -> list[Posting]:
        name, policy = placed.spec.name, placed.policy
        if placed.spec.is_buffer:
            return [(name, "buffer", placed.local * dtype_bytes(policy.at_rest.dtype))]
        grads = placed.local * dtype_bytes(self.strategy.grad_dtype) if placed.trainable else 0
        states = [(f"{name}.{state}", "main_param" if state == "master_param" else "opt_state", size)
                  for state, size in placed.states]
        return [(name, policy.at_rest_category, placed.rest_bytes), (f"{name}.main_grad", "main_grad", grads), *states]

    def begin_microbatch(self, action: Action) -> None:
        """Sets whether the pass `action` is of the step's last microbatch, and a backward; nothing is simulated."""
        self.is_last, self.is_fresh = action.is_last, not action.forward
        self.gathers.is_stale = action.microbatch == 0

    def forward_begin(self, layer: int) -> None:
        """Simulates the gathering of the buckets of layer number `layer` and of those ahead, and the wait for its own.

        Layers are numbered over the whole model, embedding 0.
        """
        is_ahead = layer not in self.unhooked and (layer in self.units or not self.strategy.keeps_outside)
        for wanted in self.uses[layer]:
            self.gathers.gather(wanted, +1 if is_ahead else 0)
            self.gathers.wait(wanted)

    def forward_end(self, layer: int) -> None:
        """Simulates the release of the buckets of the unit of layer number `layer`; nothing for a layer of no unit.

        Layers are numbered over the whole model, embedding 0.
        """
        if layer in self.unhooked:
            self.gathers.let_go(self.uses[layer][0])
        elif layer in self.units:
            self.gathers.release(self.uses[layer][0])

    def backward_begin(self, layer: int) -> None:
        """Simulates gathers of the buckets of a layer's unit, for its recomputation or for backward, and their wait.

        `layer`: its number in the whole model, embedding 0. Nothing is gathered for a layer of no unit.
        """
        if self.is_fresh:
            self.gathers.let_go([b for at in self.units for b in self.uses[at][0]])
            self.is_fresh = False
        if layer in self.units and layer not in self.idle:
            wanted = self.uses[layer][0]
            replays = layer in self.replayed
            self.gathers.gather(wanted, 0 if replays else -1, columns=not replays)
            self.gathers.wait(wanted)
            if replays:  # its forward hooks run again: no prefetch, and freed only by the next gather
                self.gathers.let_go(wanted)

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Simulates the copy of the layer's new gradients into buckets, and the reduction of complete buckets.

        `layer`: its number in the whole model, embedding 0. `grads`: (parameter, slot: index of its owner in
        `Tables.slots`, bytes) each, which are freed. The unit's parameters are freed too.
        """
        for _, slot, num_bytes in grads:
            self.out.free(layer, slot, num_bytes)
        self._open(layer)
        self.reductions.finish(layer, is_last=self.is_last)
        if layer in self.units and layer not in self.unhooked:
            self.gathers.release(self.uses[layer][0])

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates the allocation of the layer's gradient buckets, before its first gradient.

        `layer`: its number in the whole model, embedding 0. After a recomputation its parameters are gathered for
        backward first. `mark`, `grads` and `replay` are not used: experts are in the buckets of their layer's unit.
        """
        if layer in self.replayed and layer not in self.idle:
            self.gathers.gather(self.uses[layer][0], -1, columns=True)
        self._open(layer)

    def _open(self, layer: int) -> None:
        for wanted in self.uses[layer]:
            self.reductions.open(wanted)

    def end_pass(self, action: Action) -> None:
        """Simulates, after a backward, the release of all queued gradient buckets.

        After the step's last backward gradients are handed to the optimizer and all parameter buckets freed.
        """
        if action.forward:
            return
        self.reductions.drain()
        if action.is_last:
            if self.plan.framework.optimizer.grad_copy:
                size = 4 * self._updated()
                self.out.alloc(self.plan.layers[0], self.tables.slot("fp32_grad_shard", "optim_temp"), size)
            self.gathers.reset()
            self.gathers.is_stale = True

    def _updated(self) -> int:
        return bucket_elements(self.plan) // outer_parts(self.plan.mesh, self.strategy)

    def optimize(self) -> None:
        """Simulates this rank's optimizer step, and the first gathers for the next one."""
        begin, end, step_end = self.marks
        elements = self._updated()
        state_bytes = sum(count * sum(p.state_bytes for p in self.plan.kinds[kind]) for kind,
                          count in self.plan.kind_counts)
        self.out.mark(begin)
        moved = 2 * state_bytes + (dtype_bytes(self.strategy.grad_dtype) + 2) * elements
        self.out.compute(Kernel.OPTIMIZER, 12 * elements, moved)
        self.out.mark(end)
        if self.strategy.gathers_first:
            self.gathers.gather([0], +1)
        if self.strategy.frees_at_end:
            self.gathers.reset()
        self.out.mark(step_end)


def bucket_elements(plan: Plan) -> int:
    """Returns the trained elements of all of this rank's shards: the mean over ranks simulated as one, no padding."""
    return sum(count * sum(p.local for p in plan.kinds[kind] if p.trainable) for kind, count in plan.kind_counts)


def _trains(plan: Plan, layer: int) -> bool:
    return plan.kinds[plan.graph.layers[layer].kind].is_trained


def _with_gradient_below(plan: Plan) -> set[int]:
    """Layers whose input carries a gradient; what another stage sends always requires one."""
    if plan.stage > 0:
        return set(plan.layers)
    first = next((layer for layer in range(len(plan.graph.layers)) if _trains(plan, layer)), len(plan.graph.layers))
    first = 0 if plan.framework.options.embeddings_require_grad else first
    return {layer for layer in plan.layers if layer > first}


def _uses(plan: Plan, buckets: Sequence[Bucket]) -> dict[int, list[list[int]]]:
    """Groups of buckets that each layer requests: one group for a unit, separate ones for other parameters."""
    uses: dict[int, list[list[int]]] = {layer: [] for layer in plan.layers}
    for b, bucket in enumerate(buckets):
        for layer in dict.fromkeys(layer for layer, _ in bucket.members):
            if bucket.unit >= 0 and uses[layer]:
                uses[layer][0].append(b)
            else:
                uses[layer].append([b])
    return uses
