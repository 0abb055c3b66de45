"""Tiles for the borders of a rank's part of the model: tokens and labels, hidden states, gradients of hidden states.

Input: the workload of a layer (`recording.LayerWorkload`). Output: `Edges`, which the walk over a pass places between
the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from simcore.models.blocks import Embedding, Head, Loss, Mtp
from simcore.models.class_blocks import ClassPatches, ScaledPatches
from simcore.models.pooled_blocks import PooledPatches
from simcore.models.vision_blocks import AnySize, Patches
from simcore.program.outline import Tables
from simcore.program.tile import LayerRows, small_tile
from simcore.recording.layer import WHOLE_PAIRS, LayerWorkload
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Op, Section, Stream
from simcore.units import dtype_bytes

__all__ = ["BORDER_HANDLES", "Edges", "edges_of"]

NO_STEM: Final[Mapping[str, int]] = MappingProxyType({})
Owners = Sequence[tuple[int, int]]
BORDER_HANDLES = 8, 9
"""Handles of messages across a stage border: in forward, in backward."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Operations at the ends of a pipeline rank's part of the model, each a tile (a few recorded rows).

    They allocate and free the microbatch's tokens and labels, and receive, wait for, send, keep and drop hidden states
    and their gradients. `stem`: tensors that a stage after the first makes for all of its layers; `passing`: those that
    its forward drops. `mask`: attention mask, exists while forward runs. `keep_hidden`, `keep_grad`: a received tensor
    that is kept after the layers have used it. `keep_output`: the kept output of the model. `defer`: the head's input
    and the gradient of its output wait for the end of the step. `keep_beside`: what is sent beside a hidden state, or
    its gradient. `widen_hidden`: a copy in fp32 of a layer's output that the model has returned.
    """

    tokens: LayerRows
    drop_tokens: LayerRows
    stem: LayerRows
    drop_stem: LayerRows
    passing: LayerRows
    drop_passing: LayerRows
    mask: LayerRows
    drop_mask: LayerRows
    receive_hidden: LayerRows
    await_hidden: LayerRows
    send_hidden: LayerRows
    keep_hidden: LayerRows
    drop_hidden: LayerRows
    receive_grad: LayerRows
    await_grad: LayerRows
    send_grad: LayerRows
    keep_grad: LayerRows
    drop_grad: LayerRows
    keep_output: LayerRows
    drop_output: LayerRows
    defer: LayerRows
    drop_deferred: LayerRows
    keep_beside: LayerRows
    drop_beside: LayerRows
    widen_hidden: LayerRows
    drop_wide: LayerRows

    @property
    def tiles(self) -> tuple[LayerRows, ...]:
        """All tiles in the order of the fields."""
        return tuple(getattr(self, edge.name) for edge in fields(self))


def edges_of(run: LayerWorkload, blocks: Sequence[object], hidden: int, tables: Tables,
             stem: Mapping[str, int] = NO_STEM, sections: tuple[Section, Section] | None = None,
             beside: int = 0, passing: Mapping[str, int] = NO_STEM) -> Edges:
    """`Edges` of a rank's part of the model: sizes of its inputs and outputs for one microbatch.

    `blocks`: blocks of its layers (embedding, head, loss, ...); `hidden`: elements of a token that crosses a border.
    Tokens and labels are as large as `ImplementationOptions.bytes_of_tokens` says. Hidden states are split over tp if
    the framework runs sequence parallelism. `stem`, `passing`: bytes by name (`Implementation`); `sections`, if there
    are any, stand in its place (`Implementation.stage_sections`). Stages with an embedding or a loss receive the data
    loader's mask, a byte for each pair of positions. `beside`: bytes that cross with a hidden state.
    """
    tokens, border = tables.slot("input_ids_and_labels", "input"), tables.comm("send_recv", "pp", run.compute)
    of_tokens = run.options.bytes_of_tokens(run.batch, run.seq, run.cp)
    of_hidden = run.tokens // (run.tp if run.sequence_parallel else 1) * hidden * dtype_bytes(run.compute)
    ends = any(isinstance(block, Embedding | Loss | Mtp) for block in blocks)
    squares = ends and run.options.loads_attention_mask
    mask, of_mask = tables.slot("attention_mask", "input"), run.tokens * run.seq * run.cp * squares
    images = _images(run, blocks, tables)
    vocab = sum(block.vocab for block in blocks if isinstance(block, Head))
    vocab //= 1 if run.options.outputs_whole_vocabulary else run.tp
    output, of_output = tables.slot("returned_output", "activation"), run.tokens * vocab * dtype_bytes(run.compute)
    waiting, returned = tables.slot("deferred_head", "activation"), _returned(run, of_hidden, tables)
    made, passed = (_owners(tables, some) for some in (stem, passing))
    of_head, sent = of_hidden + of_output, [(tables.slot("sent_beside", "activation"), beside)] * bool(beside)
    (receive, wait, send), (receive_grad, wait_grad, send_grad) = (
        _messages(border, of_hidden + beside, handle) for handle in BORDER_HANDLES)
    before, behind = map(LayerRows.of, sections) if sections else (
        small_tile(*_allocs(made)), small_tile(*_frees(made)))
    return Edges(
        small_tile((Op.ALLOC, tokens, of_tokens), *_allocs(images)),
        small_tile((Op.FREE, tokens, -of_tokens), *_frees(images)),
        before, behind, small_tile(*_allocs(passed)), small_tile(*_frees(passed)),
        small_tile(*((Op.ALLOC, mask, of_mask),) * squares), small_tile(*((Op.FREE, mask, -of_mask),) * squares),
        small_tile((Op.ALLOC, HIDDEN, of_hidden), receive), small_tile(wait), small_tile(send),
        small_tile((Op.ALLOC, HIDDEN, of_hidden)), small_tile((Op.FREE, HIDDEN, -of_hidden)),
        small_tile((Op.ALLOC, GRAD_HIDDEN, of_hidden), receive_grad), small_tile(wait_grad), small_tile(send_grad),
        small_tile((Op.ALLOC, GRAD_HIDDEN, of_hidden)), small_tile((Op.FREE, GRAD_HIDDEN, -of_hidden)),
        small_tile((Op.ALLOC, output, of_output)), small_tile((Op.FREE, output, -of_output)),
        small_tile((Op.ALLOC, waiting, of_head)), small_tile((Op.FREE, waiting, -of_head)),
        *(small_tile(*post(owners)) for owners in (sent, returned) for post in (_allocs, _frees)))


def _returned(run: LayerWorkload, hidden: int, tables: Tables) -> Owners:
    """A copy in fp32 of a layer's output of `hidden` bytes that the model has returned, as (slot, bytes)."""
    wide = 4 * hidden // dtype_bytes(run.compute)
    return [(tables.slot("returned_hidden_states", "activation"), wide)] * (run.loss in WHOLE_PAIRS)


