"""Megatron-Core's multi-token prediction (MTP): one module that predicts the token after the next, and further ones.

megatron-core 0.16.1 `transformer/multi_token_prediction.py`, `models/gpt/gpt_model.py` (GPTModel._postprocess),
`tensor_parallel/mappings.py`. The module stands after the decoder's final norm and before the output layer. It looks up
the embedding of the tokens moved by one, norms both, projects them to one stream, runs a layer and a norm. What it made
is laid behind what the decoder made, in one tensor, which the output layer gets in parts: it runs twice, and the loss
with it, the module's first. The model's own loss is a separate layer, the module's is part of the output layer here.

[Note: what multi-token prediction holds]
 * The module's logits are a local variable of GPTModel._postprocess: they go when the model's own loss is there. Those
   of a hybrid are one of process_mtp_loss, which is over by then (main of 2026-08-22 `models/hybrid/hybrid_model.py`,
   `transformer/multi_token_prediction.py`); there a module may be run several times, and the logits of one further
   token stay until those of the next are there.
 * With sequence parallelism the projected stream is gathered over tp and cut along the sequence. The part is a view, so
   what keeps the layer's input keeps all of it.
 * Of two uses of a weight in one backward the first gradient waits for the second, and autograd adds both into a new
   tensor: the output layer's, TE's idle one too (`tensor_parallel/layers.py`), and on one stage the embedding's.
 * Detached (main, mtp_detach_heads) modules begin at a leaf, embeddings they look up ask for no gradient, and the
   output layer runs with its weight frozen. The leaf's gradient stays until the graph goes: left out, as large as one
   hidden state.
 * Where the model's own loss is made of log-probabilities (NeMo RL, without labels) or of a teacher's choice, that of
   further tokens is the cross entropy of its configuration all the same, over labels moved from the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simcore.models.blocks import Embedding, Head, Mtp
from simcore.operators.megatron.head import TIED_GRAD, Backward, embedding, head, loss
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import copied_gradient
from simcore.operators.megatron.ops.linear import column
from simcore.operators.megatron.ops.norm import norm
from simcore.operators.megatron.ops.parts import all_gather
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Node, Tape, Tensor

__all__ = ["heads", "predict"]

_INNER = "transformer_layer."


def predict(c: Context, block: Mtp, x: Tensor, layer: Callable[[Context, list[Tensor]], Tensor]) -> Tensor:
    """Outputs of the decoder and of all multi-token prediction modules, one after the other in one tensor.

    `x` [local tokens (after sequence parallelism), hidden] is the decoder's output; the result, with (1 +
    `block.depths`) times the rows, is the input of the output layer. `layer` runs a module's transformer layer.
    """
    c.tape.scope = "mtp."
    last = Tensor(x.storage, x.shape, x.dtype) if c.options.mtp_detach_heads else x
    made = [_left(c, x) if c.options.mtp_detach_heads else x]
    for depth in range(block.depths):
        last = _run(c, block, last, layer, depth)
        made.append(last)
    return _joined(c, made)


def _left(c: Context, x: Tensor) -> Tensor:
    """The decoder's output, whose gradient is a view of that of all outputs; from here on it counts as a tensor."""
    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [c.new(x.shape[0], x.shape[1], "grad_hidden")]

    out = Tensor(x.storage, x.shape, x.dtype)
    c.node(out, (x,), (), back)
    return out


def _run(c: Context, block: Mtp, x: Tensor, layer: Callable[[Context, list[Tensor]], Tensor], depth: int) -> Tensor:
    """One further token: its embedding beside `x`, projected, through the module's layer and norm."""
    table = Embedding(block.vocab, block.hidden, tower=int(c.options.reads_images))
    found = embedding(_of_detached(c), table, is_last=depth == 0)
    found = _cut(c, found) if c.options.reads_images else found

    def project_and_run() -> Tensor:
        made = layer(_inner(c), [_project(c, block, found, x)])
        return norm(c, "final_layernorm", made, "predicted")

    return c.region(project_and_run) if c.run.checkpoint in ("full", "uniform") else project_and_run()


def heads(c: Context, block: Head, x: Tensor) -> Tensor:
    """Logits of the model itself, [tokens, this rank's vocabulary].

    The output layer runs on the 1 + `block.shared` equal parts of `x` [rows, hidden], of which the first is the
    model's. Logits of the other parts, made by multi-token prediction, get their loss here.
    """
    c.tape.scope = "mtp."
    own, *further = _parts(c, x, 1 + block.shared)
    nodes, apart = [], _of_further(c)
    while further:
        logits = head(apart, block, further.pop(0))
        nodes.append(logits.node)
        own = _scaled(c, own, loss(apart, logits))
    if c.kind.family != "nemotron_h":
        c.locals.append(logits)
    del logits
    c.tape.scope = ""
    out = head(c, block, own)
    if c.param("output_layer.weight").trainable and not c.options.mtp_detach_heads:
        _add_up(c, [out.node, *reversed(nodes)])
    return out


def _of_further(c: Context) -> Context:
    """The same tape for logits of further tokens, which have labels: their loss is a cross entropy of all at once."""
    options = replace(c.options, logprob_chunk_size=0)
    run = replace(c.run, options=options, loss=c.options.mtp_loss or c.run.loss)
    return _of_detached(replace(c, run=run))


