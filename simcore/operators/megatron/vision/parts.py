"""Recording of one part of a vision tower under Megatron-Core.

A part takes the output of the part below, or of the one below that where a merger of features stands between: both read
it, and the last of them to need it frees it. Gradients go the same way up to the embedding, whose own passes the tower
by, and down to the merger of features from its layer of the decoder.
"""

from __future__ import annotations

from simcore.errors import NotYet, Problem
from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.pooled_blocks import PooledLayer, PooledPatches, PooledProjector
from simcore.models.radio_blocks import RadioLayer, RadioPatches, RadioProjector
from simcore.models.vision_blocks import (
    GridLayer,
    GridPatches,
    Merger,
    Patches,
    Projector,
    RowLayer,
    RowPatches,
    RowProjector,
    SoundPart,
    TowerLayer,
    TowerNorm,
    VisionPart,
    WholePart,
)
from simcore.operators.hf.vision.part import PLAIN
from simcore.operators.hf.vision.parts import siglip_part
from simcore.operators.hf.vision.rows import row_layer, row_patches
from simcore.operators.megatron.ops.context import Context
from simcore.operators.megatron.vision.end import cut, with_image_tokens
from simcore.operators.megatron.vision.features import FEATURES, GRAD_FEATURES
from simcore.operators.megatron.vision.pooled import attention_biases
from simcore.operators.megatron.vision.radio import radio_context, radio_patches, tokens_of_radio
from simcore.operators.megatron.vision.tower import Attend, layer, patches, squares, tower_context
from simcore.operators.megatron.vision.whole import (
    patches_of_grid,
    record_grid_layer,
    tokens_of_grid,
    tokens_of_rows,
    tokens_of_squares,
)
from simcore.recording.layer import RecordedLayer
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Param, Tape, Tensor

__all__ = ["GRAD_EMBEDDED", "record_part"]

GRAD_EMBEDDED = "grad_embedded"
"""Name of the gradient of the embedding's output, from the end of the tower to the embedding."""
_Grads = list[Tensor]


def record_part(c: Context, block: VisionPart, attend: Attend) -> RecordedLayer:
    """Recording, forward and backward, of the part `block` of a tower; without gradients it keeps nothing.

    `attend`: see `tower.layer`.
    """
    match block:
        case PlacedPatches():
            return _recorded(c, patches(tower_context(c, block.count), block), [], [])
        case PlacedLayer():
            inner, caught = tower_context(c, block.patches), _Grads()
            x = _input(inner, block.down, block.width, caught)
            return _recorded(c, layer(inner, block, x[0], attend), x, caught)
        case DeepMerger():
            return _deep_merger(c, block)
        case PlacedMerger() | Merger() | RowProjector() | Projector() | RadioProjector():
            return _end(c, block)
        case RadioPatches():
            return _recorded(c, radio_patches(c, block), [], [])
        case RadioLayer():
            inner, caught = radio_context(c, block.patches), _Grads()
            x = _input(inner, 1, block.width, caught)
            if block.first and not any(param.trainable for param in c.run.params.values()):
                x[0].disown()  # the tower's caller holds it, see `tokens_of_radio`
            return _recorded(c, layer(inner, block, x[0], attend), x, caught)
    # Gemma 4's tower is no part of any model that Megatron builds
    assert not isinstance(block, PooledPatches | PooledLayer | PooledProjector)
    if isinstance(block, SoundPart):  # no sound is given
        return RecordedLayer(c.tape.cut(), c.tape.cut())
    if not isinstance(block, WholePart):
        raise NotYet(Problem("model", f"not yet: the vision tower of {c.kind.family} in the layers of megatron"))
    return _whole(c, block)


def _whole(c: Context, block: GridPatches | GridLayer | RowPatches | RowLayer | Patches | TowerLayer | TowerNorm,
           ) -> RecordedLayer:
    """A part that is transformers' own module."""
    match block:
        case GridPatches():
            return patches_of_grid(c, block)
        case GridLayer():
            return record_grid_layer(c, block)
        case RowPatches():
            return row_patches(c.tape, block, c.run, PLAIN)
        case RowLayer():
            return row_layer(c.tape, block, c.run, PLAIN)
        case Patches() | TowerLayer() | TowerNorm():
            return siglip_part(c.tape, block, c.run, PLAIN)


def _input(c: Context, down: int, width: int, caught: _Grads) -> _Grads:
    """[The output of the part `down` parts below]; behind a merger of features that keeps it, that frees it."""
    x = c.tape.external((c.tokens, width), c.dtype, HIDDEN, -down)
    if down > 1 and c.run.features_train:
        x.disown()
    if c.run.input_requires_grad:
        _catch(c, x, caught)
    return [x]


def _catch(c: Context, x: Tensor, caught: _Grads) -> None:
    def catch(_tape: Tape, grads: list[Tensor | None], _saved: list[Tensor]) -> list[Tensor | None]:
        caught.extend(grad for grad in grads if grad is not None)
        return [None]

    x.node = c.tape.node((Param("hidden_states", x.shape, x.dtype, trainable=True),), (), catch)


