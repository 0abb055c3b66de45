"""Multi-token prediction of NeMo Automodel's Nemotron-H, from the final norm's output to losses of further tokens.

nemo-automodel 0.7.0 `components/models/nemotron_v3/{model,mtp}.py`, `components/models/common/mtp/mtp.py`,
`components/loss/mtp.py`. Layers behind the head look tokens up in the model's table and run its head again. Which
units they are: `frameworks/automodel/units.py`.

[Note: order of a step with further tokens]
Upstream runs the model's head, then the module, then the loss of the next token, then head and loss of each further
one; backward runs all that in reverse. Here the module is a layer behind the head, with its own losses, and the model's
loss comes last: as losses of all tokens are of one size, as much is there at each moment. Logits of the next token pass
this layer by, and their gradient waits while its backward runs, as upstream. The last further token's logits stay until
the model's loss is there, in the place of those that upstream still names then. A frozen head's inputs, which upstream
names until all losses are there, are left out while the model's loss runs.

[Note: what is used several times]
Of several uses of a weight in one backward the first gradient waits for the second; autograd adds both into a new
tensor (measured). So the gradients of head and embedding wait here for the model's own; with a module that runs several
times, those of its own layers wait for its first run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simcore.models.blocks import Head, LayerKind, Loss, Moe, Mtp
from simcore.operators.automodel.dense import dense_norm
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.head import LINEAR_LOSSES, head, loss
from simcore.operators.automodel.layers import column
from simcore.operators.automodel.qwen3_5 import further_layer
from simcore.operators.automodel.sparse import QWEN3_5
from simcore.operators.automodel.tensors import layer_of, layers_of_further, moves_stem
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import AFTER, BEFORE, TIED_HEAD
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Tape, Tensor

__all__ = ["meet_further", "predicted_logits", "predictions", "with_further"]

_TABLE: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head."
_HEAD_GRAD: Final = "further."
"""Front of the names of the head's gradients that wait for the model's own use of it."""
_HIDDEN_GRAD: Final = "further.grad_hidden"
_STEM_GRAD: Final = "further.grad_stem"
"""Gradient of the sequence's embeddings that waits for the model's own."""
_LOGITS: Final = "further.logits"
Layer = Callable[[Env, LayerKind, Tensor], Tensor]


def predictions(env: Env, kind: LayerKind, block: Mtp, layer: Layer) -> RecordedLayer:
    """Recording of the module `block`; `layer` runs one of its layers, a kind without a block.

    What passes it by is a scalar where the loss is computed of the hidden state, else the logits of the next token.
    """
    tape, run = env.tape, env.run
    passing = tape.external(*_passing(run, block), HIDDEN, BEFORE)
    x: Tensor | None = _given(env, block)
    assert x is not None
    leaf = x.node
    stem = Node() if moves_stem(kind) and env.options.trains_stem else None
    made = _run(env, kind, block, x, layer, stem)
    losses = _losses(env, block, made)
    made.clear()
    x = None
    del passing
    _pass_on(env, block, HIDDEN)
    forward = tape.cut()
    tape.phase = "backward"
    trained = leaf is not None or _trains_head(run)
    waiting = tape.external(*_passing(run, block), GRAD_HIDDEN, AFTER) if trained else None
    for value in losses:
        tape.seed(value, tape.empty((), "fp32", "grad_loss"))
    tape.backward()
    losses.clear()
    _leave(tape, leaf)
    _leave_stem(tape, stem)
    del waiting
    if trained:
        _pass_on(env, block, GRAD_HIDDEN)
    return RecordedLayer(forward, tape.cut(), grads=tape.release_grads())


def _passing(run: LayerWorkload, block: Mtp) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the head's output."""
    return ((), "fp32") if run.loss in LINEAR_LOSSES else ((run.batch, run.seq, block.vocab), run.compute)


def _pass_on(env: Env, block: Mtp, slot: int) -> None:
    """Makes for the next layer what passed by, in the moment in which the neighbour's was freed."""
    out = env.tape.empty(*_passing(env.run, block), "passing")
    env.tape.rename(out.storage, slot)
    out.disown()


