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
    """Tracker of received tensors that a Megatron pipeline rank with one chunk keeps after their use.

    Its methods append the allocations and frees to the program; a chunk is the rank's part of the model. Megatron's
    schedule (core 0.16.1 `pipeline_parallel/schedules.py`) keeps the last output until forward returns the next one;
    the graph of that output refers to the received input. It keeps that input's gradient, which is sent back, until the
    next one exists. Between steps the last input, with its `.grad`, is the block's attribute
    (`transformer/transformer_block.py`, input_tensor). Other frameworks drop a gradient when it is sent.
    """

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...]) -> None:
        self.out, (self.edges,), self.first = builder, borders, plan.layers[0]
        self.keeps = plan.framework.keeps_received and plan.stage > 0
        self.deferred = plan.framework.deferred_heads if plan.stage == plan.mesh.pp - 1 else 0
        self.waiting = 0
        self.has_input = self.has_grad = False
        self.newest = -1

    def begin_run(self, written: int) -> None:
        """Does nothing: kept tensors stay until the first pass. `written`: number of simulated microbatches."""

    def take(self, key: Pass) -> None:
        """Does nothing: a received tensor is newly allocated. `key`: the pass that reads it."""

    def end_backward(self, action: Action) -> None:
        """Does nothing: the layers have freed the gradient of the output."""

    def post_persistent(self) -> None:
        """Appends allocations of the input and its gradient that the previous step left."""
        if self.keeps:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.out.tile(self.edges.keep_grad, self.first)
            self.has_input = self.has_grad = True

    def begin_forward(self, _chunk: int) -> None:
        """Frees the previous step's input and its gradient before the first forward pass of this step."""
        if self.newest < 0 and self.has_grad:
            self.out.tile(self.edges.drop_grad, self.first)
            self.has_grad = False
            self._drop_input()

    def end_forward(self, action: Action) -> None:
        """Frees the previous microbatch's input after forward pass `action`, as its output is now replaced.

        An input that a deferred weight gradient of the head needs stays until the step ends.
        """
        if self.has_input and 0 <= self.newest < self.deferred:
            self.has_input, self.waiting = False, self.waiting + 1
        self._drop_input()
        self.newest = action.microbatch

    def _drop_input(self) -> None:
        if self.has_input:
            self.out.tile(self.edges.drop_hidden, self.first - 1)
        self.has_input = False

    def grad(self, action: Action) -> None:
        """Frees the previous input's gradient after backward pass `action`, as the next one is sent.

        One that a deferred weight gradient of the head needs stays until the step ends. A framework that keeps no
        received tensors frees this one's gradient instead. The input of the newest microbatch is kept; layers have
        freed the others.
        """
        waits = 0 < action.microbatch <= self.deferred
        if (self.has_grad and not waits) or not self.keeps:
            self.out.tile(self.edges.drop_grad, self.first)
        self.has_grad = self.keeps
        if self.keeps and action.microbatch == self.newest:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.has_input = True

    def end_run(self) -> None:
        """Frees inputs and gradients that waited for deferred weight gradients of the head at the run's end."""
        for _ in range(self.waiting):
            self.out.tile(self.edges.drop_hidden, self.first - 1)
            self.out.tile(self.edges.drop_grad, self.first)


class StageInputs:
    """Tracker of received tensors that a Megatron pipeline rank with several chunks keeps after their use.

    Its methods append the allocations and frees to the program; chunks (virtual stages) are parts of the model. Each
    chunk's newest input, and after that microbatch's backward its gradient, stay until the chunk's next forward begins,
    often in the next step; gradients of older inputs are freed when they are sent. Other frameworks free every gradient
    when it is sent.
    """

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...]) -> None:
        self.out = builder
        self.at = [(chunk[0], edges) for chunk, edges in zip(plan.chunks, borders, strict=True)]
        self.receives = [plan.stage > 0 or number > 0 for number in range(len(plan.chunks))]
        self.keeps = plan.framework.keeps_received
        self.newest: dict[int, int] = {}
        self.held: set[int] = set()

    def begin_run(self, written: int) -> None:
        """Does nothing: kept tensors stay until the first pass. `written`: number of simulated microbatches."""

    def take(self, key: Pass) -> None:
        """Does nothing: a received tensor is newly allocated. `key`: the pass that reads it."""

    def end_backward(self, action: Action) -> None:
        """Does nothing: the layers have freed the gradient of the output."""

    def post_persistent(self) -> None:
        """Appends allocations of each chunk's input and its gradient that the previous step left."""
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
        """Frees the input and gradient that the rank's chunk `chunk` (0 is its first) has kept, if any.

        Its next input replaces them.
        """
        if chunk in self.held:
            first, edges = self.at[chunk]
            self.out.tile(edges.drop_grad, first)
            self.out.tile(edges.drop_hidden, first - 1)
            self.held.remove(chunk)

    def end_forward(self, action: Action) -> None:
        """Notes the newest microbatch of the chunk; layers hold its input until backward is over."""
        self.newest[action.chunk] = action.microbatch

    def grad(self, action: Action) -> None:
        """Keeps the chunk's newest input and its gradient after backward pass `action`; frees older gradients."""
        if self.keeps and self.newest[action.chunk] == action.microbatch:
            self._hold(action.chunk, with_grad=False)
        else:
            first, edges = self.at[action.chunk]
            self.out.tile(edges.drop_grad, first)

    def end_run(self) -> None:
        """Does nothing: deferred heads free their own tensors."""
