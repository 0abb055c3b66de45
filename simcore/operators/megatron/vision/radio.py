"""RADIO as Megatron-Core has it, and its place in Megatron-Bridge's `NemotronOmniModel`.

Megatron-LM d98e8a64 `core/models/vision/{radio,multimodal_projector}.py`, Megatron-Bridge 067f987d
`models/nemotron_omni/modeling_nemotron_omni.py`. All images of a microbatch are one row of tokens, each a sequence in
it, with ten learned tokens before its patches. Nothing of the tower is recomputed, whatever the decoder does
(`nemotron_omni_provider.py`, _build_vision_config). Its products and positions are never trained by recipes, which
freeze it, or give it adapters.

[Note: variables of RADIO's forward]
The sums of patches and positions, the sequence before learned tokens stand in it, and the first layer's input are named
until the tower returns (`radio.py:forward`, chunks, out and x).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.models.radio_blocks import RadioPatches, RadioProjector
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import act
from simcore.operators.megatron.ops.linear import norm_linear, row
from simcore.operators.megatron.vision.end import cut, of_this_rank, put
from simcore.operators.megatron.vision.tower import tower_context
from simcore.recording.layer import RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Section, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["radio_context", "radio_patches", "tokens_of_radio"]

_NAMED: Final = ("patches.chunks", "patches.placed")
"""Names of what lives from the patches to the end of the tower, beside hidden states."""


def radio_context(c: Context, patches: int) -> Context:
    """Context of the tower's parts; `patches`: of an image, with the learned tokens before them."""
    inner = tower_context(c, patches)
    return replace(inner, run=replace(inner.run, checkpoint="none"))


def radio_patches(c: Context, block: RadioPatches) -> RecordedLayer:
    """Recording of `RADIOViTModel` before its layers: [patches and learned tokens of the microbatch, width].

    Positions are interpolated in fp32 for each image, to a square as long as its longer side, and cut.
    """
    tape, inner = c.tape, radio_context(c, block.count + block.prefix)
    rows, pixels = c.run.images * block.count, block.pixels // block.count
    chunks = [_embedded(inner, block, rows, pixels)]
    chunks.append(inner.new(rows, block.width, _NAMED[0]))
    _positions(inner, block)
    chunks.pop(0)
    placed = inner.new(rows, block.width, _NAMED[1])
    out = inner.new(inner.tokens, block.width, "hidden_states")
    inner.elementwise(out, 8, Kernel.COPY, operators=4)  # two sequences are joined, from pieces
    for tensor in (chunks.pop(), placed):
        tensor.disown()
    del placed
    tape.rename(out.storage, HIDDEN)
    out.disown()
    return RecordedLayer(tape.cut(), Section(()))


def _embedded(c: Context, block: RadioPatches, rows: int, pixels: int) -> Tensor:
    """Patches times `embedder`, gathered over tp along their width, which copies."""
    weight, size = c.param("embedder.weight"), dtype_bytes(c.options.pixels)
    images = c.new(rows, pixels, "pixel_values")
    c.elementwise(images, 1 + size // c.size, Kernel.COPY)
    patches = [c.new(rows, pixels, "pixel_values.patches") for _ in range(2)]
    c.elementwise(images, 4, Kernel.COPY, operators=2)
    patches.pop(0)
    del images
    found = c.new(rows, weight.shape[0], "embedder")
    c.gemm(rows, weight.shape[0], pixels)
    if c.run.tp == 1:
        return found
    gathered = c.new(rows, block.width, "embedder.gathered")
    c.send("all_gather", "tp", gathered)
    del found
    out = c.new(rows, block.width, "embedder.whole")
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    return out


def _positions(c: Context, block: RadioPatches) -> None:
    """Learned positions in fp32, those of an image's square, and these in 16 bits; none is kept."""
    side = max(block.rows, block.columns)
    table = c.tape.empty((block.positions**2, block.width), "fp32", "positions.fp32")
    square = c.tape.empty((side**2, block.width), "fp32", "positions.square")
    for _ in range(c.run.images):
        c.elementwise(table, 2, operators=1)
        c.elementwise(square, 2, operators=1)
    del table
    _narrow = c.tape.empty((side**2, block.width), c.dtype, "positions.square_16")


def tokens_of_radio(c: Context, block: RadioProjector, x: list[Tensor], embedded: list[Tensor]) -> Tensor:
    """The sequence [local tokens, hidden] with image tokens; both lists are emptied.

    Of `x` [patches and learned tokens, width] and `embedded` [all tokens, hidden].
    """
    tape, rows = c.tape, c.run.images * block.patches
    named = [tape.external((rows, block.width), c.dtype, tape.slot(name, "activation"), -1 - block.depth)
             for name in _NAMED]
    if not c.run.input_requires_grad:  # else the first layer's backward frees its input
        named.append(tape.external(x[0].shape, c.dtype, HIDDEN, -block.depth - 1))
    named.clear()
    squares = _shuffled(c, block, x.pop())
    tokens = _projected(c, block, squares)
    del squares
    whole = _cloned(c, embedded.pop())
    filled = put(c, whole, tokens, views=False)
    del whole, tokens
    heard = _cloned(c, filled)  # tokens of sound are looked for in any case, and none is found
    del filled
    out = of_this_rank(c, heard)
    del heard
    return cut(c, out)


def _shuffled(c: Context, block: RadioProjector, x: Tensor) -> Tensor:
    """Squares of two by two patches [tokens of all images, merged * width], without learned tokens.

    `_pixel_shuffle_dynamic_resolution`: two copies an image, which are then joined.
    """
    whole, dtype = x.shape, c.dtype
    shape = (c.run.images * block.tokens, block.merged * block.width)

    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        turned = tape.empty(shape, dtype, "grad_squares")
        grads.clear()
        c.elementwise(turned, 4, Kernel.COPY, operators=2)
        grad = tape.empty(whole, dtype, "grad_features")
        c.elementwise(grad, 4, Kernel.COPY, operators=2)
        return [grad]

    turned = c.tape.empty(shape, dtype, "squares.turned")
    made = c.tape.empty(shape, dtype, "squares.of_images")
    del turned
    out = c.tape.empty(shape, dtype, "squares")
    c.elementwise(out, 6, Kernel.COPY, operators=3)
    c.node(out, (x,), (), back)
    del made
    return out


def _projected(c: Context, block: RadioProjector, squares: Tensor) -> Tensor:
    """`MultimodalProjector`: [tokens of all images, hidden], summed over tp."""
    inner = radio_context(c, block.tokens)
    made = norm_linear(inner, "encoder.linear_fc1", squares)
    return row(inner, "encoder.linear_fc2", act(inner, made, "encoder.activation", gated=False))


def _cloned(c: Context, x: Tensor) -> Tensor:
    """Copy of `x`, which gets the copy's gradient (`_merge_projected_media`)."""
    out = c.tape.empty(x.shape, c.dtype, "combined_embeddings")
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (x,), (), lambda tape, grads, saved: [grads[0]])
    return out
