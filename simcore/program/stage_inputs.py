"""What a pipeline stage holds of microbatches that are over: what it received, besides its layers' own references.

megatron-core 0.16.1 `pipeline_parallel/schedules.py`, `transformer/transformer_block.py`. A block's input is an
attribute of it (set_input_tensor) until its next forward pass; where that is a leaf its `.grad` lives as long.
"""

from __future__ import annotations

from simcore.pipeline.schedule import Action, Pass
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.stage_borders import Edges

__all__ = ["StageInput", "StageInputs"]


class StageInput:
    """What a stage with one chunk holds.

    Megatron's schedule (core 0.16.1 `pipeline_parallel/schedules.py`) keeps the last output until forward returns the
    next: its graph, though used up, ends in the input that was received. It keeps that input's gradient, which is sent
    back, until the next is there. Between steps the last input, with its `.grad`, is the block's attribute
    (`transformer/transformer_block.py`, input_tensor). Others drop a gradient when it is sent.
    """

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...]) -> None:
        self.out, (self.edges,), self.first = builder, borders, plan.layers[0]
        self.keeps = plan.framework.keeps_received and plan.stage > 0
        self.deferred = plan.framework.deferred_heads if plan.stage == plan.mesh.pp - 1 else 0
        self.waiting = 0
        self.has_input = self.has_grad = False
        self.newest = -1

    def begin_step(self, written: int) -> None:
        """Nothing changes before the first pass."""

    def take(self, key: Pass) -> None:
        """What is received is new."""

    def end_backward(self, action: Action) -> None:
        """Layers have let go of the output's gradient."""

    def rest(self) -> None:
        """Those of the step before."""
        if self.keeps:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.out.tile(self.edges.keep_grad, self.first)
            self.has_input = self.has_grad = True

    def begin_forward(self, _chunk: int) -> None:
        """An input is there: the first of a step replaces the last step's, with its gradient."""
        if self.newest < 0 and self.has_grad:
            self.out.tile(self.edges.drop_grad, self.first)
            self.has_grad = False
            self._drop_input()

    def end_forward(self, action: Action) -> None:
        """The next output is there. Where a head's input waits, so does the graph that it ends."""
        if self.has_input and 0 <= self.newest < self.deferred:
            self.has_input, self.waiting = False, self.waiting + 1
        self._drop_input()
        self.newest = action.microbatch

    def _drop_input(self) -> None:
        if self.has_input:
            self.out.tile(self.edges.drop_hidden, self.first - 1)
        self.has_input = False

    def grad(self, action: Action) -> None:
        """The next gradient is there and sent; layers have let go of the input."""
        waits = 0 < action.microbatch <= self.deferred
        if (self.has_grad and not waits) or not self.keeps:
            self.out.tile(self.edges.drop_grad, self.first)
        self.has_grad = self.keeps
        if self.keeps and action.microbatch == self.newest:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.has_input = True

    def finish(self) -> None:
        """Heads get their weight gradients, and let go."""
        for _ in range(self.waiting):
            self.out.tile(self.edges.drop_hidden, self.first - 1)
            self.out.tile(self.edges.drop_grad, self.first)


class StageInputs:
    """What a stage with virtual stages holds: for each chunk the newest input and, after its backward, the gradient.

    Lists of the interleaved schedule let go of both when they are sent. Others drop a gradient when it is sent.
    """

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...]) -> None:
        self.out = builder
        self.at = [(chunk[0], edges) for chunk, edges in zip(plan.chunks, borders, strict=True)]
        self.receives = [plan.stage > 0 or number > 0 for number in range(len(plan.chunks))]
        self.keeps = plan.framework.keeps_received
        self.newest: dict[int, int] = {}
        self.held: set[int] = set()

    def begin_step(self, written: int) -> None:
        """Nothing changes before the first pass."""

    def take(self, key: Pass) -> None:
        """What is received is new."""

    def end_backward(self, action: Action) -> None:
        """Layers have let go of the output's gradient."""

    def rest(self) -> None:
        """Those of the step before."""
        for chunk, receives in enumerate(self.receives):
            if self.keeps and receives:
                self._hold(chunk, with_grad=True)

    def _hold(self, chunk: int, *, with_grad: bool) -> None:
        first, edges = self.at[chunk]
        self.out.tile(edges.keep_hidden, first - 1)
        if with_grad:
            self.out.tile(edges.keep_grad, first)
        self.held.add(chunk)

    def begin_forward(self, chunk: int) -> None:
        """The next input takes the attribute's place."""
        if chunk in self.held:
            first, edges = self.at[chunk]
            self.out.tile(edges.drop_grad, first)
            self.out.tile(edges.drop_hidden, first - 1)
            self.held.remove(chunk)

    def end_forward(self, action: Action) -> None:
        """Layers hold the input until backward is over."""
        self.newest[action.chunk] = action.microbatch

    def grad(self, action: Action) -> None:
        """It was sent; layers have let go of the input."""
        if self.keeps and self.newest[action.chunk] == action.microbatch:
            self._hold(action.chunk, with_grad=False)
        else:
            first, edges = self.at[action.chunk]
            self.out.tile(edges.drop_grad, first)

    def finish(self) -> None:
        """Heads that waited let go of their own; nothing of what was received waits here."""
