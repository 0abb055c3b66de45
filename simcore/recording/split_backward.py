"""A layer's backward pass in two halves: the gradient of its input, and later those of its parameters.

torch 2.13 `distributed/pipelining/_backward.py`. The first half (stage_backward_input) is `autograd.grad` of the input
with `retain_graph`: it makes no gradient of a parameter and frees nothing that was saved. Of every node that a
parameter flows into it keeps the gradient that came in. The second (stage_backward_weight) runs these nodes again, each
for its parameters alone, in the order in which the module has its parameters; a node lets go of what it saved when it
has run. Nodes keep those below them, so that what others saved stays until the last of a stage has run.
"""

from __future__ import annotations

import math

from simcore.recording.tape import Node, Param, Tape, Tensor

__all__ = ["SplitBackward"]


class SplitBackward:
    """Backward of what a tape has recorded; gradients are seeded already."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.nodes = [node for node in (made() for made in tape.nodes) if node is not None]
        tape.nodes.clear()

    def run_input(self) -> None:
        """Everything but gradients of parameters."""
        self.tape.phase, self.tape.half = "backward", "input"
        for node in reversed(self.nodes):
            if node.grads:
                self._hand_on(node, self._outputs(node))
        self.tape.half = ""

    def run_weights(self, params: tuple[str, ...]) -> None:
        """Gradients of parameters; `params`: their names, in order."""
        self.tape.half = "weight"
        places = {name: place for place, name in enumerate(params)}
        waiting = [node for node in self.nodes if _params(node)]
        for node in sorted(waiting, key=lambda node: min(places[param.name] for param in _params(node))):
            outputs = self._outputs(node)
            node.saved.clear()
            for edge, grad in zip(node.edges, outputs, strict=True):
                assert grad is None or isinstance(edge, Param), "made a gradient that was made before"
                if isinstance(edge, Param) and grad is not None:
                    self.tape.give_param(edge, grad)
            node.grads.clear()
        self.tape.half = ""

    def release(self) -> None:
        """The graph goes."""
        for node in self.nodes:
            node.saved.clear()
        self.nodes.clear()

    def _outputs(self, node: Node) -> list[Tensor | None]:
        """What the node's function returns; it may let go of its arguments, which are others' too."""
        assert node.backward is not None
        assert node.frame is None, "no checkpoints in a backward pass of two halves"
        self.tape.scope = node.scope
        grads = [node.grads.get(i) for i in range(max(node.grads) + 1)]
        if not _params(node):
            node.grads.clear()
        return list(node.backward(self.tape, grads, list(node.saved)))

    def _hand_on(self, node: Node, outputs: list[Tensor | None]) -> None:
        for i, edge in enumerate(node.edges):
            grad, outputs[i] = outputs[i], None
            if grad is None or edge is None:
                continue
            assert isinstance(edge, Node), "made a gradient of a parameter"
            assert not node.reduce_to or grad.numel == math.prod(node.reduce_to[i]), "broadcast"
            output = node.outputs_of[i]
            there = edge.grads.get(output)
            edge.grads[output] = grad if there is None else self.tape.add_grads(there, grad)


def _params(node: Node) -> list[Param]:
    return [edge for edge in node.edges if isinstance(edge, Param)]
