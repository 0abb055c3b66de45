"""What crosses the borders of a layer under eager PyTorch: the hidden state down, its gradient up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simcore.recording import LayerTape, Run
from simcore.tape import GRAD_HIDDEN, HIDDEN, Node, Section, Tape, Tensor

__all__ = ["hand_back", "hand_on", "hidden_state", "nothing", "run_backward", "run_backward_of_loss",
           "simple_part"]

_BEFORE, _AFTER = -1, 1


def hidden_state(tape: Tape, run: Run, seq: int, width: int) -> Tensor:
    """The input, which the layer before has made; its node collects the gradient."""
    hidden = tape.external((run.batch, seq, width), run.compute, HIDDEN, _BEFORE)
    hidden.node = Node() if run.input_requires_grad else None
    return hidden


def hand_on(tape: Tape, out: Tensor) -> None:
    """The output is the next layer's to free."""
    tape.rename(out.storage, HIDDEN)
    out.disown()


def run_backward(tape: Tape, out: Tensor, inputs: Node | None, finish: Callable[[Tape], None],
                 held: list[Any] | None = None) -> Section:
    """Backward from the gradient that the next layer made to the gradient of this layer's input.

    `held`: lives until then, and so does the gradient that comes in: the layer is one function of autograd.
    """
    if out.node is not None:
        grad: Tensor | None = tape.external(out.shape, out.dtype, GRAD_HIDDEN, _AFTER)
        assert grad is not None
        tape.seed(out, grad)
        grad = grad if held else None
        tape.backward()
        finish(tape)
        del grad
    if held:
        held.clear()
    if inputs is not None:
        hand_back(tape, inputs)
    return tape.cut()


def run_backward_of_loss(tape: Tape, loss: Tensor, inputs: Node | None) -> tuple[Section, Section, Tensor]:
    """(seed, backward, the seed's tensor): `loss.backward()`. The caller holds loss and seed until the step is over."""
    tape.phase = "backward"
    ones = tape.empty((), loss.dtype, "ones_like")
    seed = tape.cut()
    tape.seed(loss, ones)
    tape.backward()
    if inputs is not None:
        hand_back(tape, inputs)
    return seed, tape.cut(), ones


def simple_part(tape: Tape, run: Run, finish: Callable[[Tape], None], width: int,
                body: Callable[[Tensor], Tensor]) -> LayerTape:
    """A part that is one function of the hidden state [b, s / tp, width], which its caller drops after it has returned.

    `finish`: what is left to do after backward.
    """
    hidden: Tensor | None = hidden_state(tape, run, run.seq // run.tp, width)
    assert hidden is not None
    leaf = hidden.node
    out = body(hidden)
    hand_on(tape, out)
    forward = tape.cut()
    hidden = None
    after = tape.cut()
    return LayerTape(forward, run_backward(tape, out, leaf, finish), after, grads=tape.release_grads())


def hand_back(tape: Tape, inputs: Node) -> None:
    """The gradient of the input is the layer's below to free."""
    grad = inputs.grads.pop(0)
    tape.rename(grad.storage, GRAD_HIDDEN)
    grad.disown()


def nothing(_tape: Tape) -> None:
    """Nothing is left to do after backward."""
