"""Mistral 3's projector and what follows it in `Mistral3Model.forward` (transformers 5.23 `models/mistral3`).

The projector is behind the tower, and trained where the tower is frozen. It merges squares of patches of each image
(`unfold`), whose columns are copied into one matrix. The last layer's output and the tokens of images live until the
model's forward is over; joined tokens leave the model in its output, which a loop holds until backward is over.
`unfold` and its gradient copy their argument first, which is no more in order (torch 2.13 `ATen/native/cuda/Im2Col.cu`,
`Col2Im.cu`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simcore.models.vision_blocks import RowProjector
from simcore.operators.hf.vision.projector import merged
from simcore.operators.hf.vision.rows import kept_by_rows
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, hand_on, nothing, run_backward
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Tape, Tensor

__all__ = ["drop_tower", "projected", "row_projector"]


def row_projector(tape: Tape, block: RowProjector, run: LayerWorkload,
                  make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of the projector: its output is the embedded sequence [batch, seq, hidden] with image tokens.

    `make_tables`: records what the model then makes for its layers.
    """
    rows = run.images * block.patches
    patches: Tensor | None = tape.external((1, rows, block.width), run.compute, HIDDEN, BEFORE)
    assert patches is not None
    drop_tower(tape, block, run, rows)
    tokens: Tensor | None = projected(tape, block, run, patches)
    assert tokens is not None
    features: Tensor | None = _regrouped(tape, tokens)
    assert features is not None
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    out, leaf = merged(tape, block, run, held[0], features)
    make_tables()
    hand_on(tape, out)
    forward = tape.cut()
    patches = tokens = None
    held.clear()
    if run.no_grad:  # no backward pass follows, whose end drops the output
        features = None
    late = tape.cut()
    backward = run_backward(tape, out, leaf, nothing)
    made = RecordedLayer(forward, backward, late=late, grads=tape.release_grads())
    features = None
    return replace(made, release=tape.cut())


def drop_tower(tape: Tape, block: RowProjector, run: LayerWorkload, rows: int) -> None:
    """Frees what the tower held: tables and a mask, and the inputs of its layers."""
    shape = (1, rows, block.width)
    _inputs = [tape.external(shape, run.compute, HIDDEN, BEFORE - i) for i in range(1, block.layers + 1)]
    specs = kept_by_rows(run, (block.rows, block.columns), block.width, block.patch_rotary_dim)
    _kept = [tape.external(*spec, tape.slot(name, "activation"), 1 - block.below) for name, spec in specs.items()]


def projected(tape: Tape, block: RowProjector, run: LayerWorkload, x: Tensor) -> Tensor:
    """`Mistral3MultiModalProjector`: [tokens of all images, hidden]."""
    tape.scope = "multi_modal_projector."
    x = rms_norm(tape, run.params["norm.weight"], x, weight_in_fp32=False)
    x = _merged_squares(tape, block, run, x)
    x = aten.gelu(tape, aten.linear(tape, x, run.params["linear_1.weight"], "linear_1"))
    x = aten.linear(tape, x, run.params["linear_2.weight"], "linear_2")
    tape.scope = ""
    return x


def _merged_squares(tape: Tape, block: RowProjector, run: LayerWorkload, x: Tensor) -> Tensor:
    """`Mistral3PatchMerger`: squares of patches of each image as columns, which become the rows of one matrix."""
    whole, dtype, size = x.shape, x.dtype, x.nbytes
    columns = [_unfolded(tape, block, dtype, "unfold") for _ in range(run.images)]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        folded = [_unfolded(tape, block, dtype, "fold") for _ in range(run.images)]
        grads.clear()
        return [aten.new(tape, whole, dtype, "grad_split", size, Kernel.COPY) if folded else None]

    node = tape.node((x,), (), backward)
    squares = aten.new(tape, (1, run.images * block.tokens, block.merged * block.width), dtype, "squares", size,
                       Kernel.COPY)
    squares.node = node
    made = aten.linear(tape, squares, run.params["patch_merger.merging_layer.weight"], "merging_layer")
    columns.clear()
    return made


def _unfolded(tape: Tape, block: RowProjector, dtype: str, name: str) -> Tensor:
    """Columns of the squares of an image, or the gradient that is put together of theirs."""
    _copy = aten.new(tape, (block.patches, block.width), dtype, f"{name}.contiguous", 0, Kernel.COPY)
    return aten.new(tape, (block.patches, block.width), dtype, name, _copy.nbytes)


def _regrouped(tape: Tape, x: Tensor) -> Tensor:
    """Parts of `x` for each image, which are views of one, joined again: a copy, as is the gradient."""
    shape, dtype, size = x.shape, x.dtype, x.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, shape, dtype, "grad_split", size, Kernel.COPY)]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, shape, dtype, "cat", size, Kernel.COPY)
    out.node = node
    return out
