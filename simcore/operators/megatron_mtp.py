"""Megatron-Core's multi-token prediction (MTP): one module that predicts the token after the next.

megatron-core 0.16.1 `transformer/multi_token_prediction.py`, `models/gpt/gpt_model.py` (GPTModel._postprocess),
`tensor_parallel/mappings.py`. The module stands after the decoder's final norm and before the output layer. It looks up
the embedding of the tokens moved by one, norms both, projects them to one stream, runs a layer and a norm. What it made
is laid behind what the decoder made, in one tensor, of which both heads get a part: so the output layer and the loss
run twice, the module's first.

[Note: what multi-token prediction holds]
 * The module's logits are a local variable of GPTModel._postprocess: they go when the model's own loss is there.
 * With sequence parallelism the projected stream is gathered over tp and cut along the sequence. The part is a view, so
   what keeps the layer's input keeps all of it.
 * Of two uses of a weight in one backward the first gradient waits for the second, and autograd adds both into a new
   tensor: the embedding's on one stage, the output layer's always, TE's idle one too (`tensor_parallel/layers.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simcore.models.blocks import Embedding, Head, Mtp
from simcore.operators.megatron_context import Context, Grads, Saved, fuses_wgrad
from simcore.operators.megatron_head import TIED_GRAD, embedding, head, loss
from simcore.operators.megatron_ops import all_gather, column, norm
from simcore.recording import Run
from simcore.tape import Kernel, Tape, Tensor

__all__ = ["predict"]

_INNER = "transformer_layer."


def predict(c: Context, block: Mtp, x: Tensor, layer: Callable[[Context, list[Tensor]], Tensor]) -> Tensor:
    """Everything between the decoder's output `x` and the output layer; returns the latter's input.

    `layer` runs the module's transformer layer. What is returned shares its storage with the module's own part.
    """
    c.tape.scope = "mtp."
    found = embedding(c, Embedding(block.vocab, block.hidden))

    def project_and_run() -> Tensor:
        made = layer(_inner(c), [_project(c, block, found, x)])
        return norm(c, "final_layernorm", made, "predicted")

    predicted = c.region(project_and_run) if c.run.checkpoint in ("full", "uniform") else project_and_run()
    own, further = _joined(c, x, predicted)
    logits = head(c, Head(block.vocab, block.hidden), further)
    _meet(c, logits)
    c.locals.append(logits)
    return _scaled(c, own, loss(c, logits))


def _inner(c: Context) -> Context:
    """The same tape for the module's layer, whose parameters go by the names of a decoder's."""
    run: Run = replace(c.run, params={name.removeprefix(_INNER): param for name, param in c.run.params.items()})
    return replace(c, run=run)


def _project(c: Context, block: Mtp, found: Tensor, x: Tensor) -> Tensor:
    """`_concat_embeddings`: both normed, side by side, projected to this rank's columns, then to this rank's tokens."""
    normed = norm(c, "enorm", found, "embedding_normed"), norm(c, "hnorm", x, "hidden_normed")
    projected = column(c, "eh_proj", _side_by_side(c, *normed))
    return _cut(c, _whole_columns(c, projected, block.hidden))


def _side_by_side(c: Context, first: Tensor, second: Tensor) -> Tensor:
    """`cat` of columns; the parts of its gradient are views, which the norms make contiguous."""
    rows, columns = first.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grads = [c.new(rows, columns, f"grad_{name}") for name in ("embedding_normed", "hidden_normed")]
        for grad in grads:
            c.elementwise(grad, 2, Kernel.COPY)
        return list(grads)

    out = c.new(rows, 2 * columns, "eh_proj.input")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, (first, second), (), back)
    return out


def _whole_columns(c: Context, x: Tensor, columns: int) -> Tensor:
    """`gather_from_tensor_model_parallel_region`: gathered behind each other, then side by side; back, a part."""
    if c.run.tp == 1:
        return x
    rows, own = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, own, "grad_eh_proj")
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    gathered = c.new(rows * c.run.tp, own, "eh_proj.gathered")
    c.send("all_gather", "tp", gathered)
    out = c.new(rows, columns, "projected")
    c.elementwise(out, 2, Kernel.COPY)
    del gathered
    c.node(out, (x,), (), back)
    return out


def _cut(c: Context, x: Tensor) -> Tensor:
    """`scatter_to_sequence_parallel_region`: a view; its gradient is gathered."""
    if c.local == c.tokens:
        return x

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        return [all_gather(c, grads[0], "grad_projected")]

    out = Tensor(x.storage, (c.local, x.shape[1]), x.dtype)
    c.node(out, (x,), (), back)
    return out


def _joined(c: Context, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """`cat` of both along the sequence and `chunk`: views of one tensor, and of one gradient."""
    rows, columns = first.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        whole = c.new(2 * rows, columns, "grad_joined")
        c.elementwise(whole, 2, Kernel.COPY)
        return [Tensor(whole.storage, (rows, columns), c.dtype) for _ in range(2)]

    whole = c.new(2 * rows, columns, "joined")
    c.elementwise(whole, 2, Kernel.COPY)
    own, further = (Tensor(whole.storage, (rows, columns), c.dtype) for _ in range(2))
    c.node(own, (first, second), (), back)
    further.node, further.output = own.node, 1
    return own, further


def _scaled(c: Context, x: Tensor, losses: Tensor) -> Tensor:
    """`MTPLossAutoScaler`: hands `x` on, and the loss its gradient. The mask times the loss is kept (fp32 each)."""
    rows = losses.shape[0]

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [grads[0], c.new(rows, 1, "grad_loss", "fp32")]

    kept = [c.new(rows, 1, name, "fp32") for name in ("loss_mask", "scaled_loss")]
    out = Tensor(x.storage, x.shape, x.dtype)
    c.node(out, (x, losses), kept, back)
    return out


def _meet(c: Context, logits: Tensor) -> None:
    """The gradient of the output layer's weight has waited for this one; the sum of both is a new tensor."""
    node, weight = logits.node, c.param("output_layer.weight")
    assert node is not None
    assert node.backward is not None
    once = node.backward

    def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
        grad, own = once(tape, grads, saved)
        if fuses_wgrad(c.run):
            total = tape.empty(weight.shape, weight.dtype, "grad_sum")
        else:
            assert own is not None
            waiting = tape.external(own.shape, own.dtype, tape.slot(TIED_GRAD, "backward_temp"), 1)
            total = tape.add_grads(waiting, own)
        c.elementwise(total, 5)
        return [grad, None]

    node.backward = back