def _owners(tables: Tables, sizes: Mapping[str, int]) -> Owners:
    return [(tables.slot(name, "activation"), size) for name, size in sizes.items()]


def _images(run: LayerWorkload, blocks: Sequence[object], tables: Tables) -> Owners:
    """Images of the data loader and position ids that it makes of them, as (slot, bytes); () for none."""
    pixels = run.images * sum(block.pixels for block in blocks if isinstance(
        block, Patches | AnySize | PooledPatches | ClassPatches | ScaledPatches))
    if not pixels:
        return []
    positions = 8 * run.options.position_axes * run.tokens
    given = [(tables.slot("pixel_values", "input"), dtype_bytes(run.options.pixels) * pixels)]
    return given + [(tables.slot("position_ids", "input"), positions)] * bool(positions)


def _allocs(owners: Owners) -> Iterator[tuple[int, int, int]]:
    return ((Op.ALLOC, slot, size) for slot, size in owners)


def _frees(owners: Owners) -> Iterator[tuple[int, int, int]]:
    return ((Op.FREE, slot, -size) for slot, size in owners)


def _messages(comm: int, size: int, handle: int) -> tuple[tuple[int, ...], ...]:
    """(receive, wait for the received tensor, send)."""
    return ((Op.COLLECTIVE, comm, size, Stream.RECEIVE, handle), (Op.WAIT, 0, 0, 0, handle),
            (Op.COLLECTIVE, comm, size, Stream.SEND, handle))
