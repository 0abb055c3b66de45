"""Mistral 3's projector and what follows it in `Mistral3Model.forward` (transformers 5.23 `models/mistral3`).

LLaVA's is its MLP alone (`models/llava`). The projector is behind the tower, and trained where the tower is frozen. It
merges squares of patches of each image (`unfold`), whose columns are copied into one matrix. The last layer's output
and the tokens of images live until the model's forward is over; joined tokens leave the model in its output, which a
loop holds until backward is over. `unfold` and its gradient copy their argument first, which is no more in order (torch
2.13 `ATen/native/cuda/Im2Col.cu`, `Col2Im.cu`).
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.vision_blocks import RowProjector
from simcore.operators.hf.vision.part import Modules, ended, entered, merged, regrouped
from simcore.operators.hf.vision.rows import kept_by_graph, kept_by_rows
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, stream_dtype
from simcore.operators.shared.rms_norm import rms_norm
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Tape, Tensor

__all__ = ["drop_tower", "projected", "row_projector"]


def row_projector(tape: Tape, block: RowProjector, run: LayerWorkload, modules: Modules,
                  make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of the projector: its output is the embedded sequence [batch, seq, hidden] with image tokens.

    `make_tables`: records what the model then makes for its layers.
    """
    rows = run.images * block.patches
    patches, below = entered(tape, run, (1, rows, block.width), modules.stream or run.compute)
    drop_tower(tape, block, run, modules, rows)
    behind = [patches, projected(tape, block, run, modules, patches)]
    del patches
    features = [regrouped(tape, behind[1], "cat")]
    held = [aten.new(tape, (run.batch, run.seq), "uint8", "special_image_mask", 8 * run.tokens)]
    features.append(aten.cast(tape, features.pop(), stream_dtype(run)))
    out, leaf = merged(tape, block, run, held[0], features[0])
    make_tables()
    return ended(tape, run, modules, out, (below, leaf), behind=behind, held=held, features=features)


def drop_tower(tape: Tape, block: RowProjector, run: LayerWorkload, modules: Modules, rows: int) -> None:
    """Frees what the tower held: tables and a mask, and the inputs of its layers."""
    shape = (1, rows, block.width)
    kept = kept_by_graph(run) if run.input_requires_grad else ()
    stream = modules.stream or run.compute
    _inputs = [tape.external(shape, stream, HIDDEN, BEFORE - i) for i in range(1, block.layers + 1)
               if not (modules.is_replayed and kept)]
    specs = kept_by_rows(run, modules, (block.rows, block.columns), block.width, block.patch_rotary_dim)
    _kept = [tape.external(*spec, tape.slot(name, "activation"), 1 - block.below) for name, spec in specs.items()
             if name not in kept]


def projected(tape: Tape, block: RowProjector, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`Mistral3MultiModalProjector` or `LlavaMultiModalProjector`: [tokens of all images, hidden]."""
    tape.scope = "multi_modal_projector."
    if not block.plain:
        x = rms_norm(tape, run.params["norm.weight"], x, weight_in_fp32=False)
        x = _merged_squares(tape, block, run, modules, x)
    x = aten.gelu(tape, modules.linear(tape, run, "linear_1", x))
    x = modules.linear(tape, run, "linear_2", x)
    tape.scope = ""
    return x


def _merged_squares(tape: Tape, block: RowProjector, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
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
    made = modules.linear(tape, run, "patch_merger.merging_layer", squares)
    columns.clear()
    return made


def _unfolded(tape: Tape, block: RowProjector, dtype: str, name: str) -> Tensor:
    """Columns of the squares of an image, or the gradient that is put together of theirs."""
    _copy = aten.new(tape, (block.patches, block.width), dtype, f"{name}.contiguous", 0, Kernel.COPY)
    return aten.new(tape, (block.patches, block.width), dtype, name, _copy.nbytes)
