"""The embedding of a transformers model, and what it makes for all layers: position ids, rotary tables, a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from simcore.models.blocks import Attention, Embedding, LatentAttention, LayerKind
from simcore.operators.hf import remote_code
from simcore.operators.hf.families import EMBEDDINGS, TABLES, Family, of_family
from simcore.operators.hf.gemma4.beside import Beside
from simcore.operators.hf.layers import Inputs, has_eager_attention, has_flash_attention, is_of_hub
from simcore.operators.hf.options import HfOptions
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import own_rows, sum_everywhere
from simcore.operators.shared.layer_borders import (
    AFTER,
    BEFORE,
    GRAD_EMBEDDED,
    hand_on,
    hidden_state,
    meet_waiting,
    run_backward,
    stream_dtype,
)
from simcore.recording.layer import STEM_PARTS, LayerWorkload, RecordedLayer
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["called", "embedding", "mask_of", "shape_of_positions", "shared_tables", "stage_stem", "window_of"]

_FREED: Final = dict(zip(STEM_PARTS, ((0, 5), (0, 3), (1, 3)), strict=True))
"""Numbers, from and up to, among positions, a layer's own pair of tables and those of another type."""


class _Stem(Protocol):
    """A part that says which tables are made, with the fields of an `Embedding` (`models.blocks`)."""

    @property
    def rotary_dim(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def further_dim(self) -> int: ...


def window_of(kind: LayerKind) -> int:
    """Number of tokens in the attention window of a layer of `kind` that a mask must show; 0 for no window.

    Attention with sinks knows its window itself. 1 for attention both ways, which a mask shows whatever the length.
    """
    blocks = (b.block for b in kind.branches if isinstance(b.block, Attention))
    return max((1 if block.two_way else block.window for block in blocks if not block.sinks), default=0)


def mask_of(tape: Tape, run: LayerWorkload, family: str, window: int) -> Tensor | None:
    """Attention mask that the embedding made for all layers; None if the layer's attention needs none.

    For packed sequences or a `window` (0 for none): [seq, seq], a byte for each pair of a query and a key, unless
    flash-attn runs (`masking_utils.py`: _ignore_causal_mask_sdpa, flash_attention_mask). Eager attention always adds
    masks of the type of the hidden state, [masks * batch, seq, seq]: see `Family.masks` (the hub's code has one for the
    whole batch).
    """
    if not _is_masked(run, family, window):
        return None
    slot = tape.slot("causal_mask", "activation")
    if has_eager_attention(run):
        return tape.external(_shape_of_masks(run, family), stream_dtype(run), slot, BEFORE)
    return tape.external((run.seq, run.seq), "uint8", slot, BEFORE)


def _shape_of_masks(run: LayerWorkload, family: str) -> tuple[int, int, int]:
    return (1 if is_of_hub(run) else of_family(family).masks * run.batch, run.seq, run.seq)


def _is_masked(run: LayerWorkload, family: str, window: int) -> bool:
    if not of_family(family).has_positions:  # models without attention make neither positions nor masks
        return False
    special = run.sequences > 0 or 0 < window <= run.seq
    return has_eager_attention(run) or (special and not has_flash_attention(run))


def _pads(kind: LayerKind, block: Embedding) -> bool:
    """True for Gemma 4, which puts padding in the place of image tokens first (`Gemma4Model.forward`)."""
    return block.tower > 0 and kind.family == "gemma4_text"


def embedding(tape: Tape, kind: LayerKind, block: Embedding, run: LayerWorkload) -> RecordedLayer:
    """Recording of the embedding: its output [batch, seq, hidden], and tables that all layers read.

    The tables (position ids, rotary cosines and sines, a mask) are allocated here, and a layer records their frees;
    behind a vision tower, which then takes in the output, its projector makes them.
    """
    weight, run = run.params["weight"], _of_embedding(run)
    ids = [aten.new(tape, (run.batch, run.seq), "int64", "llm_input_ids") for _ in range(_pads(kind, block))]
    out = aten.embedding(tape, weight, run.batch, run.seq, grad_rows=(run.tp > 1) * weight.shape[0] * run.tp)
    if out.node is not None:
        tape.save(out.node, *ids)
    ids.clear()
    if run.tp > 1:  # by rows of the vocabulary (RowwiseParallel)
        out = sum_everywhere(tape, out, "embedding_sum")
    family = of_family(kind.family)
    if family.scales_behind and out.node is None and run.options.embeddings_require_grad:
        out.node = _leaf(tape, out)
    if kind.scaled:
        out = aten.mul_scalar(tape, out)
    positions = _positions(tape, run, family) if family.has_positions and not block.tower else None
    if kind.dropout:
        out = _dropped(tape, family, out)
    stays = [out] if run.embedding_stays else []
    if stays:
        tape.rename(out.storage, HIDDEN)
    else:
        hand_on(tape, out)
    if positions is not None:
        _make_tables(tape, kind.family, block, run, positions)
    del positions
    forward = tape.cut()
    meet = partial(meet_waiting, in_place=run.loss == "chunked")  # a sum of chunks has one owner
    if out.node is None and run.options.embeddings_require_grad:
        out.node = _leaf(tape, *stays)
    out = Tensor(None, out.shape, out.dtype, out.node, out.output)  # its node alone keeps it, and frees it
    stays.clear()
    finish = meet if weight.tied else partial(_cut_rows, run=run)
    slot = tape.slot(GRAD_EMBEDDED, "backward_temp") if block.tower and run.features_train else GRAD_HIDDEN
    back = run_backward(tape, out, None, finish, above=block.tower or AFTER, slot=slot)
    return RecordedLayer(forward, back, grads=tape.release_grads())


def _of_embedding(run: LayerWorkload) -> LayerWorkload:
    """Workload as an embedding sees it: whole on every rank where parts of matrices are plain tensors."""
    return replace(run, tp=1) if run.tp > 1 and HfOptions.of(run.options).shards == "tensors" else run


def _cut_rows(tape: Tape, run: LayerWorkload) -> None:
    """Leaves a rank its own rows of a gradient, unless they wait for the last microbatch."""
    if not HfOptions.of(run.options).keeps_rows:
        own_rows(tape, run)


def _leaf(tape: Tape, *held: Tensor) -> Node:
    """Node of a tensor that requires a gradient by itself; `held`: the tensor, which the graph then keeps."""
    node = tape.node((Tensor(None, (), "fp32", Node()),), held, lambda tape, grads, saved: [None])
    assert node is not None
    return node


def _dropped(tape: Tape, family: Family, given: Tensor) -> Tensor:
    """Dropout of the embedding's output, which a model may hold: the first layer frees it then."""
    out = aten.dropout(tape, given)
    if family.holds_embeddings:
        tape.rename(given.storage, tape.slot(EMBEDDINGS, "activation"))
        given.disown()
    return out


def shared_tables(tape: Tape, family: str, block: _Stem, run: LayerWorkload,
                  between: Callable[[], None] | None = None) -> None:
    """Records position ids, for rotary models cos and sin, and masks of a decoder of `family`: the layers' to free.

    `between`: what is recorded behind the masks, which then come before the tables.
    """
    if run.options.position_axes:
        given = Tensor(None, shape_of_positions(run, of_family(family)), "int64")
        _tables = _tables_of_grids(tape, run, block.rotary_dim, given, run.options.position_axes)
        for name, tensor in zip(TABLES, _tables, strict=False):
            tape.rename(tensor.storage, tape.slot(name, "activation"))
            tensor.disown()
    elif of_family(family).has_positions:
        _make_tables(tape, family, block, run, _positions(tape, run, of_family(family)), between)


def stage_stem(runs: Sequence[tuple[LayerKind, LayerWorkload]]) -> dict[str, int]:
    """Bytes by name of the tables, and of positions that checkpoints keep, which each stage makes for its own layers.

    nemo-automodel 0.7.0 `distributed/pipelining/hf_utils.py`, create_pipeline_forward_inner.
    """
    for kind, run in runs:
        for block in (branch.block for branch in kind.branches):
            if isinstance(block, Attention) and block.rotary:
                table = run.seq * (block.rotated or block.head_dim) * dtype_bytes(run.compute)
                positions = {"position_ids": 8 * run.seq} if run.checkpoint == "full" else {}
                return {"cos": table, "sin": table, **positions}
    return {}


def _make_tables(tape: Tape, family: str, block: _Stem, run: LayerWorkload, positions: Tensor,
                 between: Callable[[], None] | None = None) -> None:
    """Rotary cosines and sines and masks, beside the position ids; `between`: see `shared_tables`."""
    made, early = [] if _are_given(run) else [positions], list[Tensor]()
    if between is not None:
        early += _masks(tape, run, family, block)
        between()
    if block.rotary_dim and of_family(family).grids:
        made += _tables_of_grids(tape, run, block.rotary_dim, positions, of_family(family).grids)
    else:
        for dim in filter(None, (block.rotary_dim, block.further_dim)):
            made += _rotary_tables(tape, run, dim, positions, of_family(family))
    names = [*["position_ids"] * (not _are_given(run)), *TABLES][:len(made)]
    if _is_masked(run, family, block.window):
        names.insert(1, "causal_mask")
        made[1:1] = early or _masks(tape, run, family, block)
        early.clear()
    for name, tensor in zip(names, made, strict=True):
        tape.rename(tensor.storage, tape.slot(name, "activation"))
        tensor.disown()


def _masks(tape: Tape, run: LayerWorkload, family: str, block: _Stem) -> list[Tensor]:
    if not _is_masked(run, family, block.window):
        return []
    return [_added_masks(tape, run, family) if has_eager_attention(run) else _block_diagonal(tape, run.seq)]


def _block_diagonal(tape: Tape, seq: int) -> Tensor:
    """Earlier, and in the same sequence or the window (`masking_utils.py`, and_masks)."""
    seen = aten.new(tape, (seq, seq), "uint8", "is_near")
    earlier = aten.new(tape, (seq, seq), "uint8", "is_earlier")
    return aten.new(tape, (seq, seq), "uint8", "causal_mask", seen.nbytes + earlier.nbytes)


def _added_masks(tape: Tape, run: LayerWorkload, family: str) -> Tensor:
    """All masks as one, each made of truth values (`masking_utils.py`, eager_mask); smaller things are left out."""
    if is_of_hub(run):
        return remote_code.causal_mask(tape, run)
    seen = aten.new(tape, (run.seq, run.seq), "uint8", "is_seen")
    shape = _shape_of_masks(run, family)
    return aten.new(tape, shape, stream_dtype(run), "causal_mask", shape[0] * seen.nbytes)


def shape_of_positions(run: LayerWorkload, family: Family) -> tuple[int, ...]:
    """Shape of the position ids of all layers: [seq], or [grids, batch, seq]."""
    return (family.grids, run.batch, run.seq) if family.keeps_grids else (run.seq,)


def _positions(tape: Tape, run: LayerWorkload, family: Family) -> Tensor:
    """Position ids in int64: the cached length, 0 here, is added to [seq] unless the family leaves that out.

    Grids of them are zeros, into which those of each sequence are written (`models/qwen2_5_vl`, get_rope_index).
    """
    if _are_given(run):
        return Tensor(None, (run.batch, run.seq), "int64")
    if family.keeps_grids:
        made = aten.new(tape, shape_of_positions(run, family), "int64", "position_ids")
        _of_sequence = aten.new(tape, (family.grids, run.seq), "int64", "positions")
        return made
    count = aten.new(tape, (run.seq,), "int64", "arange")
    if not family.adds_cached_positions:
        return count
    return aten.select(tape, count, (run.seq,), "int64", "position_ids")


def _rotary_tables(tape: Tape, run: LayerWorkload, dim: int, positions: Tensor,
                   family: Family) -> tuple[Tensor, ...]:
    """The tables of cos and sin, made in fp32; or one of complex numbers."""
    halves = family.halves_rotary
    shape = (_rows_of_tables(run, family) * run.seq, dim // 2 if halves else dim)
    freqs = _frequencies(tape, run, dim, aten.select(tape, positions, positions.shape, "fp32", "positions"))
    if family.complex_tables:
        return (_complex_table(tape, freqs),)
    angles = freqs if halves else aten.select(tape, freqs, shape, "fp32", "angles")
    cos = aten.select(tape, aten.select(tape, angles, shape, "fp32", "cos"), shape, "fp32", "cos")
    sin = aten.select(tape, aten.select(tape, angles, shape, "fp32", "sin"), shape, "fp32", "sin")
    kept = "fp32" if family.wide_tables else stream_dtype(run)
    return aten.cast(tape, cos, kept), aten.cast(tape, sin, kept)


def _complex_table(tape: Tape, freqs: Tensor) -> Tensor:
    """Complex numbers of length one by their angles `freqs`, times a number (`Llama4TextRotaryEmbedding`)."""
    _ones, shape = aten.new(tape, freqs.shape, "fp32", "ones"), (*freqs.shape, 2)
    table = aten.new(tape, shape, "fp32", "freqs_cis", 2 * freqs.nbytes)
    del _ones
    return aten.select(tape, table, shape, "fp32", "freqs_cis")


def _tables_of_grids(tape: Tape, run: LayerWorkload, dim: int, positions: Tensor, grids: int) -> tuple[Tensor, Tensor]:
    """Tables of cos and sin for each sequence, out of those of all grids (`Qwen3_5TextRotaryEmbedding`)."""
    rows = (grids, run.batch, run.seq)
    freqs = aten.select(tape, aten.select(tape, positions, rows, "fp32", "positions"), (*rows, dim // 2), "fp32",
                        "freqs")
    cos, sin = (aten.select(tape, aten.select(tape, freqs, freqs.shape, "fp32", name), freqs.shape, "fp32", name)
                for name in ("cos", "sin"))
    shape = (run.batch, run.seq, dim)
    sin = aten.select(tape, sin, shape, "fp32", "sin")
    cos = aten.select(tape, cos, shape, "fp32", "cos")
    return aten.cast(tape, cos, stream_dtype(run)), aten.cast(tape, sin, stream_dtype(run))


def _frequencies(tape: Tape, run: LayerWorkload, dim: int, positions: Tensor) -> Tensor:
    half, stored = dim // 2, HfOptions.of(run.options).inv_freq
    _inverse = None if stored == "fp32" else aten.new(tape, (half,), "fp32", "inv_freq")
    return aten.select(tape, positions, (positions.numel, half), "fp32", "freqs")


def _are_given(run: LayerWorkload) -> bool:
    """True if the trainer gives position ids, those of its own part of each sequence (see `HfOptions.sequences`)."""
    return run.options.position_axes > 0 or HfOptions.of(run.options).sequences == "ring"


def _rows_of_tables(run: LayerWorkload, family: Family) -> int:
    """Number of rotary tables: one for each sequence where its positions are its own."""
    return run.batch if family.grids or HfOptions.of(run.options).sequences == "ring" else 1


def stem_of(tape: Tape, kind: LayerKind, run: LayerWorkload) -> tuple[Inputs, list[Tensor]]:
    """Tensors that a layer of `kind` is called with: its hidden state and what the embedding made for all layers.

    One layer posts deaths of what all layers share: the lowest that keeps it, or the first; a mask's the first.

    Also returns the rotary tables of layers of another type, which it frees with its own if no layer keeps those.
    """
    wide = kind.wide or HfOptions.of(run.options).wide_outputs
    hidden = hidden_state(tape, run, run.seq, kind.hidden, "fp32" if wide and not run.first else "")
    down = -(run.stem or run.first)
    family = of_family(kind.family)
    shared = [] if not family.has_positions else [Tensor(None, (), "int64") if _are_given(run) else
        tape.external(shape_of_positions(run, family), "int64", tape.slot("position_ids", "activation"), down)]
    rotary = next((_turned(b.block) for b in kind.branches if isinstance(b.block, Attention | LatentAttention)
                   and _turned(b.block)), kind.tables)
    if rotary:
        rotary //= 1 + family.halves_rotary
        is_wide, rows = family.wide_tables or family.complex_tables, _rows_of_tables(run, family)
        dtype = "fp32" if is_wide else stream_dtype(run)
        passing = kind.tables if _turns(kind) else 0
        names = _names_of_tables(rotary, passing, window_of(kind))
        sizes = [*zip(names, (rotary, rotary, passing, passing), strict=True)]
        del sizes[1:1 + family.complex_tables]  # one table of as many numbers
        shared += [tape.external((rows, run.seq, 1, size), dtype, tape.slot(name, "activation"), down)
                   for name, size in sizes if size]
    mask = mask_of(tape, run, kind.family, window_of(kind))
    are_cast = family.wide_tables and HfOptions.of(run.options).casts_stream  # then layers keep copies of their own
    for number, tensor in enumerate(shared):  # only a checkpoint keeps positions, which come first
        dies = run.first if (run.checkpoint == "none" and number == 0) or (are_cast and number) else (
            run.stem and _FREED[run.stem_part][0] <= number < _FREED[run.stem_part][1])
        if not dies and tensor.storage is not None:
            tensor.disown()
    if mask is not None and not run.first:
        mask.disown()
    positions, cos, sin = [*shared, None, None, None][:3]
    return Inputs(hidden, cos, sin, positions, mask), shared[3:]


def called(tape: Tape, kind: LayerKind, run: LayerWorkload,
           beside: Beside) -> tuple[Inputs, Tensor | None, list[Tensor]]:
    """(what a layer is called with, position ids, tables of layers of another type)."""
    inputs, further = stem_of(tape, kind, run)
    if beside.keeps_hidden:
        inputs.hidden.disown()
    passes = of_family(kind.family).passes_positions
    return inputs._replace(positions=inputs.positions if passes else None, own=beside.slice,
                           lending=beside.lending), inputs.positions, further


def _turned(block: Attention | LatentAttention) -> int:
    """Dimensions of a head that are rotated."""
    if isinstance(block, LatentAttention):
        return block.rope
    return (block.rotated or block.head_dim) * block.rotary


def _names_of_tables(own: int, passing: int, window: int) -> tuple[str, ...]:
    """Storages of a layer's own tables, of `own` columns, then of others; the embedding makes the wider pair last.

    `window`: of the layer's attention; of equal pairs the last is that of layers without one.
    """
    is_last = own > passing or (own == passing and not window)
    return (*TABLES[2:], *TABLES[:2]) if passing and is_last else TABLES


def _turns(kind: LayerKind) -> bool:
    return any(isinstance(branch.block, Attention) and branch.block.rotary for branch in kind.branches)
