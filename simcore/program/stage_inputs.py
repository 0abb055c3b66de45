"""Received tensors of finished microbatches that a pipeline stage of Megatron keeps, besides its layers' references.

megatron-core 0.16.1 `pipeline_parallel/schedules.py`, `transformer/transformer_block.py`. A block's input is an
attribute of it (set_input_tensor) until its next forward pass; if it is a leaf, its `.grad` lives as long.
"""

from __future__ import annotations

from simcore.pipeline.schedule import Action, Pass
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.stage_borders import Edges

__all__ = ["StageInput", "StageInputs"]


class StageInput:
    """Received tensors of a stage with one chunk.

    Megatron's schedule (core 0.16.1 `pipeline_parallel/schedules.py`) keeps the last output until forward returns the
    next one; the graph of that output refers to the received input. It keeps that input's gradient, which is sent
    back, until the next one exists. Between steps the last input, with its `.grad`, is the block's attribute
    (`transformer/transformer_block.py`, input_tensor). Other frameworks drop a gradient when it is sent.
    """

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...]) -> None:
        self.out, (self.edges,), self.first = builder, borders, plan.layers[0]
        self.keeps = plan.framework.keeps_received and plan.stage > 0
        self.deferred = plan.framework.deferred_heads if plan.stage == plan.mesh.pp - 1 else 0
        self.waiting = 0
        self.has_input = self.has_grad = False
        self.newest = -1

    def begin_step(self, written: int) -> None:
        """Posts nothing: nothing changes before the first pass."""

    def take(self, key: Pass) -> None:
        """Posts nothing: a received tensor is new."""

    def end_backward(self, action: Action) -> None:
        """Posts nothing: layers have released the output's gradient."""

    def post_persistent(self) -> None:
        """Posts the input and its gradient that the previous step left."""
        if self.keeps:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.out.tile(self.edges.keep_grad, self.first)
            self.has_input = self.has_grad = True

    def begin_forward(self, _chunk: int) -> None:
        """Replaces the last step's input, with its gradient, by the first input of this step."""
        if self.newest < 0 and self.has_grad:
            self.out.tile(self.edges.drop_grad, self.first)
            self.has_grad = False
            self._drop_input()

    def end_forward(self, action: Action) -> None:
        """Releases the previous input when the next output exists; an input that waits for its head stays."""
        if self.has_input and 0 <= self.newest < self.deferred:
            self.has_input, self.waiting = False, self.waiting + 1
        self._drop_input()
        self.newest = action.microbatch

    def _drop_input(self) -> None:
        if self.has_input:
            self.out.tile(self.edges.drop_hidden, self.first - 1)
        self.has_input = False

    def grad(self, action: Action) -> None:
        """Releases the previous gradient when the next one exists and is sent; layers have released the input."""
        waits = 0 < action.microbatch <= self.deferred
        if (self.has_grad and not waits) or not self.keeps:
            self.out.tile(self.edges.drop_grad, self.first)
        self.has_grad = self.keeps
        if self.keeps and action.microbatch == self.newest:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.has_input = True

    def finish(self) -> None:
        """Computes the deferred weight gradients of heads, and releases their inputs."""
        for _ in range(self.waiting):
            self.out.tile(self.edges.drop_hidden, self.first - 1)
            self.out.tile(self.edges.drop_grad, self.first)


class StageInputs:
    """Received tensors of a stage with virtual stages: each chunk's newest input and, after backward, its gradient.

    The lists of the interleaved schedule drop both when they are sent. Other frameworks drop a gradient when it is
    sent.
    """

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...]) -> None:
        self.out = builder
        self.at = [(chunk[0], edges) for chunk, edges in zip(plan.chunks, borders, strict=True)]
        self.receives = [plan.stage > 0 or number > 0 for number in range(len(plan.chunks))]
        self.keeps = plan.framework.keeps_received
        self.newest: dict[int, int] = {}
        self.held: set[int] = set()

    def begin_step(self, written: int) -> None:
        """Posts nothing: nothing changes before the first pass."""

    def take(self, key: Pass) -> None:
        """Posts nothing: a received tensor is new."""

    def end_backward(self, action: Action) -> None:
        """Posts nothing: layers have released the output's gradient."""

    def post_persistent(self) -> None:
        """Posts the inputs and gradients that the previous step left."""
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
        """Replaces the chunk's input, with its gradient, by the next input."""
        if chunk in self.held:
            first, edges = self.at[chunk]
            self.out.tile(edges.drop_grad, first)
            self.out.tile(edges.drop_hidden, first - 1)
            self.held.remove(chunk)

    def end_forward(self, action: Action) -> None:
        """Records the newest microbatch of the chunk; layers hold its input until backward is over."""
        self.newest[action.chunk] = action.microbatch

    def grad(self, action: Action) -> None:
        """Posts the gradient, which was sent; layers have released the input."""
        if self.keeps and self.newest[action.chunk] == action.microbatch:
            self._hold(action.chunk, with_grad=False)
        else:
            first, edges = self.at[action.chunk]
            self.out.tile(edges.drop_grad, first)

    def finish(self) -> None:
        """Posts nothing: deferred heads release their own tensors."""
