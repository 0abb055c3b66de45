"""A layer's backward pass in two parts: the gradient of its input, and later those of its parameters.

torch 2.13 `distributed/pipelining/_backward.py`. The first part (stage_backward_input) is `autograd.grad` of the input
with `retain_graph`: it makes no gradient of a parameter and frees no saved tensor. It keeps the incoming gradient of
every node that takes a parameter. The second part (stage_backward_weight) runs these nodes again, each only for its
parameters, in the order of the module's parameters; a node frees its saved tensors when it has run. Nodes refer to
those below them, so saved tensors of other nodes stay until the last node of a stage has run.
"""

from __future__ import annotations

import math

from simcore.recording.tape import Node, Param, Tape, Tensor

__all__ = ["SplitBackward"]


class SplitBackward:
    """One backward pass of recorded operators in two halves, as zero-bubble schedules run it.

    The first half makes gradients of the inputs, the second those of the weights. Gradients of the outputs must be set
    before (`Tape.seed`); the tape's list of nodes is emptied.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.nodes = [node for node in (reference() for reference in tape.nodes) if node is not None]
        tape.nodes.clear()

    def run_input(self) -> None:
        """Runs backward down to the layer's input, without the gradients of parameters."""
        self.tape.phase, self.tape.half = "backward", "input"
        for node in reversed(self.nodes):
            if node.grads:
                self._hand_on(node, self._outputs(node))
        self.tape.half = ""

    def run_weights(self, params: tuple[str, ...]) -> None:
        """Computes the gradients of parameters, after `run_input`, in the order of `params`.

        `params`: names of all parameters, in the module's order. Each node frees its saved tensors when it has run.
        """
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
        """Frees the nodes and all tensors that they still save."""
        for node in self.nodes:
            node.saved.clear()
        self.nodes.clear()

    def _outputs(self, node: Node) -> list[Tensor | None]:
        """Gradients that the node's function returns; arguments that other nodes share may be freed."""
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
