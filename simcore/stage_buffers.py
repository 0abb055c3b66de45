"""What a pipeline stage of PyTorch's holds besides its layers: buffers to receive into, and outputs that it returns.

torch 2.13 `distributed/pipelining/stage.py`: a stage makes a buffer for every microbatch's input, and one for every
microbatch's gradient of its output, before the first step, and keeps them (_setup_forward_recv_info,
_setup_backward_recv_info). `schedules.py`, `step(return_outputs=True)`: what the last stage puts out for each
microbatch is kept until the next step begins, and joined when a step ends.
"""

from __future__ import annotations

from simcore.edges import Edges
from simcore.outline import Builder
from simcore.plan import Plan
from simcore.schedule import Action, Pass
from simcore.tile import Tile

__all__ = ["StageBuffers"]


class StageBuffers:
    """Buffers are the layers' while a microbatch is in them, and the stage's again when its backward pass is over."""

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...]) -> None:
        self.out, (self.edges, *_) = builder, borders
        self.chunks = plan.chunks
        self.count = plan.framework.buffered_microbatches
        last = plan.stage == plan.mesh.pp - 1
        self.inputs = [chunk[0] for number, chunk in enumerate(plan.chunks) if plan.stage > 0 or number > 0]
        self.outputs = [chunk[-1] for number, chunk in enumerate(plan.chunks)
                        if not (last and number == len(plan.chunks) - 1)]
        self.sent = -1
        self.returning = plan.chunks[-1][-1] if last and plan.framework.returns_outputs else -1

    def rest(self) -> None:
        """All buffers, and the outputs of the step before."""
        for first in self.inputs:
            self._repeat(self.edges.keep_hidden, first - 1, self.count)
        for final in self.outputs:
            self._repeat(self.edges.keep_grad, final + 1, self.count)
        self._returned(self.count)

    def begin_step(self, written: int) -> None:
        """Outputs go; those of microbatches that are not written out are there from the start."""
        if self.returning >= 0:
            self._repeat(self.edges.drop_output, self.returning, self.count)
        self._returned(self.count - written)

    def take(self, key: Pass) -> None:
        """A microbatch is received into its buffer."""
        forward, chunk, _ = key
        layers = self.chunks[chunk]
        tile, layer = ((self.edges.drop_hidden, layers[0] - 1) if forward else (self.edges.drop_grad, layers[-1] + 1))
        self.out.tile(tile, layer)

    def begin_forward(self, _chunk: int) -> None:
        """Nothing of the microbatch before stands in the way."""

    def end_forward(self, _action: Action) -> None:
        """Layers hold the input until backward is over."""

    def grad(self, action: Action) -> None:
        """It is no buffer, and was sent: 1F1B holds the message until the next one. Layers have let go of the input.

        `schedules.py`, Schedule1F1B: `bwd_sends`. Schedules of several chunks keep no name for it.
        """
        first = self.chunks[action.chunk][0]
        if len(self.chunks) > 1 or self.sent >= 0:
            self.out.tile(self.edges.drop_grad, first)
        self.sent = first if len(self.chunks) == 1 else -1
        self.out.tile(self.edges.keep_hidden, first - 1)

    def end_backward(self, action: Action) -> None:
        """Layers have let go of the output's gradient; the model's output is kept."""
        final = self.chunks[action.chunk][-1]
        if final in self.outputs:
            self.out.tile(self.edges.keep_grad, final + 1)
        elif self.returning >= 0:
            self._returned(1)

    def finish(self) -> None:
        """The last message goes; outputs are joined, and nobody wants the result."""
        if self.sent >= 0:
            self.out.tile(self.edges.drop_grad, self.sent)
        self._returned(self.count)
        if self.returning >= 0:
            self._repeat(self.edges.drop_output, self.returning, self.count)

    def _returned(self, count: int) -> None:
        if self.returning >= 0:
            self._repeat(self.edges.keep_output, self.returning, count)

    def _repeat(self, tile: Tile, layer: int, count: int) -> None:
        for _ in range(count):
            self.out.tile(tile, layer)