def _trains_head(run: LayerWorkload) -> bool:
    return any(param.trainable for name, param in run.params.items() if name.startswith(_HEAD))


def _given(env: Env, block: Mtp) -> Tensor:
    """The final norm's output: a head that is trained keeps it, else it is kept here alone."""
    run, shape = env.run, (env.run.batch, env.run.seq, block.hidden)
    kept = run.params["lm_head.weight"].trainable or "lm_head.lora_A.weight" in run.params
    x = Tensor(None, shape, run.compute) if kept else env.tape.empty(shape, run.compute, "final_hidden")
    x.node = Node() if run.input_requires_grad else None
    return x


# ---- forward ----------------------------------------------------------------------------------------------------
def _run(env: Env, kind: LayerKind, block: Mtp, x: Tensor, layer: Layer, stem: Node | None) -> list[Tensor]:
    """Hidden states of all further tokens; the module is given the tokens moved by one, then by two.

    `stem`: takes the gradient of the sequence's embeddings, if they are what is moved.
    """
    made, layers = [], layers_of_further(kind)
    _tokens, _places = _looked_up(env, kind)
    for depth in range(block.depths):
        found = _moved(env, block, stem) if moves_stem(kind) else aten.embedding(
            env.tape, env.param(_TABLE), env.run.batch, env.run.seq)
        for place, branches in enumerate(layers):
            inner = _inner(env, block, place, depth)
            x = _layer(inner, replace(kind, block=None, branches=branches), x, None if place else found, layer,
                       once=block.depths == 1, last=place == len(layers) - 1)
        made.append(x)
    return made


def _moved(env: Env, block: Mtp, stem: Node | None) -> Tensor:
    """The sequence's embeddings moved by one (`roll_tensor`): a copy, then another whose end is zeros.

    `stem`: the node that takes their gradient, if any.
    """
    tape, out = env.tape, Tensor(None, (env.run.batch, env.run.seq, block.hidden), env.run.compute, stem)
    shape, dtype, moved = out.shape, out.dtype, out.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, shape, dtype, _STEM_GRAD, moved)]

    for name in ("rolled", "moved"):
        node = tape.node((out,), (), backward) if stem else None
        out = aten.new(tape, shape, dtype, name, moved)
        out.node = node
    return out


def _looked_up(env: Env, kind: LayerKind) -> tuple[Tensor | None, Tensor | None]:
    """Tensors that Qwen 3.5 makes first: tokens looked up again, for their shape alone, and moved positions."""
    if kind.family not in QWEN3_5 or moves_stem(kind):
        return None, None
    run = env.run
    tokens = aten.embedding(env.tape, env.param(_TABLE), run.batch, run.seq)
    return tokens, env.tape.empty((3, run.batch, run.seq), "int64", "further.positions")


def _inner(env: Env, block: Mtp, place: int, depth: int) -> Env:
    """The same tape for a layer, whose parameters go by the names of the model's own layers."""
    at = layer_of(place)
    params = {name.removeprefix(at): replace(param, tied=block.depths > 1) for name, param in env.run.params.items()
              if name.startswith(at)}
    return replace(env, run=replace(env.run, params=params), cache=None, held=[], begins=depth == 0,
                   ends=depth == block.depths - 1)


def _layer(env: Env, kind: LayerKind, x: Tensor, found: Tensor | None, layer: Layer, *, once: bool,
           last: bool) -> Tensor:
    """One layer with what its forward does before and behind.

    A checkpoint has both in it; experts that run several times are not replayed (`apply_ac`,
    _repeated_mtp_moe_block_ids), nor is anything without expert parallelism.
    """
    def whole() -> Tensor:
        given, held = _fused(env, kind, found, x) if found is not None else (x, ())
        out = further_layer(env, kind, given) if kind.family == QWEN3_5[0] else layer(env, kind, given)
        del given
        out = dense_norm(env, out, "final_layernorm", kind.family) if last else out
        del held
        return out

    has_experts = any(isinstance(branch.block, Moe) for branch in kind.branches)
    if env.run.checkpoint != "full" or env.run.ep == 1 or (has_experts and not once):
        return whole()
    env.cache = {} if env.options.keeps_router else None
    return env.tape.checkpoint(whole)


