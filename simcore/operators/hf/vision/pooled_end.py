"""The end of Gemma 4's tower, and what follows it in `Gemma4Model.forward` (transformers 5.23 `models/gemma4`).

Squares of patches are averaged by a product in fp32 with a matrix of zeros and ones, made of int64 (`one_hot`).
Averages of patches that fill an image up are left out. The others and their projection live until the model's forward
is over, as do the masks of tokens of images, of videos, of audio and of all three; joined tokens leave the model in its
output, which a loop holds until backward is over.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.pooled_blocks import PooledProjector
from simcore.operators.hf.vision.part import Modules, ended, merged, regrouped
from simcore.operators.hf.vision.pooled import kept_by_padding
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE
from simcore.operators.shared.rms_norm import rms_norm_by_power
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Tape, Tensor

__all__ = ["pooled_projector"]


def pooled_projector(tape: Tape, block: PooledProjector, run: LayerWorkload, modules: Modules,
                     make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of pooler and projector: the output is the embedded sequence [batch, seq, hidden] with image tokens.

    Attention of `modules` tells how wide the tower's mask is. `make_tables`: records what the model then makes for its
    layers.
    """
    behind = [_pooled(tape, block, run, modules)]
    behind.append(_projected(tape, run, modules, behind[0]))
    features = [regrouped(tape, behind[1], "cat")]
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    held += [aten.new(tape, (run.batch, run.seq), "uint8", "placeholder_mask") for _ in range(3)]
    out, leaf = merged(tape, block, run, held[0], features[0])
    if block.decoder.window == 1:  # which image a token belongs to
        held.append(aten.new(tape, (run.batch, run.seq), "int64", "block_sequence_ids"))
    if not block.precedes:
        make_tables()
    return ended(tape, run, modules, out, (None, leaf), behind=behind, held=held, features=features)


def _pooled(tape: Tape, block: PooledProjector, run: LayerWorkload, modules: Modules) -> Tensor:
    """Averages [tokens of all images, width] in the compute dtype; the tower frees what it held."""
    shape = (run.images, block.patches, block.width)
    patches = tape.external(shape, run.compute, HIDDEN, BEFORE)
    first = tape.external(shape, run.compute, HIDDEN, BEFORE - block.layers)
    specs = kept_by_padding(run, block.patches, block.patch_rotary_dim, modules.attention)
    kept = [tape.external(*spec, tape.slot(name, "activation"), 1 - block.below) for name, spec in specs.items()]
    del kept
    filled = aten.select(tape, patches, shape, run.compute, "masked_fill")
    means = _averaged(tape, block, run, filled)
    del filled
    scaled = aten.mul_scalar(tape, aten.cast(tape, means, "fp32"))
    del means
    found = aten.new(tape, (1, run.images * block.tokens, block.width), "fp32", "tokens", scaled.nbytes)
    del scaled
    if block.standardised:
        less = aten.mul_scalar(tape, found)
        found = aten.mul_scalar(tape, less)
        del less
    narrow = aten.cast(tape, found, run.compute)
    del found, patches, first
    return narrow


def _averaged(tape: Tape, block: PooledProjector, run: LayerWorkload, x: Tensor) -> Tensor:
    """`Gemma4VisionPooler._avg_pool_by_positions`: [images, padded tokens, width]."""
    tokens = block.patches // block.merged
    wide = (run.images, block.patches, tokens)
    weights = aten.select(tape, aten.new(tape, wide, "int64", "one_hot"), wide, "fp32", "one_hot")
    weights = aten.mul_scalar(tape, weights)
    upcast = aten.cast(tape, x, "fp32")
    means = aten.new(tape, (run.images, tokens, block.width), "fp32", "means", weights.nbytes + upcast.nbytes,
                     Kernel.GEMM, 2 * run.images * tokens * block.patches * block.width)
    del upcast
    _is_empty = aten.new(tape, wide, "uint8", "is_empty", weights.nbytes)
    del _is_empty
    return aten.cast(tape, means, run.compute)


def _projected(tape: Tape, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`Gemma4MultimodalEmbedder`: [tokens of all images, hidden]."""
    tape.scope = "embed_vision."
    made = modules.linear(tape, run, "embedding_projection", rms_norm_by_power(tape, None, x))
    tape.scope = ""
    return made
