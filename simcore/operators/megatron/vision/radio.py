"""RADIO as Megatron-Core has it, and its place in Megatron-Bridge's `NemotronOmniModel`.

Megatron-LM d98e8a64 `core/models/vision/{radio,multimodal_projector}.py`, Megatron-Bridge 067f987d
`models/nemotron_omni/modeling_nemotron_omni.py`. All images of a microbatch are one row of tokens, each a sequence in
it, with learned tokens before its patches; tiles of Nemotron Nano 2 VL are a batch. Nothing of the tower is recomputed,
whatever the decoder does (`nemotron_omni_provider.py`, _build_vision_config).

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
from simcore.recording.tape import HIDDEN, Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["radio_context", "radio_patches", "tokens_of_radio"]

_NAMED: Final = ("patches.chunks", "patches.last", "patches.placed", "patches.positions")
"""Names of what lives from the patches to the end of the tower, beside hidden states: of tiles the last alone."""


def radio_context(c: Context, patches: int) -> Context:
    """Context of the tower's parts; `patches`: of an image, with the learned tokens before them."""
    inner = tower_context(c, patches)
    return replace(inner, run=replace(inner.run, checkpoint="none"))


def radio_patches(c: Context, block: RadioPatches) -> Tensor:
    """`RADIOViTModel` before its layers: [patches and learned tokens of the microbatch, width]."""
    inner = radio_context(c, block.count + block.prefix)
    return _of_tiles(inner, block) if block.tiles else _of_images(inner, block)


def _of_images(c: Context, block: RadioPatches) -> Tensor:
    """Images of any size: positions are interpolated for each, to a square as long as its longer side, and cut.

    Sums of an image's patches and positions are named until the tower returns, and so is what joins them.
    """
    count, images, width = block.count, c.run.images, block.width
    learned, before = c.param("position_embeddings"), c.param("class_token")
    found = [_embedded(c, block)]
    sums = _sums(c, block)
    placed = c.new(images * count, width, _NAMED[2])
    c.elementwise(placed, 2, Kernel.COPY, operators=1)

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        each = [_grad_of_interpolated(c, block) for _ in range(images)] if learned.trainable else []
        return [grads[0], *_grad_of_positions(c, block, each)]

    c.node(placed, (found.pop(), learned), (), back)
    out = c.new(c.tokens, width, "hidden_states")
    c.elementwise(out, 4, Kernel.COPY, operators=2)

    c.node(out, (placed, before), (), lambda tape, grads, saved: _parted(c, block, grads))
    for tensor in (*sums, placed):
        tensor.disown()
    return out


def _sums(c: Context, block: RadioPatches) -> list[Tensor]:
    """Sums of patches and positions of the images: of all but the last as one tensor, which lives beside the last's."""
    images, sums = c.run.images, list[Tensor]()
    for i in range(images):
        positions = _interpolated(c, block)
        if i and i == images - 1:
            sums.append(c.new(block.count, block.width, _NAMED[1]))
        elif not i:
            sums.append(c.new(block.count * max(images - 1, 1), block.width, _NAMED[0]))
        c.elementwise(positions, 3, operators=1)
        del positions
    return sums


def _parted(c: Context, block: RadioPatches, grads: Grads) -> list[Tensor | None]:
    """Gradient of joined sequences, of which each image's is put into zeros where there are several."""
    before, images = c.param("class_token"), c.run.images
    learns = c.small_grad(before)
    if images == 1:
        return [grads[0], learns]
    parts = [c.new(images * block.count, block.width, "grad_placed") for _ in range(2)]
    grads.clear()
    total = c.new(images * block.count, block.width, "grad_placed")
    c.elementwise(total, 2 * images, operators=2 * images)
    parts.clear()
    c.tape.empty(before.shape, c.dtype, "grad_class_token")  # each image's own, which is added to the first
    return [total, learns]


def _interpolated(c: Context, block: RadioPatches) -> Tensor:
    """Positions of an image's patches in 16 bits, interpolated in 32; a copy where columns are cut off."""
    side, tape = max(block.rows, block.columns), c.tape
    learned = tape.empty((block.positions**2, block.width), "fp32", "positions.fp32")
    square = tape.empty((side**2, block.width), "fp32", "positions.found")
    c.elementwise(learned, 2, operators=1)
    del learned
    found = tape.empty((side**2, block.width), c.dtype, "positions")
    c.elementwise(square, 3, operators=2)
    del square
    if block.columns == side:
        return found
    return tape.empty((block.count, block.width), c.dtype, "positions.cut")


def _grad_of_interpolated(c: Context, block: RadioPatches) -> Tensor:
    """Gradient of the learned positions of an image: of its square, then of all of them in 32 bits and in 16."""
    side, tape, shape = max(block.rows, block.columns), c.tape, (block.positions**2, block.width)
    cut_out = [tape.empty((side**2, block.width), c.dtype, "grad_positions.square")] if block.count < side**2 else []
    square = tape.empty((side**2, block.width), "fp32", "grad_positions.found")
    cut_out.clear()
    learned = tape.empty(shape, "fp32", "grad_positions.fp32")
    c.elementwise(learned, 2, operators=2)
    del square
    return tape.empty(shape, c.dtype, "grad_positions")


