"""Tensors that cross the borders of a layer under eager PyTorch: the hidden state down, its gradient up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import (
    FP32_BACKWARD_BEGIN,
    FP32_BACKWARD_END,
    FP32_FORWARD_BEGIN,
    FP32_FORWARD_END,
)
from simcore.recording.split_backward import SplitBackward
from simcore.recording.tape import (
    GRAD_HIDDEN,
    HIDDEN,
    INNER_BACKWARD_BEGIN,
    INNER_BACKWARD_END,
    INNER_FORWARD_BEGIN,
    INNER_FORWARD_END,
    Node,
    Op,
    Section,
    Tape,
    Tensor,
)

__all__ = ["AFTER", "BEFORE", "GRAD_EMBEDDED", "OF_FP32", "TIED_HEAD", "as_inner_unit", "drop_held_logits",
           "hand_back", "hand_on", "held_logits", "hidden_state", "hold_logits", "leave_waiting", "meet_waiting",
           "nothing", "run_around_hook", "run_backward", "run_backward_of_loss", "run_halves", "simple_part",
           "stream_dtype"]

TIED_HEAD: Final = 1 << 30
"""Row offset: the slot is the head's, however far away that is."""

BEFORE: Final = -1
AFTER: Final = 1
"""Layer offsets of rows about tensors that the layer below or above makes or frees."""

GRAD_EMBEDDED: Final = "grad_embedded"
"""Storage of the gradient that the end of a trained vision tower makes for the embedding, beside that of the tower."""

Marks = tuple[int, int, int, int]
OF_EXPERTS: Final[Marks] = (INNER_FORWARD_BEGIN, INNER_FORWARD_END, INNER_BACKWARD_BEGIN, INNER_BACKWARD_END)
OF_FP32: Final[Marks] = (FP32_FORWARD_BEGIN, FP32_FORWARD_END, FP32_BACKWARD_BEGIN, FP32_BACKWARD_END)
"""Marks around a unit inside a layer: of experts, of a module with parameters in fp32."""


def stream_dtype(run: LayerWorkload) -> str:
    """Dtype of the hidden state between layers: `run.options.hidden`, or the compute dtype if that is ""."""
    return run.options.hidden or run.compute


def hidden_state(tape: Tape, run: LayerWorkload, seq: int, width: int, dtype: str = "") -> Tensor:
    """Input [batch, seq, width] of a layer, allocated by the layer before; this layer records its free.

    Its autograd node collects the gradient; it has none if the input requires no gradient. `seq`: positions that this
    rank has; `dtype`: "" for what the layer is given (`LayerWorkload.given`), or `stream_dtype`.
    """
    hidden = tape.external((run.batch, seq, width), dtype or run.given or stream_dtype(run), HIDDEN, BEFORE)
    hidden.node = Node() if run.input_requires_grad else None
    return hidden


def hand_on(tape: Tape, out: Tensor) -> None:
    """Makes `out` the output of the layer, under the name `hidden_states`.

    The next layer records its free.
    """
    tape.rename(out.storage, HIDDEN)
    out.disown()


def drop_held_logits(tape: Tape, run: LayerWorkload, vocab: int) -> Section:
    """Records the free of logits [batch, seq, vocab] that a loop still holds from the previous step.

    Returns the section with their allocation, which belongs before the first row of the step (`RecordedLayer.rest`).
    """
    return held_logits(tape, run, vocab, run.compute)[0]


def held_logits(tape: Tape, run: LayerWorkload, vocab: int, dtype: str) -> tuple[Section, Tensor]:
    """(section as of `drop_held_logits`, the logits), whose free is recorded when the caller drops them."""
    held = tape.external((run.batch, run.seq, vocab), dtype, tape.slot("held_logits", "activation"), 0)
    assert held.storage is not None
    return Section(((Op.ALLOC, 0, held.storage.slot, held.nbytes, 0, 0),)), held


def hold_logits(tape: Tape, run: LayerWorkload, vocab: int, dtype: str = "") -> None:
    """Records the allocation of logits [batch, seq, vocab], in `dtype` ("": computed), that a loop holds past the step.

    They get the name `held_logits`; `drop_held_logits` records their free, when the next step has its own.
    """
    tape.empty((run.batch, run.seq, vocab), dtype or run.compute, "held_logits", "activation").disown()