def _recorded(c: Context, out: Tensor, x: _Grads, caught: _Grads) -> RecordedLayer:
    tape = c.tape
    _hand_over(tape, out, HIDDEN)
    forward = tape.cut()
    x.clear()
    after = tape.cut()
    _backward(c, out, GRAD_HIDDEN, 1)
    _give_back(tape, caught, GRAD_HIDDEN)
    grads = tape.release_grads()
    return RecordedLayer(forward, tape.cut(), after, grads=grads)


def _backward(c: Context, out: Tensor, slot: int, above: int) -> None:
    """Runs backward from the gradient of `out`, which the layer `above` layers up has left in `slot`."""
    tape = c.tape
    tape.phase = "backward"
    if out.node is not None:
        tape.seed(out, tape.external(out.shape, out.dtype, slot, above))
        tape.backward()


def _give_back(tape: Tape, caught: _Grads, slot: int) -> None:
    for grad in caught:
        _hand_over(tape, grad, slot)
    caught.clear()


def _hand_over(tape: Tape, tensor: Tensor, slot: int) -> None:
    """The tensor crosses the part's border: it gets the border's name, and its death is posted by another layer."""
    assert tensor.storage is not None
    tape.rename(tensor.storage, slot)
    tensor.storage.num_bytes = 0


def _deep_merger(c: Context, block: DeepMerger) -> RecordedLayer:
    """Features for a layer of the decoder, of the output of the layer of the tower before."""
    tape, inner, caught = c.tape, tower_context(c, block.patches), _Grads()
    x = tape.external((inner.tokens, block.width), c.dtype, HIDDEN, -1)
    if not c.run.features_train:  # the next layer frees it
        x.disown()
    if c.run.input_requires_grad:
        _catch(c, x, caught)
    out = squares(inner, block, x)
    shape = x.shape
    del x
    _hand_over(tape, out, tape.slot(FEATURES, "activation"))
    forward = tape.cut()
    _backward(c, out, tape.slot(GRAD_FEATURES, "backward_temp"), block.ahead)
    if caught:  # the engine adds it to that of the layer behind
        caught[0] = tape.add_grads(tape.external(shape, c.dtype, GRAD_HIDDEN, 1), caught[0])
    _give_back(tape, caught, GRAD_HIDDEN)
    grads = tape.release_grads()
    return RecordedLayer(forward, tape.cut(), grads=grads)


def _end(c: Context, block: PlacedMerger | Merger | RowProjector | Projector | RadioProjector) -> RecordedLayer:
    """The last merger, whose output is the embedded sequence with image tokens: the first layer's input."""
    prefix = block.prefix if isinstance(block, RadioProjector) else 0
    tape, inner, caught, passed = c.tape, tower_context(c, block.patches + prefix), _Grads(), _Grads()
    x = _input(inner, block.down if isinstance(block, PlacedMerger) else 1, block.width, caught)
    embedded = [tape.external((c.tokens * c.run.cp, block.hidden), c.dtype, HIDDEN, -block.below)]
    if c.run.embedding_trains:
        _catch(c, embedded[0], passed)
    biases = list[Tensor]()
    if isinstance(block, PlacedMerger):
        out = with_image_tokens(c, block, x.pop(), embedded.pop())
        held = [tape.external((c.run.images * block.tokens, block.hidden), c.dtype,
                              tape.slot(FEATURES, "activation"), -down) for down in block.deep]
    elif isinstance(block, RadioProjector):
        out, held = tokens_of_radio(c, block, x, embedded)
    else:
        out, held = _with_tokens(c, block, x, embedded)
        if isinstance(block, Projector):
            biases = attention_biases(c)
        out = cut(c, out)
    _hand_over(tape, out, HIDDEN)
    if c.run.no_grad:
        biases.clear()
    forward = tape.cut()
    if c.run.checkpoint != "full" or c.run.no_grad or not isinstance(block, PlacedMerger):
        held.clear()  # else features are inputs of every replayed layer
    late = tape.cut()
    held.clear()
    biases.clear()  # the decoder's first layer was the last to read them
    _backward(c, out, GRAD_HIDDEN, 1)
    _give_back(tape, caught, GRAD_HIDDEN)
    _give_back(tape, passed, tape.slot(GRAD_EMBEDDED, "backward_temp"))
    grads = tape.release_grads()
    return RecordedLayer(forward, tape.cut(), late=late, grads=grads)


def _with_tokens(c: Context, block: Merger | RowProjector | Projector, x: _Grads,
                 embedded: _Grads) -> tuple[Tensor, list[Tensor]]:
    """(the embedded sequence with image tokens, what lives until the model's forward is over); both lists get empty."""
    match block:
        case Merger():
            return tokens_of_grid(c, block, x.pop(), embedded.pop())
        case RowProjector():
            return tokens_of_rows(c, block, x.pop(), embedded.pop())
        case Projector():
            return tokens_of_squares(c, block, x.pop(), embedded.pop())