def _of_detached(c: Context) -> Context:
    """The same tape with all parameters frozen where they are detached, else the same."""
    if not c.options.mtp_detach_heads:
        return c
    params = {name: replace(param, trainable=False) for name, param in c.run.params.items()}
    return replace(c, run=replace(c.run, params=params))


def _inner(c: Context) -> Context:
    """The same tape for the module's layer, whose parameters go by the names of a decoder's."""
    run: LayerWorkload = replace(c.run, params={name.removeprefix(_INNER): param for name,
                                                param in c.run.params.items()})
    return replace(c, run=run)


def _project(c: Context, block: Mtp, found: Tensor, x: Tensor) -> Tensor:
    """`_concat_embeddings`: both normed, side by side, projected to this rank's columns, then to this rank's tokens."""
    normed = norm(c, "enorm", found, "embedding_normed"), norm(c, "hnorm", x, "hidden_normed")
    projected = column(c, "eh_proj", _side_by_side(c, *normed))
    return _cut(c, _whole_columns(c, projected, block.hidden))


def _side_by_side(c: Context, first: Tensor, second: Tensor) -> Tensor:
    """`cat` of columns; the parts of its gradient are views, which the norms make contiguous.

    A frozen table and its norm ask for no gradient.
    """
    rows, columns = first.shape
    wanted = (("embedding_normed", first.node is not None), ("hidden_normed", second.node is not None))

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grads = [c.new(rows, columns, f"grad_{name}") if needed else None for name, needed in wanted]
        for grad in grads:
            if grad is not None:
                c.elementwise(grad, 2, Kernel.COPY)
        return grads

    out = c.new(rows, 2 * columns, "eh_proj.input")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, (first, second), (), back)
    return out


def _whole_columns(c: Context, x: Tensor, columns: int) -> Tensor:
    """`gather_from_tensor_model_parallel_region`: gathered behind each other, then side by side; back, a part."""
    if c.run.tp == 1:
        return x
    rows, own = x.shape
    gathered = c.new(rows * c.run.tp, own, "eh_proj.gathered")
    c.send("all_gather", "tp", gathered)
    out = c.new(rows, columns, "projected")
    c.elementwise(out, 2, Kernel.COPY)
    del gathered
    c.node(out, (x,), (), copied_gradient(c, x, "grad_eh_proj"))
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


def _joined(c: Context, parts: list[Tensor]) -> Tensor:
    """`cat` along the sequence; gradients are views of its own."""
    count, (rows, columns) = len(parts), parts[0].shape

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        return [Tensor(grads[0].storage, (rows, columns), c.dtype) for _ in range(count)]

    out = c.new(count * rows, columns, "joined")
    c.elementwise(out, 2, Kernel.COPY)
    c.node(out, parts, (), back)
    return out


def _parts(c: Context, x: Tensor, count: int) -> list[Tensor]:
    """`chunk`: views; their gradients are concatenated."""
    whole, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(whole, columns, "grad_joined")
        c.elementwise(grad, 2, Kernel.COPY)
        return [grad]

    views = [Tensor(x.storage, (whole // count, columns), x.dtype) for _ in range(count)]
    c.node(views[0], (x,), (), back)
    for place in range(1, count):
        views[place].node, views[place].output = views[0].node, place
    return views


def _scaled(c: Context, x: Tensor, losses: Tensor) -> Tensor:
    """`MTPLossAutoScaler`: hands `x` on, and the loss its gradient. The mask times the loss is kept (fp32 each)."""
    rows = losses.shape[0]

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [grads[0], c.new(rows, 1, "grad_loss", "fp32")]

    kept = [c.new(rows, 1, name, "fp32") for name in ("loss_mask", "scaled_loss")]
    out = Tensor(x.storage, x.shape, x.dtype)
    c.node(out, (x, losses), kept, back)
    return out


def _leave(c: Context, total: Tensor) -> None:
    """The sum waits for the lookups of a tied table, which are added to it in place."""
    c.tape.rename(total.storage, c.tape.slot(TIED_GRAD, "backward_temp"))
    total.disown()


def _add_up(c: Context, nodes: list[Node | None]) -> None:
    """Gradients of the output layer's weight, in the order of backward: the model's own logits come first.

    That gradient waits for the next; the sum of both is a new tensor, to which further ones are added.
    """
    weight, waiting, total = c.param("output_layer.weight"), list[Tensor | None](), list[Tensor]()

    def changed(once: Backward, *, place: int) -> Backward:
        def back(tape: Tape, grads: Grads, saved: Saved) -> list[Tensor | None]:
            grad, own = once(tape, grads, saved)
            if place == 0:
                waiting.append(own)
                return [grad, None]
            if place == 1:
                total.append(tape.empty(weight.shape, weight.dtype, "grad_sum"))
            c.elementwise(total[0], 5)
            waiting.clear()
            if place == len(nodes) - 1:
                _leave(c, total[0]) if weight.tied else None
                total.clear()
            del own
            return [grad, None]

        return back

    for place, node in enumerate(nodes):
        assert node is not None
        assert node.backward is not None
        node.backward = changed(node.backward, place=place)
