"""End of Qwen 2.5 VL's tower, and what follows it in `Qwen2_5_VLModel.forward` (transformers 5.23 `models/qwen2_5_vl`).

The tower's output, the tokens of each image, and masks of image and video tokens live until the model's forward is
over; tokens are split by images and joined again, which is a copy. Behind them the model makes positions and rotary
tables for its layers. The merger is a module of the tower, and frozen with it.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.vision_blocks import Merger
from simcore.operators.hf.vision.grid import in_order, kept_by_tower, until_backward, until_return
from simcore.operators.hf.vision.part import Modules, end, entered, layer_norm, merged, normed, regrouped
from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import hand_on
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["merger", "tokens_of"]


def merger(tape: Tape, block: Merger, run: LayerWorkload, modules: Modules,
           make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of the merger: its output is the embedded sequence [batch, seq, hidden] with image tokens.

    `make_tables`: records what the model then makes for its layers.
    """
    rows = run.images * block.patches
    patches: Tensor | None
    patches, below = entered(tape, run, (1, rows, block.width), "fp32" if modules.is_wide else run.compute)
    merged_by = 0 if block.plain else block.merged
    specs = kept_by_tower(run, rows, block.patch_rotary_dim, merged_by, run.images * block.pixels)
    of_tower = {name: tape.external(*spec, tape.slot(name, "activation"), 1 - block.below)
                for name, spec in specs.items()
                if not (below and name in until_backward(run, trains=run.params["ln_q.weight"].trainable))}
    held = [of_tower.pop(name) for name in (until_return(run),) if name in of_tower]
    tokens = [tokens_of(tape, block, run, modules, patches)]
    of_tower.clear()
    tokens.append(regrouped(tape, tokens[0], "image_embeds"))
    masks = [aten.new(tape, (run.batch, run.seq), "uint8", name, 8 * run.tokens)
             for name in ("image_mask", "video_mask")]
    out, leaf = merged(tape, block, run, masks[0], tokens[1])
    make_tables()
    hand_on(tape, out)
    forward = tape.cut()
    patches = None
    tokens.clear()
    masks.clear()
    late = tape.cut()
    held.clear()
    dropped = tape.cut()
    return RecordedLayer(forward, end(tape, out, below, leaf), late=late, grads=tape.release_grads(), casts=dropped)


def tokens_of(tape: Tape, block: Merger, run: LayerWorkload, modules: Modules, x: Tensor) -> Tensor:
    """`Qwen2_5_VLPatchMerger` of patches `x`, then tokens in the order of the image: [tokens of all images, hidden].

    Without windows they are in it, behind `PatchMerger` of Qwen 2 VL.
    """
    count = run.images * block.tokens
    if block.plain:
        flat = layer_norm(tape, run, modules, "ln_q.", x).view(1, count, block.merged * block.width)
        tape.scope = "mlp."
        tokens = modules.linear(tape, run, "mlp.2", aten.gelu(tape, modules.linear(tape, run, "mlp.0", flat)))
        tape.scope = ""
        return tokens.view(count, block.hidden)
    values = aten.new(tape, (count,), "int64", "window_index.sorted", 8 * count, Kernel.PERMUTE)
    order = tape.empty((count,), "int64", "window_index.order")
    del values
    squares = normed(tape, run, "ln_q", x).view(1, count, block.merged * block.width)
    squares = aten.cast(tape, squares, run.compute) if modules.is_wide else squares
    tape.scope = "mlp."
    made = modules.linear(tape, run, "mlp.2", aten.gelu(tape, modules.linear(tape, run, "mlp.0", squares)))
    del squares
    tape.scope = ""
    return in_order(tape, made.view(count, block.hidden), "in_order", made.nbytes + order.nbytes, order)
