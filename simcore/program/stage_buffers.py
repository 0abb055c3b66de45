"""Tensors that a pipeline stage of PyTorch holds besides its layers: receive buffers, and outputs that it returns.

torch 2.13 `distributed/pipelining/stage.py`: a stage makes a buffer for every microbatch's input, and one for every
microbatch's gradient of its output, before the first step, and keeps them (_setup_forward_recv_info,
_setup_backward_recv_info). `schedules.py`, `step(return_outputs=True)`: the last stage's output for each
microbatch is kept until the schedule's next run begins, and all are concatenated when a run ends. In most cases a run
is a step of the optimizer.

Where backward is split, the gradient of every microbatch's input stays the input's `.grad` until the next step begins
(`_backward.py`, stage_backward_input; clear_runtime_states). Where a rank's two chunks are neighbours, the output of
one replaces the buffer of the other (set_local_fwd_input, set_local_bwd_input).
"""

from __future__ import annotations

from simcore.pipeline.schedule import Action, Pass
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.stage_borders import Edges
from simcore.program.tile import LayerRows

__all__ = ["StageBuffers"]


class StageBuffers:
    """Tracker of the receive buffers and kept outputs of one pipeline rank under PyTorch's schedules.

    Its methods append the allocations and frees to the program. A buffer's bytes belong to the layers while a
    microbatch is in it, and to the stage after its backward pass.
    """

    def __init__(self, plan: Plan, builder: Builder, borders: tuple[Edges, ...], unheld: frozenset[int]) -> None:
        """`unheld`: first layers whose input is the stage's again when they have run forward."""
        self.out, (self.edges, *_) = builder, borders
        self.chunks, self.splits = plan.chunks, plan.framework.schedule.splits_backward
        self.count, self.unheld = plan.framework.buffered_microbatches, unheld
        self.ring = _ring(plan, self.count)
        last = len(plan.graph.layers) - 1
        self.inputs = [chunk[0] for chunk in plan.chunks if chunk[0] > 0]
        self.outputs = [chunk[-1] for chunk in plan.chunks if chunk[-1] < last]
        self.within = [first for first in self.inputs if first - 1 in self.outputs]
        self.held = [first for first in self.inputs if self.splits and first not in self.within]
        self.sent = -1
        self.sends = len(self.edges.keep_beside.rows) > 0
        ends = plan.framework.returns_outputs and any(chunk[-1] == last for chunk in plan.chunks)
        self.returning = last if ends else -1

    def post_persistent(self) -> None:
        """Appends allocations of all receive buffers, and of outputs and gradients that the last step left.

        Each is there once for every microbatch of the step, simulated or not; of buffers in a ring there are fewer.
        """
        for first in self.inputs:
            self._repeat(self.edges.keep_hidden, first - 1, self.ring)
            self._beside(self.edges.keep_beside, first, self.ring)
        for final in self.outputs:
            self._repeat(self.edges.keep_grad, final + 1, self.ring)
            self._beside(self.edges.keep_beside, final, self.ring)
        self._held(self.edges.keep_grad, self.count)
        self._returned(self.count)

    def begin_run(self, written: int) -> None:
        """Frees what the schedule's previous run left. `written`: number of the run's simulated microbatches.

        Those are the outputs that the last stage returned and, where backward is split, the inputs' gradients. Of
        microbatches that are not simulated they are allocated again at once, as they exist for the whole run.
        """
        if self.returning >= 0:
            self._repeat(self.edges.drop_output, self.returning, self.count)
        self._returned(self.count - written)
        self._held(self.edges.drop_grad, self.count)
        self._held(self.edges.keep_grad, self.count - written)

    def take(self, key: Pass) -> None:
        """Frees the stage's buffer that a received tensor fills, as its bytes now belong to the layers.

        Where something is sent beside the output, a gradient in the buffer is added to that of what is sent: the layers
        have the sum, the stage its buffer.

        `key`: the pass (True for forward, chunk, microbatch) that reads it.
        """
        forward, chunk, _ = key
        layers = self.chunks[chunk]
        tile, layer = ((self.edges.drop_hidden, layers[0] - 1) if forward else (self.edges.drop_grad, layers[-1] + 1))
        self._repeat(tile, layer, forward or not self.sends)

    def begin_forward(self, _chunk: int) -> None:
        """Does nothing: no tensor of an earlier microbatch has to be freed first."""

    def end_forward(self, action: Action) -> None:
        """Frees the receive buffer that the output of forward pass `action` replaces, if there is one.

        That is so where the rank's next chunk reads the output directly. What is sent beside the output stays until the
        pass's backward is over.
        """
        final = self.chunks[action.chunk][-1]
        if final + 1 in self.within:
            self.out.tile(self.edges.drop_hidden, final)
        self._beside(self.edges.keep_beside, final, final in self.outputs)

    def grad(self, action: Action) -> None:
        """Frees the gradient that was sent to the previous stage, and returns the input's buffer to the stage.

        The gradient of what came beside the input is made last, and lives as long.

        Runs after backward pass `action`. With one chunk the gradient stays until the next one is sent (`schedules.py`,
        Schedule1F1B: `bwd_sends`). Where backward is split, no buffer is returned yet, and the gradient is freed only
        if the rank's other chunk takes it; else it stays until the next step begins.
        """
        first = self.chunks[action.chunk][0]
        if self.splits:
            self._repeat(self.edges.drop_grad, first, first in self.within)
            return
        if len(self.chunks) > 1 or self.sent >= 0:
            self.out.tile(self.edges.drop_grad, first)
            self._beside(self.edges.drop_beside, first, len(self.chunks) == 1)
        self._beside(self.edges.keep_beside, first, len(self.chunks) == 1)
        self.sent = first if len(self.chunks) == 1 else -1
        self._repeat(self.edges.keep_hidden, first - 1, first not in self.unheld)

    def end_backward(self, action: Action) -> None:
        """Allocates the model's output after backward pass `action` of the last chunk, if the stage returns it.

        Where backward is split, other chunks' buffer of the output's gradient is the stage's again after the weight
        part; else it already is.
        """
        final = self.chunks[action.chunk][-1]
        if final in self.outputs:
            self._repeat(self.edges.keep_grad, final + 1, self.splits and action.part != "input")
            self._beside(self.edges.drop_beside, final, action.part != "input")
        elif action.part != "weight":
            self._returned(1)

    def end_run(self) -> None:
        """Frees the last sent gradient; allocates all returned outputs concatenated, and frees that as it is unused."""
        if self.sent >= 0:
            self.out.tile(self.edges.drop_grad, self.sent)
            self._beside(self.edges.drop_beside, self.sent)
            self.sent = -1
        self._returned(self.count)
        if self.returning >= 0:
            self._repeat(self.edges.drop_output, self.returning, self.count)

    def _beside(self, tile: LayerRows, layer: int, count: int = 1) -> None:
        """Appends a tile for what crosses a border beside a hidden state, if anything does."""
        self._repeat(tile, layer, count * self.sends)

    def _held(self, tile: LayerRows, count: int) -> None:
        for first in self.held:
            self._repeat(tile, first, count)

    def _returned(self, count: int) -> None:
        if self.returning >= 0:
            self._repeat(self.edges.keep_output, self.returning, count)

    def _repeat(self, tile: LayerRows, layer: int, count: int) -> None:
        for _ in range(count):
            self.out.tile(tile, layer)


def _ring(plan: Plan, count: int) -> int:
    """Receive buffers of a stage in each direction; `count`: microbatches of a step.

    nemo-automodel 0.7.0 `distributed/pipelining/recv_buffer_pool.py`, _ring_size: those in flight under 1F1B and some
    more, where buffers are pooled.
    """
    slack = plan.framework.buffer_slack
    return count if slack < 0 else max(2, min(count, plan.mesh.pp - plan.stage + slack))
