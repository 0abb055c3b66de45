"""The flow of ZeRO-3: [Note: ZeRO-3] in `simcore.zero`.

Upstream's hooks are those of modules; here all modules of a layer are fetched when it begins and released when it ends,
which holds up to a layer more than upstream in forward, and in backward what upstream holds when a layer's replay is
over. Gradients die where autograd made them: those of a bucket lie in it, a larger one is counted until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcore.flows.partition import GATHER_HANDLE, REDUCE_HANDLE, trained_of
from simcore.flows.rest import post_rest, rest_postings, step_temporaries
from simcore.outline import Builder, Tables
from simcore.plan import Placed, Plan
from simcore.schedule import Action
from simcore.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes
from simcore.zero import PERSISTENT, Zero

__all__ = ["FetchedFlow"]

Key = tuple[int, int]
"""(layer, number) of a parameter."""


class FetchedFlow:
    """Implements `lower.Flow` over a recorded order of uses, which is the same in every microbatch."""

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        assert isinstance(plan.framework.flow, Zero)
        self.plan, self.tables, self.out, self.flow = plan, tables, builder, plan.framework.flow
        self.size, self.ranks = dtype_bytes(plan.framework.compute_dtype), plan.mesh.axis(self.flow.axis).size
        self.first = plan.layers[0]
        self.uses = list(self._uses())
        self.trace = [(at, key) for at, layer in enumerate(self.uses) for key in self._keys(layer)]
        self.there: dict[Key, int] = {}
        self.coming: list[list[Key]] = []
        self.promised: dict[Key, int] = {}
        self.at = self.cursor = self.filled = self.num_in_bucket = 0
        self.has_remainder = False
        self.gather, self.reduce = (tables.comm(name, self.flow.axis, plan.framework.compute_dtype)
                                    for name in ("all_gather", "reduce_scatter"))
        self.slots = [tables.slot(name, category) for name, category in (
            ("fetched", "unsharded_param"), ("prefetched", "all_gather_output"),
            ("flat_bucket", "reduce_scatter_input"), ("persistent", "unsharded_param"))]
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]

    # ---- what is known before the step --------------------------------------------------------------------------
    def _uses(self) -> Iterator[int]:
        """Layers in the order in which their modules run: forward, then replay and backward."""
        graph, replays = self.plan.graph, self.plan.framework.checkpoint != "none"
        yield from self.plan.layers
        for layer in reversed(self.plan.layers):
            if replays and graph.kinds[graph.layers[layer].kind].block is None:
                yield layer
            yield layer

    def _keys(self, layer: int) -> list[Key]:
        """Parameters that are fetched for a layer; a tied head uses the embedding's."""
        found = [(self.first if p.spec.tied else layer, 0 if p.spec.tied else number)
                 for number, p in enumerate(self.plan.of_layer(layer)) if not p.spec.is_buffer]
        return [key for key in found if self._placed(key).life.name != PERSISTENT]

    def _placed(self, key: Key) -> Placed:
        return self.plan.of_layer(key[0])[key[1]]

    def _whole(self, key: Key) -> int:
        """Bytes of a gathered parameter, padding included."""
        return self._placed(key).padded * self.ranks * self.size

    # ---- lower.Flow ---------------------------------------------------------------------------------------------
    def rest(self) -> None:
        """Parts of parameters, masters, moments and gradients; the bucket; small parameters whole."""
        post_rest(self.plan, self.tables, self.out, rest_postings)
        for name, category, num_bytes in (
                ("grad_partitions", "main_grad", self.size * sum(self._parts())),
                ("ipg_bucket", "reduce_scatter_input", self.size * self.flow.bucket),
                ("persistent", "unsharded_param", self._persistent())):
            self.out.alloc(self.first, self.tables.slot(name, category), num_bytes)

    def _parts(self) -> list[int]:
        """Elements on this rank of every trained parameter, in order."""
        return [self.plan.of_layer(layer)[number].padded for layer in self.plan.layers
                for number, _ in trained_of(self.plan, layer)]

    def _persistent(self) -> int:
        return self.size * sum(count * sum(p.used for p in self.plan.kinds[kind] if p.life.name == PERSISTENT
                                           and p.spec.is_owned) for kind, count in self.plan.kind_counts)

    def begin_microbatch(self, action: Action) -> None:
        """The record of what ran is read from its beginning."""
        if action.forward:
            self.at = self.cursor = 0
            self.promised.clear()

    def forward_begin(self, layer: int) -> None:
        self._fetch(layer)

    def forward_end(self, layer: int) -> None:
        self._release(layer)

    def backward_begin(self, layer: int) -> None:
        """For its replay, then for its backward."""
        self._fetch(layer)
        if self.uses[self.at - 1:self.at + 1] == [layer, layer]:
            self._fetch(layer)

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Gradients are in the bucket, parameters go."""
        for _, slot, num_bytes in grads:
            self.out.free(layer, slot, num_bytes)
        for number, numel in reversed(trained_of(self.plan, layer)):
            self._put(numel, has_remainder=self.plan.of_layer(layer)[number].padded * self.ranks != numel)
        self._release(layer)

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Never: experts are not a unit of their own here."""

    def end_pass(self, action: Action) -> None:
        if not action.forward:
            self._reduce()
            self.out.wait(self.first, REDUCE_HANDLE)

    def optimize(self) -> None:
        """Small parameters go, parts are updated in groups, small parameters are gathered again."""
        begin, end, step_end = self.marks
        small = self._persistent()
        self.out.mark(begin)
        self.out.free(self.first, self.slots[3], small)
        parts = self._parts()
        largest = max(parts, default=0)
        for group in self._groups(parts):
            step_temporaries(self.plan, self.tables, self.out, (largest, group))
            largest = 0
        self.out.alloc(self.first, self.slots[3], small)
        self.out.collective(self.first, self.gather, small, Stream.ALL_GATHER, GATHER_HANDLE)
        self.out.wait(self.first, GATHER_HANDLE)
        self.out.mark(end)
        self.out.mark(step_end)

    def _groups(self, parts: Sequence[int]) -> Iterator[int]:
        """A group is closed when it has reached its size (`_create_fp16_sub_groups`)."""
        held = 0
        for part in parts:
            held += part
            if held >= self.flow.sub_group:
                yield held
                held = 0
        if held:
            yield held

    # ---- parameters ---------------------------------------------------------------------------------------------
    def _fetch(self, layer: int) -> None:
        """What the layer needs now, then what comes next (`fetch_sub_module`)."""
        keys = self._keys(layer)
        for key in keys:
            for group in [group for group in self.coming if key in group]:
                self._arrive(group)
            if key not in self.there:
                self.there[key] = 0
                self.out.alloc(key[0], self.slots[0], self._whole(key))
                self.out.collective(key[0], self.gather, self._whole(key), Stream.ALL_GATHER, GATHER_HANDLE)
        if keys:
            self.out.wait(layer, GATHER_HANDLE)
        while self.cursor < len(self.trace) and self.trace[self.cursor][0] <= self.at:
            self.cursor += 1
        self._fetch_ahead()
        self.at += 1

    def _fetch_ahead(self) -> None:
        """Whole parameters, until as many elements are under way as are allowed."""
        flying = {key for group in self.coming for key in group}
        room = min(self.flow.live - sum(self._placed(key).used for key in (*self.there, *flying)), self.flow.ahead)
        group: list[Key] = []
        while self.cursor < len(self.trace) and sum(self._placed(key).used for key in group) < room:
            at, key = self.trace[self.cursor]
            self.cursor += 1
            self.promised[key] = max(at, self.promised.get(key, 0))
            if key not in self.there and key not in flying and key not in group:
                group.append(key)
        if group:
            self.coming.append(group)
            num_bytes = sum(map(self._whole, group))
            self.out.alloc(group[0][0], self.slots[1], num_bytes)
            self.out.collective(group[0][0], self.gather, num_bytes, Stream.ALL_GATHER, GATHER_HANDLE)

    def _arrive(self, group: list[Key]) -> None:
        """One parameter stays where it was gathered, several are copied out of the flat buffer."""
        self.coming.remove(group)
        self.out.wait(group[0][0], GATHER_HANDLE)
        is_alone = len(group) == 1
        for key in group:
            self.there[key] = int(is_alone)
            if not is_alone:
                self.out.alloc(key[0], self.slots[0], self._whole(key))
                self.out.compute(Kernel.COPY, 0, 2 * self._whole(key))
        if not is_alone:
            self.out.free(group[0][0], self.slots[1], sum(map(self._whole, group)))

    def _release(self, layer: int) -> None:
        """What is not used again soon (`__params_to_release`); `at`: the next use."""
        soon, traversed = set(), 0
        for other in self.uses[self.at:]:
            if traversed >= self.flow.reuse:
                break
            soon |= set(self._keys(other))
            traversed += sum(self._placed(key).used for key in self._keys(other))
        for key in self._keys(layer):
            if key in self.there and key not in soon and self.promised.get(key, 0) <= self.at:
                self.out.free(key[0], self.slots[self.there.pop(key)], self._whole(key))

    # ---- gradients ----------------------------------------------------------------------------------------------
    def _put(self, numel: int, *, has_remainder: bool) -> None:
        """Into the bucket, which is reduced first if there is no room."""
        if self.filled and self.filled + numel > self.flow.bucket:
            self._reduce()
        self.out.compute(Kernel.COPY, 0, 2 * numel * self.size)
        self.filled += numel
        self.num_in_bucket += 1
        self.has_remainder |= has_remainder

    def _reduce(self) -> None:
        """`reduce_scatter_coalesced`: laid out by ranks in a copy, unless that changes nothing."""
        if not self.filled:
            return
        num_bytes = self.filled * self.size
        copied = num_bytes * (self.num_in_bucket > 1 or self.has_remainder)
        self.out.alloc(self.first, self.slots[2], copied)
        self.out.collective(self.first, self.reduce, num_bytes, Stream.REDUCE, REDUCE_HANDLE)
        self.out.free(self.first, self.slots[2], copied)
        self.filled, self.num_in_bucket, self.has_remainder = 0, 0, False