def run_around_hook(tape: Tape, out: Tensor, inputs: Node | None, finish: Callable[[Tape], None], held: list[Any], *,
                    ahead: bool) -> tuple[Section, Section]:
    """(section ahead of the layer's hook, that of `run_backward`). `ahead`: the last node runs there, a cast.

    FSDP2 casts an output behind the hook that it puts on it (torch 2.13 `_fsdp_state.py`, _post_forward).
    """
    begun = ahead and out.node is not None
    if begun:
        tape.seed(out, tape.external(out.shape, out.dtype, GRAD_HIDDEN, AFTER))
        tape.backward(len(tape.nodes) - 1)
    return tape.cut(), run_backward(tape, out, inputs, finish, held, begun=begun)


def run_backward(tape: Tape, out: Tensor, inputs: Node | None, finish: Callable[[Tape], None],
                 held: list[Any] | None = None, above: int = AFTER, slot: int = GRAD_HIDDEN, *,
                 begun: bool = False) -> Section:
    """Section of a layer's backward pass, from the gradient of its output to that of its input.

    The next layer has made the former. `inputs`: node of the layer's input, None if it needs no gradient. `finish`:
    called after the last node has run. `held`: objects that are kept until then, together with the incoming gradient,
    as in a layer that is one autograd function.
    `above`: layers up to the one that takes in the output, whose gradient it makes, in `slot`. `begun`: it has been
    taken in.
    """
    if begun:
        tape.backward()
        finish(tape)
    elif out.node is not None:
        grad: Tensor | None = tape.external(out.shape, out.dtype, slot, above)
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
    """(section that makes the loss's gradient, 1; section of `loss.backward()`; tensor of that gradient).

    The caller keeps the loss and that tensor until the step is over. `inputs`: node of the input of the loss, None if
    it needs no gradient. `split`: runs only the half of backward for gradients of inputs; the loss keeps the graph.
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
    """Records a part whose forward pass is `body`, a function of the hidden state [b, s / tp, width].

    Its caller drops the hidden state after `body` has returned. `finish`: called on the tape after backward. `dtype`:
    that of the hidden state, "" for `stream_dtype`.
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
    """Copy of `recorded` with a backward pass in two halves (`split_backward.py`).

    `backward` gets the gradient of the input, `weight` the gradients of parameters, `release` the frees of tensors that
    the graph held. `out`: the layer's output; `inputs`: node of its input, which needs a gradient.
    """
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


def hand_back(tape: Tape, inputs: Node, slot: int = GRAD_HIDDEN) -> None:
    """Makes the gradient in `inputs` the result of a layer's backward pass.

    It is renamed to `grad_hidden_states`, or to what `slot` is, and the layer below records its free. If it was written
    in place over the gradient of the output, a free and an allocation of the same size are recorded.
    """
    grad = inputs.grads.pop(0)
    assert grad.storage is not None
    if grad.storage.slot == GRAD_HIDDEN:
        shape, dtype = grad.shape, grad.dtype
        del grad
        grad = tape.empty(shape, dtype, "grad_in_place")
    tape.rename(grad.storage, slot)
    grad.disown()


def as_inner_unit(tape: Tape, x: Tensor, run: Callable[[Tensor], Tensor], marks: Marks = OF_EXPERTS) -> Tensor:
    """Output of `run(x)`, a module inside the layer that FSDP2 gathers apart: its hooks run around it.

    They are marked in both passes by `marks`, at the begin and end of forward, then of backward. FSDP2 casts nothing
    here.
    """
    forward_begin, forward_end, backward_begin, backward_end = marks
    tape.mark(forward_begin)
    given = Tensor(x.storage, x.shape, x.dtype, tape.node((x,), (), lambda tape, grads, saved: _marked(
        tape, grads, backward_end)))
    out = run(given)
    out.node = tape.node((out,), (), lambda tape, grads, saved: _marked(tape, grads, backward_begin))
    tape.mark(forward_end)
    return out


def _marked(tape: Tape, grads: list[Tensor | None], mark: int) -> list[Tensor | None]:
    tape.mark(mark)
    return list(grads)


def nothing(_tape: Tape) -> None:
    """Does nothing: the `finish` of layers that have nothing left to do after backward."""


def leave_waiting(tape: Tape) -> None:
    """Keeps a tied head's weight gradient, as `tied.grad`, until the embedding's gradient exists.

    No free is recorded here: `meet_waiting` takes the gradient over. Gradients of the head's adapters are its own.
    """
    for param, grad in tape.grads:
        if param.tied:
            tape.rename(grad.storage, tape.slot("tied.grad", "backward_temp"))
            grad.disown()
    tape.grads[:] = [(param, grad) for param, grad in tape.grads if not param.tied]


def meet_waiting(tape: Tape, *, in_place: bool = False) -> None:
    """Adds the embedding's gradient to that of the tied head (see `leave_waiting`).

    The parameter gets the sum. `in_place`: the sum takes the place of one of them; otherwise it is a new tensor. Does
    nothing without a gradient.
    """
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
