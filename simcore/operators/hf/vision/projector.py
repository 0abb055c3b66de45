"""Gemma 3's projector and what follows it in `Gemma3Model.forward` (transformers 5.23 `models/gemma3`).

The tower's output is kept with the projector's in `mm_encoder_outputs` until the model's forward is over, and so is the
mask of image tokens; the projected patches leave the model in its output (`image_hidden_states`), which a training loop
holds until backward is over. Behind them the model makes masks, positions and rotary tables for its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simcore.models.vision_blocks import Projector, TowerEnd
from simcore.operators.hf.vision.scatter import masked_scatter
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, hand_on, nothing, run_backward, stream_dtype
from simcore.operators.shared.rms_norm import rms_norm_from_zero
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Tape, Tensor

__all__ = ["merged", "projector"]


def projector(tape: Tape, block: Projector, run: LayerWorkload, make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of the projector: its output is the embedded sequence [batch, seq, hidden] with image tokens.

    `make_tables`: records what the model then makes for its layers.
    """
    patches: Tensor | None = tape.external((run.images, block.patches, block.width), run.compute, HIDDEN, BEFORE)
    assert patches is not None
    features: Tensor | None = _projected(tape, block, run, patches)
    assert features is not None
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    out, leaf = merged(tape, block, run, held[0], features)
    make_tables()
    hand_on(tape, out)
    forward = tape.cut()
    patches = None
    held.clear()
    if run.no_grad:  # no backward pass follows, whose end drops the output
        features = None
    late = tape.cut()
    backward = run_backward(tape, out, leaf, nothing)
    made = RecordedLayer(forward, backward, late=late, grads=tape.release_grads())
    features = None
    return replace(made, release=tape.cut())


def _projected(tape: Tape, block: Projector, run: LayerWorkload, patches: Tensor) -> Tensor:
    """`Gemma3MultiModalProjector`: means of squares of patches, [images, tokens, width], then a product."""
    tape.scope = "multi_modal_projector."
    columns = aten.new(tape, patches.shape, patches.dtype, "contiguous", patches.nbytes, Kernel.COPY)
    shape = (run.images, block.tokens, block.width)
    pooled = aten.new(tape, shape, patches.dtype, "avg_pool", columns.nbytes, flops=columns.numel)
    normed = rms_norm_from_zero(tape, run.params["mm_soft_emb_norm.weight"], pooled)
    # Means lie by columns: the product takes several images as one matrix, which is a copy.
    rows = normed if run.images == 1 else aten.contiguous(tape, normed, "by_rows")
    made = aten.product(tape, rows, run.params["mm_input_projection_weight"], (*shape[:2], block.hidden),
                        block.width, "projected")
    tape.scope = ""
    return made


def merged(tape: Tape, block: TowerEnd, run: LayerWorkload, mask: Tensor,
            features: Tensor) -> tuple[Tensor, Node | None]:
    """(the sequence with image tokens, node of the embedding's output if it needs a gradient).

    `mask`: of image tokens, a byte each; `features`: the tokens of all images.
    """
    embedded = tape.external((run.batch, run.seq, block.hidden), stream_dtype(run), HIDDEN, -block.below)
    embedded.node = Node() if run.embedding_trains else None
    return masked_scatter(tape, embedded, mask, features), embedded.node
