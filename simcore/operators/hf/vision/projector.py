"""Gemma 3's projector and what follows it in `Gemma3Model.forward` (transformers 5.23 `models/gemma3`).

The tower's output is kept with the projector's in `mm_encoder_outputs` until the model's forward is over, and so is the
mask of image tokens; the projected patches leave the model in its output (`image_hidden_states`), which a training loop
holds until backward is over. Behind them the model makes masks, positions and rotary tables for its layers.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.vision_blocks import Projector
from simcore.operators.hf.vision.part import Modules, ended, entered, merged
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import stream_dtype
from simcore.operators.shared.rms_norm import rms_norm_from_zero
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Tape, Tensor

__all__ = ["projector"]


def projector(tape: Tape, block: Projector, run: LayerWorkload, modules: Modules,
              make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of the projector: its output is the embedded sequence [batch, seq, hidden] with image tokens.

    `make_tables`: records what the model then makes for its layers.
    """
    patches, below = entered(tape, run, (run.images, block.patches, block.width), modules.norm_dtype or run.compute)
    features, behind = [_projected(tape, block, run, modules, patches)], [patches]
    del patches
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    out, leaf = merged(tape, block, run, held[0], features[0])
    make_tables()
    return ended(tape, run, modules, out, (below, leaf), behind=behind, held=held, features=features)


def _projected(tape: Tape, block: Projector, run: LayerWorkload, modules: Modules, patches: Tensor) -> Tensor:
    """`Gemma3MultiModalProjector`: means of squares of patches, [images, tokens, width], then a product."""
    tape.scope = "multi_modal_projector."
    columns = aten.contiguous(tape, patches, "contiguous")
    shape = (run.images, block.tokens, block.width)
    pooled = _averaged(tape, columns, shape)
    normed = rms_norm_from_zero(tape, run.params["mm_soft_emb_norm.weight"], pooled)
    # Means lie by columns: the product takes several images as one matrix, which is a copy.
    rows = normed if run.images == 1 else aten.contiguous(tape, normed, "by_rows")
    weight = aten.cast(tape, run.params["mm_input_projection_weight"], run.compute)  # by autocast, in one of fp32
    made = aten.product(tape, modules.narrowed(tape, run, rows), weight, (*shape[:2], block.hidden), block.width,
                        "projected")
    del weight
    made = aten.cast(tape, aten.cast(tape, made, patches.dtype), stream_dtype(run))
    tape.scope = ""
    return made


def _averaged(tape: Tape, x: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Means of squares of patches `x` (`avg_pool2d`), of `shape`; autograd saves what went in."""
    given, dtype = x.shape, x.dtype
    node = tape.node((x,), (x,), lambda tape, grads, saved: [aten.new(tape, given, dtype, "grad_avg_pool")])
    out = aten.new(tape, shape, dtype, "avg_pool", x.nbytes, flops=x.numel)
    out.node = node
    return out
