"""Tower of Qwen 3 VL under eager PyTorch: patches with learned positions, layers, mergers (`models/qwen3_vl`).

The patches of all images of a microbatch are one sequence. The tower is frozen: see `parts`. Features of some of its
layers go to layers of the decoder (`deepstack`); they and their copies live until the model's forward is over.

[Note: features of packs]
nemo-automodel 0.7.0 `models/qwen3_vl/model.py`, whose own forward takes packs: the tower's output is not parted by
images, and gone with one of two masks when its tokens are in their places. _shard_multimodal_inputs_for_cp then puts
features into zeros of whole sequences, all of them, before it takes them out again, on one rank too.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.operators.hf.vision.grid import TABLES, attention_of_parts, tables_of_patches
from simcore.operators.hf.vision.part import (
    Modules,
    end,
    entered,
    front,
    layer_norm,
    merged,
    regrouped,
    tower_layer,
)
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.operators.shared.layer_borders import BEFORE, hand_on
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Node, Section, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["deep_merger", "placed_layer", "placed_merger", "placed_patches"]

_Spec = tuple[tuple[int, ...], str]
_COPY, _TAPS = "pixel_values.to", 4
_FEATURES = "deepstack_features"
_DIFFERENTIATED = (_COPY, "patches.indices", "patches.weights", *TABLES)
"""Tensors of `_kept` that a trained tower keeps for its backward."""


def _kept(run: LayerWorkload, patches: int, width: int, dim: int, pixels: int) -> dict[str, _Spec]:
    """(shape, dtype) by name of what lives from the patches to the end of the tower, beside hidden states.

    `patches`, `pixels`: of all images; `width`: elements of a patch; `dim`: elements of a head.
    """
    table: _Spec = ((1, patches, 1, dim), "fp32")
    copies: dict[str, _Spec] = {} if run.options.pixels == run.compute else {_COPY: ((pixels,), run.compute)}
    return {**copies, "patches.indices": ((patches, _TAPS), "int64"), "patches.weights": ((patches, _TAPS), "fp32"),
            "patches.positions": ((patches, 2), "int64"), "patches.placed": ((patches, width), "fp32"),
            "patches.cos": table, "patches.sin": table}


def placed_patches(tape: Tape, block: PlacedPatches, run: LayerWorkload) -> RecordedLayer:
    """Front of `Qwen3VLVisionModel.forward`: four learned positions are weighed for each patch, in fp32."""
    rows, pixels, width = run.images * block.count, run.images * block.pixels, block.width
    specs, weight = _kept(run, rows, width, block.rotary_dim, pixels), run.params["patch_embed.proj.weight"]
    given = pixels * dtype_bytes(run.options.pixels)
    made = {name: aten.new(tape, *specs[name], name, given) for name in specs if name == _COPY}
    made |= {name: aten.new(tape, *specs[name], name) for name in (
        "patches.indices", "patches.weights", "patches.positions")}
    found = aten.new(tape, (rows, width), run.compute, "patch_embed", 2 * pixels + weight.nbytes, Kernel.GEMM,
                     2 * rows * weight.numel)
    node = found.node = _convolved(tape, run, made.get(_COPY), 2 * rows * weight.numel)
    made["patches.placed"] = _placed(tape, run, rows, width)
    narrow = aten.cast(tape, made["patches.placed"], run.compute)
    out = aten.add(tape, found, narrow, "embeddings")
    del found, narrow
    positions = made["patches.positions"]
    made["patches.cos"], made["patches.sin"] = tables_of_patches(tape, rows, block.rotary_dim, positions)
    del positions
    return front(tape, out, made, node, tuple(name for name in _DIFFERENTIATED if name in made))


def _convolved(tape: Tape, run: LayerWorkload, pixels: Tensor | None, flops: int) -> Node | None:
    """Node of the product of patches; images get no gradient. `pixels`: those in 16 bits, None if they came so."""
    weight, bias = run.params["patch_embed.proj.weight"], run.params["patch_embed.proj.bias"]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_weight = aten.new(tape, weight.shape, weight.dtype, "grad_patch_embed", weight.nbytes, Kernel.GEMM, flops)
        return [to_weight, aten.new(tape, bias.shape, bias.dtype, "grad_patch_embed.bias")]

    return tape.node((weight, bias), (pixels,), backward)


def _placed(tape: Tape, run: LayerWorkload, rows: int, width: int) -> Tensor:
    """Sums of four learned positions for each patch, by its weights, in fp32; their numbers and weights are kept."""
    table, shape = run.params["pos_embed.weight"], (rows, _TAPS, width)

    def to_table(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [aten.new(tape, table.shape, table.dtype, "grad_pos_embed", rows * _TAPS * width * 2)]

    def to_taps(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        wide = aten.new(tape, shape, "fp32", "grad_pos_embeds", rows * width * 4)
        grads.clear()
        return [aten.new(tape, shape, run.compute, "grad_pos_embeds", wide.nbytes, Kernel.COPY)]

    taken = tape.node((table,), (), to_table)
    taps = aten.new(tape, shape, run.compute, "pos_embed", rows * _TAPS * width * 2, Kernel.PERMUTE, 0)
    taps.node = taken
    summed = tape.node((taps,), (), to_taps)
    weighed = aten.new(tape, shape, "fp32", "pos_embed.weighed", taps.nbytes)
    del taps
    out = aten.new(tape, (rows, width), "fp32", "pos_embeds", weighed.nbytes, flops=weighed.numel)
    out.node = summed
    return out


def placed_layer(tape: Tape, block: PlacedLayer, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`Qwen3VLVisionBlock`; its caller holds the input until it has returned."""
    table = (1, run.images * block.patches, 1, block.head_dim)

    def body(x: Tensor) -> Tensor:
        _tables = [aten.new(tape, table, run.compute, f"{name}.to") for name in TABLES if modules.is_cast]
        made = attention_of_parts(tape, (block.patches,), block.num_heads, run, modules,
                                  layer_norm(tape, run, modules, "norm1.", x))
        residual = aten.add(tape, x, made, "residual")
        del made
        made = _mlp(tape, run, modules, "mlp.", aten.gelu, layer_norm(tape, run, modules, "norm2.", residual))
        return aten.add(tape, residual, made, "residual")

    return tower_layer(tape, run, modules, (1, run.images * block.patches, block.width), body, down=-block.down)


