"""Tensors that cross the borders of a layer under eager PyTorch: the hidden state down, its gradient up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.split_backward import SplitBackward
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Op, Section, Tape, Tensor

__all__ = ["AFTER", "BEFORE", "TIED_HEAD", "drop_held_logits", "hand_back", "hand_on", "hidden_state", "hold_logits",
           "leave_waiting", "meet_waiting", "nothing", "run_backward", "run_backward_of_loss", "run_halves",
           "simple_part", "stream_dtype"]

TIED_HEAD: Final = 1 << 30
"""Row offset: the slot is the head's, however far away that is."""

BEFORE: Final = -1
AFTER: Final = 1
"""Layer offsets of rows about tensors that the layer below or above makes or frees."""


def stream_dtype(run: LayerWorkload) -> str:
    """Type of the hidden state between layers: that of the products, unless the options name another."""
    return run.options.hidden or run.compute


def hidden_state(tape: Tape, run: LayerWorkload, seq: int, width: int, dtype: str = "") -> Tensor:
    """Input [batch, seq, width], made by the layer before; its node collects the gradient. `dtype`: "" the stream's."""
    hidden = tape.external((run.batch, seq, width), dtype or stream_dtype(run), HIDDEN, BEFORE)
    hidden.node = Node() if run.input_requires_grad else None
    return hidden


def hand_on(tape: Tape, out: Tensor) -> None:
    """The output is the next layer's to free."""
    tape.rename(out.storage, HIDDEN)
    out.disown()


def drop_held_logits(tape: Tape, run: LayerWorkload, vocab: int) -> Section:
    """Logits that a loop holds until the next ones are there: their death, and what rests when a step begins."""
    held = tape.external((run.batch, run.seq, vocab), run.compute, tape.slot("held_logits", "activation"), 0)
    assert held.storage is not None
    return Section(((Op.ALLOC, 0, held.storage.slot, held.nbytes, 0, 0),))


def hold_logits(tape: Tape, run: LayerWorkload, vocab: int) -> None:
    """They stay where they are, under another name, until the next step's are there."""
    tape.empty((run.batch, run.seq, vocab), run.compute, "held_logits", "activation").disown()


def run_backward(tape: Tape, out: Tensor, inputs: Node | None, finish: Callable[[Tape], None],
                 held: list[Any] | None = None) -> Section:
    """Backward from the gradient that the next layer made to the gradient of this layer's input.

    `held`: lives until then, and so does the gradient that comes in: the layer is one function of autograd.
    """
    if out.node is not None:
        grad: Tensor | None = tape.external(out.shape, out.dtype, GRAD_HIDDEN, AFTER)
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


def run_backward_of_loss(tape: Tape, loss: Tensor, inputs: Node | None, *,
                         split: bool = False) -> tuple[Section, Section, Tensor]:
    """(seed, backward, the seed's tensor): `loss.backward()`. The caller holds loss and seed until the step is over.

    `split`: it is the first of two halves; the loss keeps the graph.
    """
    tape.phase = "backward"
    ones = tape.empty((), loss.dtype, "ones_like")
    seed = tape.cut()
    tape.seed(loss, ones)
    if split:
        SplitBackward(tape).run_input()
    else:
        tape.backward()
    if inputs is not None:
        hand_back(tape, inputs)
    return seed, tape.cut(), ones


def simple_part(tape: Tape, run: LayerWorkload, finish: Callable[[Tape], None], width: int,
                body: Callable[[Tensor], Tensor], dtype: str = "") -> RecordedLayer:
    """A part that is one function of the hidden state [b, s / tp, width], which its caller drops after it has returned.

    `finish`: what is left to do after backward. `dtype`: of the hidden state, the compute dtype if empty.
    """
    hidden: Tensor | None = hidden_state(tape, run, run.seq // run.tp, width, dtype)
    assert hidden is not None
    leaf = hidden.node
    out = body(hidden)
    hand_on(tape, out)
    forward = tape.cut()
    hidden = None
    after = tape.cut()
    tape.casts.clear()
    casts = tape.cut()
    if run.split:
        return run_halves(tape, run, out, leaf, RecordedLayer(forward, after, after))
    return RecordedLayer(forward, run_backward(tape, out, leaf, finish), after, grads=tape.release_grads(), casts=casts)


def run_halves(tape: Tape, run: LayerWorkload, out: Tensor, inputs: Node | None,
               recorded: RecordedLayer) -> RecordedLayer:
    """`recorded` with its backward pass in halves: gradients of parameters are a separate pass (`halves.py`)."""
    assert inputs is not None, "there is no first half without a gradient of the input"
    tape.seed(out, tape.external(out.shape, out.dtype, GRAD_HIDDEN, AFTER))
    halves = SplitBackward(tape)
    halves.run_input()
    hand_back(tape, inputs)
    backward = tape.cut()
    halves.run_weights(tuple(run.params))
    weight, grads = tape.cut(), tape.release_grads()
    halves.release()
    return replace(recorded, backward=backward, grads=grads, weight=weight, release=tape.cut())


def hand_back(tape: Tape, inputs: Node) -> None:
    """The gradient of the input is the layer's below to free.

    One that was written over the gradient that came in goes from hand to hand: a death and a birth in one place.
    """
    grad = inputs.grads.pop(0)
    assert grad.storage is not None
    if grad.storage.slot == GRAD_HIDDEN:
        shape, dtype = grad.shape, grad.dtype
        del grad
        grad = tape.empty(shape, dtype, "grad_in_place")
    tape.rename(grad.storage, GRAD_HIDDEN)
    grad.disown()


def nothing(_tape: Tape) -> None:
    """Nothing is left to do after backward."""


def leave_waiting(tape: Tape) -> None:
    """Keeps a tied head's gradient in the engine's input buffer of the weight until the embedding's is there."""
    for _, grad in tape.grads:
        tape.rename(grad.storage, tape.slot("tied.grad", "backward_temp"))
        grad.disown()
    tape.grads.clear()


def meet_waiting(tape: Tape, *, in_place: bool = False) -> None:
    """Adds the embedding's gradient to it: in a new tensor, or in place where nothing else refers to it."""
    if not tape.grads:
        return
    param, grad = tape.grads.pop()
    waiting: Tensor | None = tape.external(grad.shape, grad.dtype, tape.slot("tied.grad", "backward_temp"), TIED_HEAD)
    assert waiting is not None
    if in_place:  # both are there, then one under its own name
        shape, dtype = grad.shape, grad.dtype
        del grad
        total = tape.empty(shape, dtype, "grad_sum")
    else:
        total = tape.add_grads(waiting, grad)
        del grad
    del waiting
    tape.give_param(replace(param, tied=False), total)