def _fused(env: Env, kind: LayerKind, found: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Both normed, side by side, projected; and both, which the layer names until it returns."""
    both = dense_norm(env, found, "enorm", kind.family), dense_norm(env, x, "hnorm", kind.family)
    return column(env, aten.cat(env.tape, *both), "eh_proj"), both


def _losses(env: Env, block: Mtp, made: list[Tensor]) -> list[Tensor]:
    """Loss of each further token. Logits go when it is there, but for the last, see [Note: order of a step]."""
    found = []
    for x in made:
        logits = head(env, x, Head(block.vocab, block.hidden))
        if env.run.loss in LINEAR_LOSSES:
            found.append(logits)
            continue
        found.append(loss(env, logits, Loss(block.vocab)))
        if x is made[-1]:
            env.tape.rename(logits.storage, env.tape.slot(_LOGITS, "activation"))
            logits.disown()
        del logits
    return found


def predicted_logits(tape: Tape, run: LayerWorkload, vocab: int) -> Tensor:
    """The last further token's logits, which go when the model's own loss is there."""
    return tape.external((run.batch, run.seq, vocab), run.compute, tape.slot(_LOGITS, "activation"), BEFORE)


# ---- backward ---------------------------------------------------------------------------------------------------
def _leave(tape: Tape, leaf: Node | None) -> None:
    """Leaves gradients that wait for the model's own, and hands over those of the module's layers."""
    grads, tape.grads = tape.grads, []
    while grads:
        param, grad = grads.pop(0)
        if param.name == _TABLE:  # the embedding meets it as it meets a tied head's, in the head's name
            tape.rename(grad.storage, tape.slot("tied.grad", "backward_temp"))
            assert grad.storage is not None
            birth = grad.storage.birth
            tape.rows[birth] = (tape.rows[birth][0], BEFORE, *tape.rows[birth][2:])
            grad.disown()
        elif param.name.startswith(_HEAD):
            tape.rename(grad.storage, tape.slot(f"{_HEAD_GRAD}{param.name}", "backward_temp"))
            grad.disown()
        else:
            tape.give_param(replace(param, tied=False), grad)
    if leaf is not None and leaf.grads:
        grad = leaf.grads.pop(0)
        tape.rename(grad.storage, tape.slot(_HIDDEN_GRAD, "backward_temp"))
        grad.disown()


def _leave_stem(tape: Tape, stem: Node | None) -> None:
    """Leaves the gradient of the sequence's embeddings, in the head's name, until the embedding meets it."""
    if stem is None or not stem.grads:
        return
    grad = stem.grads.pop(0)
    tape.rename(grad.storage, tape.slot(_STEM_GRAD, "backward_temp"))
    assert grad.storage is not None
    birth = grad.storage.birth
    tape.rows[birth] = (tape.rows[birth][0], BEFORE, *tape.rows[birth][2:])
    grad.disown()


def with_further(env: Env, grad: Tensor) -> Tensor:
    """The gradient of the embedding's output, to which what `_leave_stem` left is added.

    Upstream adds both before the features of images are taken out of it.
    """
    if not env.options.trains_stem:
        return grad
    slot = env.tape.slot(_STEM_GRAD, "backward_temp")
    return env.tape.add_grads(env.tape.external(grad.shape, grad.dtype, slot, TIED_HEAD), grad)


def meet_further(tape: Tape, leaf: Node | None) -> None:
    """Adds, in the head's backward, what further tokens left for its weights and for its input."""
    grads, tape.grads = tape.grads, []
    while grads:
        param, grad = grads.pop(0)
        slot = tape.slot(f"{_HEAD_GRAD}{param.name}", "backward_temp")
        total = tape.add_grads(tape.external(grad.shape, grad.dtype, slot, AFTER), grad)
        del grad
        tape.give_param(replace(param, tied=False), total)
    if leaf is not None and leaf.grads:
        own = leaf.grads.pop(0)
        waiting = tape.external(own.shape, own.dtype, tape.slot(_HIDDEN_GRAD, "backward_temp"), AFTER)
        leaf.grads[0] = tape.add_grads(waiting, own)