def _mlp(tape: Tape, run: LayerWorkload, modules: Modules, at: str, activate: Callable[[Tape, Tensor], Tensor],
         x: Tensor) -> Tensor:
    """Two linears `linear_fc1` and `linear_fc2` in the module `at` ("" or with a dot at the end)."""
    tape.scope = at
    return modules.linear(tape, run, f"{at}linear_fc2", activate(tape, modules.linear(tape, run, f"{at}linear_fc1", x)))


def deep_merger(tape: Tape, block: DeepMerger, run: LayerWorkload, modules: Modules) -> RecordedLayer:
    """`Qwen3VLVisionPatchMerger` of squares; the next layer of the tower takes in what this one takes in."""
    rows = run.images * block.tokens
    hidden = tape.external((1, run.images * block.patches, block.width), run.compute, HIDDEN, BEFORE)
    hidden.disown()
    squares = hidden.view(1, rows, block.merged * block.width)
    made = _mlp(tape, run, modules, "", aten.gelu, layer_norm(tape, run, modules, "norm.", squares))
    tape.rename(made.storage, tape.slot(_FEATURES, "activation"))
    made.disown()
    return RecordedLayer(tape.cut(), Section(()))


def placed_merger(tape: Tape, block: PlacedMerger, run: LayerWorkload, modules: Modules,
                  make_tables: Callable[[], None]) -> RecordedLayer:
    """Recording of the last merger: its output is the embedded sequence [batch, seq, hidden] with image tokens.

    `make_tables`: records what the model then makes for its layers.
    """
    rows = run.images * block.patches
    patches: Tensor | None
    patches, below = entered(tape, run, (1, rows, block.width), run.compute, -block.down)
    tokens = [_tokens(tape, block, run, modules, patches, rows)]
    if not modules.is_packed:
        tokens.append(regrouped(tape, tokens[0], "image_embeds"))
    masks = [aten.new(tape, (run.batch, run.seq), "uint8", name, 8 * run.tokens)
             for name in ("image_mask", "video_mask")]
    pixels = [tape.external((run.images * block.pixels,), run.compute, tape.slot(_COPY, "activation"), 1 - block.below)
              for _ in range(modules.is_cast and run.options.pixels != run.compute)]
    out, leaf = merged(tape, block, run, masks[0], tokens[-1])
    deep = [tape.external(tokens[0].shape, run.compute, tape.slot(_FEATURES, "activation"), -down)
            for down in block.deep]
    if modules.is_packed:
        patches = None
        tokens.clear()
        masks.pop()
        deep = _spread(tape, run, deep)
    else:
        deep += [_copied(tape, one) for one in tuple(deep)]
    make_tables()
    hand_on(tape, out)
    forward = tape.cut()
    patches = None
    tokens.clear()
    masks.clear()
    deep.clear()
    late = tape.cut()
    pixels.clear()
    dropped = tape.cut()
    return RecordedLayer(forward, end(tape, out, below, leaf), late=late, grads=tape.release_grads(), casts=dropped)


def _copied(tape: Tape, features: Tensor) -> Tensor:
    return aten.new(tape, features.shape, features.dtype, "deepstack_visual_embeds", features.nbytes, Kernel.COPY)


def _spread(tape: Tape, run: LayerWorkload, deep: list[Tensor]) -> list[Tensor]:
    """Copies of features [tokens, hidden], by way of whole sequences: see [Note: features of packs]."""
    whole = [aten.new(tape, (run.batch, run.seq, one.shape[-1]), one.dtype, "deepstack_aligned", one.nbytes)
             for one in deep]
    made = [_copied(tape, one) for one in deep]
    whole.clear()
    return made


def _tokens(tape: Tape, block: PlacedMerger, run: LayerWorkload, modules: Modules, x: Tensor, rows: int) -> Tensor:
    """Tokens [tokens of all images, hidden]; behind them the tower drops what it has made for its layers."""
    specs = _kept(run, rows, block.width, block.patch_rotary_dim, run.images * block.pixels)
    _of_tower = [tape.external(*spec, tape.slot(name, "activation"), 1 - block.below) for name, spec in specs.items()
                 if not (modules.is_cast and name == _COPY) and not (x.node is not None and name in _DIFFERENTIATED)]
    squares = layer_norm(tape, run, modules, "norm.", x).view(1, run.images * block.tokens, block.merged * block.width)
    made = _mlp(tape, run, modules, "", aten.gelu, squares)
    return made.view(run.images * block.tokens, block.hidden)