def _of_tiles(c: Context, block: RadioPatches) -> Tensor:
    """Tiles of one size: positions are sampled at random places, which keeps all learned ones in 32 bits for backward.

    Positions of all tiles are named until the tower returns (`radio.py:_get_pos_embeddings`).
    """
    tiles, width, tape = c.run.images, block.width, c.tape
    rows, whole = tiles * block.count, block.positions**2
    learned, before = c.param("position_embeddings"), c.param("class_token")
    found = [_embedded(c, block)]
    kept = [tape.empty((whole, width), "fp32", "positions.fp32")]
    sampled = tape.empty((rows, width), "fp32", "positions.found")
    c.elementwise(kept[0], 2, operators=1)
    if not learned.trainable:
        kept.clear()
    positions = c.new(rows, width, _NAMED[3])
    c.elementwise(sampled, 3, operators=6)
    del sampled
    placed = c.new(rows, width, "patches.placed")
    c.elementwise(placed, 3, operators=1)

    c.node(placed, (found.pop(), learned), kept, lambda tape, grads, saved: [
        grads[0], *_grad_of_positions(c, block, _grad_of_sampled(c, block, saved) if learned.trainable else [])])
    kept.clear()
    out = c.new(c.tokens, width, "hidden_states")
    c.elementwise(out, 4, Kernel.COPY, operators=2)
    c.node(out, (placed, before), (), lambda tape, grads, saved: [grads[0], c.small_grad(before)])
    del placed
    positions.disown()
    return _by_tokens(c, out) if tiles > 1 else out


def _grad_of_sampled(c: Context, block: RadioPatches, saved: Saved) -> list[Tensor]:
    """Gradient of the learned positions of tiles, in 32 bits for each, then their sum, and in 16; frees `saved`."""
    tape, tiles, whole = c.tape, c.run.images, block.positions**2
    of_patches = tape.empty((tiles * block.count, block.width), "fp32", "grad_positions.found")
    each = tape.empty((tiles * whole, block.width), "fp32", "grad_positions.sampled")
    c.elementwise(each, 2, operators=2)
    del of_patches
    saved.clear()
    if tiles > 1:
        total = tape.empty((whole, block.width), "fp32", "grad_positions.fp32")
        c.elementwise(total, 2 * tiles, operators=1)
        each = total
    return [tape.empty((whole, block.width), c.dtype, "grad_positions")]


def _grad_of_positions(c: Context, block: RadioPatches, made: list[Tensor]) -> list[Tensor | None]:
    """[the parameter's gradient], a turned copy of the sum of `made`, which is emptied; [None] without any."""
    if not made:
        return [None]
    if len(made) > 1:
        made[:] = [c.tape.empty((block.positions**2, block.width), c.dtype, "grad_positions")]
        c.elementwise(made[0], 2, operators=1)
    found = c.small_grad(c.param("position_embeddings"))
    made.clear()
    return [found]


def _by_tokens(c: Context, x: Tensor) -> Tensor:
    """Copy of `x` in the order of tokens before tiles, or back; the gradient is a view."""
    out = c.tape.empty(x.shape, c.dtype, "hidden_states")
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (x,), (), lambda tape, grads, saved: [grads[0]])
    return out


def _embedded(c: Context, block: RadioPatches) -> Tensor:
    """Patches times `embedder`, gathered over tp along their width, which copies; it keeps patches if it trains."""
    weight, size = c.param("embedder.weight"), dtype_bytes(c.options.pixels)
    rows, pixels = c.run.images * block.count, block.pixels // block.count
    images = c.new(rows, pixels, "pixel_values")
    c.elementwise(images, 1 + size // c.size, Kernel.COPY)
    patches = [c.new(rows, pixels, "pixel_values.patches") for _ in range(1 + (not block.tiles))]
    c.elementwise(images, 2 * len(patches), Kernel.COPY, operators=len(patches))
    del patches[1:], images

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        """Gradients of pixels, which core makes in any case and drops, and of the weight, both of a copy."""
        part = [c.new(rows, weight.shape[0], "grad_embedder")] if _copies(c, block) else []
        if c.run.tp > 1 or not block.tiles:
            grads.clear()
        dropped = c.new(rows, pixels, "grad_pixel_values")
        c.gemm(rows, pixels, weight.shape[0])
        if part and c.run.tp == 1 and block.tiles:
            part.clear()
            part.append(c.new(rows, weight.shape[0], "grad_embedder"))
        found = c.wgrad(weight, rows)
        part.clear()
        del dropped
        return [found]

    found = c.new(rows, weight.shape[0], "embedder")
    c.gemm(rows, weight.shape[0], pixels)
    if c.run.tp == 1:
        c.node(found, (weight,), patches, back)
        return found
    gathered = c.new(rows, block.width, "embedder.gathered")
    c.send("all_gather", "tp", gathered)
    del found
    out = c.new(rows, block.width, "embedder.whole")
    c.elementwise(out, 2, Kernel.COPY, operators=1)
    c.node(out, (weight,), patches, back)
    return out


def _copies(c: Context, block: RadioPatches) -> bool:
    """True where patches' gradient is copied before products: as a part of longer sequences, or of their width."""
    return c.run.tp > 1 or not block.tiles or c.run.images > 1


def tokens_of_radio(c: Context, block: RadioProjector, x: list[Tensor],
                    embedded: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """(the sequence [local tokens, hidden] with image tokens, what lives until the model's forward is over).

    Of `x` [patches and learned tokens, width] and `embedded` [all tokens, hidden]; both lists are emptied.
    """
    tape, rows = c.tape, c.run.images * block.patches
    named = [tape.external((rows, block.width), c.dtype, tape.slot(name, "activation"), -1 - block.depth)
             for name in (_NAMED[3:] if block.collapsed else _NAMED[2:3])]
    if not block.collapsed:
        of_last = block.patches if c.run.images > 1 else 0
        for name, count in ((_NAMED[0], rows - of_last), (_NAMED[1], of_last)):
            if count:
                named.append(tape.external((count, block.width), c.dtype, tape.slot(name, "activation"),
                                           -1 - block.depth))
    if not c.run.input_requires_grad:  # else the first layer's backward frees its input
        named.append(tape.external(x[0].shape, c.dtype, HIDDEN, -block.depth - 1))
    inner = radio_context(c, block.patches + block.prefix)
    features = _by_tokens(inner, x.pop()) if block.collapsed and c.run.images > 1 else x.pop()
    named.clear()
    squares = _shuffled(c, block, features)
    del features
    tokens = _projected(c, block, squares)
    del squares
    if block.collapsed:
        return _in_new_sequence(c, block, tokens, embedded.pop())
    whole = _cloned(c, embedded.pop())
    filled = put(c, whole, tokens, views=False)
    del whole, tokens
    heard = _cloned(c, filled)  # tokens of sound are looked for in any case, and none is found
    del filled
    out = of_this_rank(c, heard)
    del heard
    return cut(c, out), []


def _in_new_sequence(c: Context, block: RadioProjector, tokens: Tensor,
                     embedded: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The same of core's `LLaVAModel`: text and tokens of images are written into zeros (`_preprocess_data`).

    Megatron-LM d98e8a64 `core/models/multimodal/llava_model.py`. An image is one token of the text, which is embedded
    without those that come in its place: here the embedding's output is as long as the sequence. It and the tokens of
    images are named until the model's forward is over.
    """
    shape, given, size = embedded.shape, tokens.shape, embedded.shape[0] - tokens.shape[0]
    text_trains, tokens_train = embedded.node is not None, tokens.node is not None

    def back(tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        """Gradients of both writes: a copy without the images' rows, which are selected; the text's, into zeros."""
        zeros = [tape.empty(given, c.dtype, "grad_zeros")]
        rest = tape.empty(shape, c.dtype, "grad_final_embedding")
        zeros.clear()
        values = tape.empty(given, c.dtype, "grad_image_embeddings") if tokens_train else None
        grads.clear()
        if not text_trains:
            return [None, values]
        text = tape.empty((max(size, 1), shape[1]), c.dtype, "grad_text_embeddings")
        del rest
        zeros.append(tape.empty(shape, c.dtype, "grad_zeros"))
        put_back = tape.empty(shape, c.dtype, "grad_language_embeddings")
        c.elementwise(put_back, 8, Kernel.PERMUTE, operators=5)
        del text
        zeros.clear()
        return [put_back, values]

    out = c.tape.empty(shape, c.dtype, "final_embedding")
    text = c.tape.empty((max(size, 1), shape[1]), c.dtype, "text_embeddings")
    joined = [c.tape.empty(given, c.dtype, "image_embeddings.joined")] if c.run.images > 1 else []
    c.elementwise(out, 6, Kernel.PERMUTE, operators=4)
    del text, joined
    c.node(out, (embedded, tokens), (), back)
    whole = _by_tokens(c, out) if c.run.batch > 1 else out
    del out
    return cut(c, whole), [embedded, tokens]


def _shuffled(c: Context, block: RadioProjector, x: Tensor) -> Tensor:
    """Squares of two by two patches [tokens of all images, merged * width], without learned tokens.

    `_pixel_shuffle_dynamic_resolution`: two copies an image, which are then joined; `pixel_shuffle` of all tiles is
    turned in one more copy if there are several.
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
    if block.collapsed and c.run.images == 1:
        c.elementwise(made, 4, Kernel.COPY, operators=2)
        c.node(made, (x,), (), back)
        return made
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
