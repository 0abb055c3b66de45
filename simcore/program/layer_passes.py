"""Passes of a recorded kind of layer: its tiles, cut where hooks run inside, numbered by the tables of a program.

Each kind is recorded once with tables of its own, so that ranks and jobs share it that have other kinds besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from simcore.models.blocks import LayerKind, Moe, Mtp
from simcore.models.graph import ModelGraph
from simcore.operators.registry import implementation_of
from simcore.placement.mesh import IntArray
from simcore.program.outline import Tables
from simcore.program.row_cache import held
from simcore.program.tile import OP, SLOT, LayerRows, small_tile, structure
from simcore.recording.inner_units import ends_backward, module_of
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import HIDDEN, STASH_BORDER, Op, Param
from simcore.recording.undisturbed import undisturbed

__all__ = ["Key", "LayerPasses", "passes_of"]

TIED_HEAD = 1 << 30
"""Layer offset of rows that belong to a tied head, replaced by the head's index."""

_MARK = int(Op.MARK)
_SINGLE = 15
"""Tiles of a kind beside the pieces of forward and backward."""
ADAPTER_MARKS = range(8, 12)
"""Marks that a tape puts around a matrix of an adapter that is a separate unit."""
_FP32_MODULES = ("._fp32_params.", "mlp.gate.")
"""Parts of the names of their parameters: states of mixers, a router's gate."""
EXPERTS_MARKS = range(2, 6)
"""Marks that a tape puts around an experts module that is a separate unit; passes are cut there and at later marks."""


@dataclass(frozen=True, eq=False)
class LayerPasses:
    """One kind of layer as recorded for this rank: its operations, each part a tile.

    `forward`, `backward`: pieces (tile, number of the border at its end or 0, True in a replay), cut where a unit of
    experts (parameters that are gathered and reduced together) begins or ends inside the layer. `rest`: allocated
    before the step. `again`: replay of a layer in a group of layers that is replayed together; other replays are part
    of `backward`. `grads`: (parameter, slot, bytes) of gradients alive after backward. `after`, `late`, `seed`,
    `weight`, `release`, `casts`, `stow`, `fetch`, `behind`: see `recording.RecordedLayer`; `leave`, `left`, `come`,
    `done`: see `recording.host_copies.HostTrip`.
    """

    forward: tuple[tuple[LayerRows, int, bool], ...]
    backward: tuple[tuple[LayerRows, int, bool], ...]
    after: LayerRows
    late: LayerRows
    seed: LayerRows
    again: LayerRows
    grads: tuple[tuple[Param, int, int], ...]
    rest: LayerRows
    weight: LayerRows
    release: LayerRows
    casts: LayerRows
    stow: LayerRows
    fetch: LayerRows
    leave: LayerRows
    left: LayerRows
    come: LayerRows
    done: LayerRows
    behind: LayerRows

    @property
    def tiles(self) -> tuple[LayerRows, ...]:
        """All tiles in a fixed order: pieces of forward and backward, then the other parts."""
        passes = (t for t, _, _ in (*self.forward, *self.backward))
        return (*passes, self.after, self.late, self.seed, self.again, self.rest, self.weight, self.release,
                self.casts, self.stow, self.fetch, self.leave, self.left, self.come, self.done, self.behind)

    @cached_property
    def expert_grads(self) -> tuple[tuple[Param, int, int], ...]:
        """Entries of `grads` whose parameter belongs to experts."""
        return tuple(grad for grad in self.grads if ".experts." in f".{grad[0].name}")

    @cached_property
    def adapter_grads(self) -> tuple[tuple[Param, int, int], ...]:
        """Entries of `grads` whose parameter is a matrix of an adapter."""
        return tuple(grad for grad in self.grads if ".lora_" in f".{grad[0].name}")

    @cached_property
    def fp32_grads(self) -> tuple[tuple[Param, int, int], ...]:
        """Entries of `grads` whose parameter belongs to a module with parameters in fp32."""
        return tuple(grad for grad in self.grads if grad[0].dtype == "fp32" and any(
            part in grad[0].name for part in _FP32_MODULES))

    def inner_grads(self, mark: int) -> tuple[tuple[Param, int, int], ...]:
        """Entries of `grads` that the units inside the layer take at their border `mark`."""
        if (module := module_of(mark)) is not None:
            # A unit that no gradient leaves has no such end: its own go with the layer's.
            return self._grads_of(module) if ends_backward(mark) else ()
        return self.adapter_grads if mark in ADAPTER_MARKS else self.expert_grads

    def _grads_of(self, module: str) -> tuple[tuple[Param, int, int], ...]:
        """Entries of `grads` of a module with parameters in fp32, by its path inside the layer; "": of the only one."""
        if not module:
            return self.fp32_grads
        return tuple(grad for grad in self.grads if grad[0].name.startswith(f"{module}."))

    @cached_property
    def outer_grads(self) -> tuple[tuple[Param, int, int], ...]:
        """Entries of `grads` without those of data-parallel units inside the layer: experts, adapters, fp32."""
        marks = {mark for _, mark, _ in self.backward} - {0, STASH_BORDER}
        inner = {grad for mark in marks for grad in self.inner_grads(mark)}
        return tuple(grad for grad in self.grads if grad not in inner)

    @property
    def shape(self) -> tuple[object, ...]:
        """Hashable key of all but the bytes and FLOPs of operations.

        It has the cuts of passes, the structure of tiles, and the gradients that remain.
        """
        cuts = tuple(tuple(cut[1:] for cut in cuts) for cuts in (self.forward, self.backward))
        return cuts, structure(self.tiles), self.grads


Key = tuple[int, bool, bool, str, bool, tuple[int, str], tuple[int, int], str]
"""(kind of layer, whether it is the first block, whether its input carries a gradient, what is recomputed of it,
whether its backward pass is split (not on the first stage, see [Note: zero bubble] in `pipeline/zero_bubble.py`),
number of layers down to the stem if it releases some of the stem's shared tensors, else 0, and which of them,
layers down to the next one of which modules leave for the host and number of the run of each that stays, dtype of its
input where it is not the stream's first one, else "")."""



def passes_of(graph: ModelGraph, key: Key, run: LayerWorkload, tables: Tables) -> LayerPasses:
    """Recording of one kind of layer; its names are added to `tables`, whose numbers its rows have."""
    passes, own = _recorded(graph, key, _without_experts(graph.kinds[key[0]], run))
    slots = np.array([tables.slot(*names) for names in own.slots], dtype=np.int64)
    comms = np.array([tables.comm(*names) for names in own.comms], dtype=np.int64)
    return _numbered(passes, slots, comms)


@held(element_bytes=1000)
def _recorded(graph: ModelGraph, key: Key, run: LayerWorkload) -> tuple[LayerPasses, Tables]:
    """Recording of one kind of layer, with tables that have its names alone."""
    return undisturbed(lambda: _record(graph, key, run))


def _record(graph: ModelGraph, key: Key, run: LayerWorkload) -> tuple[LayerPasses, Tables]:
    kind, operators, tables = graph.kinds[key[0]], implementation_of(graph.implementation), Tables()
    grouped = key[3] == "uniform" and kind.block is None
    tapes = [operators.record(kind, replace(run, checkpoint=how) if grouped else run, tables.slots, tables.comms)
             for how in (("full", "none") if grouped else ("",))]
    passes = _together(*(_tiles(tape, graph.head) for tape in tapes)) if grouped else _tiles(tapes[0], graph.head)
    return passes, tables


def _without_experts(kind: LayerKind, run: LayerWorkload) -> LayerWorkload:
    """Workload in which layers without experts are alike that differ only in what experts exchange.

    Of the number of ranks of experts they read only if there are several.
    """
    if isinstance(kind.block, Mtp) or any(isinstance(branch.block, Moe) for branch in kind.branches):
        return run
    return replace(run, ep=min(run.ep, 2), rows_per_token=0, sent_per_token=0)


def _numbered(passes: LayerPasses, slots: IntArray, comms: IntArray) -> LayerPasses:
    """The passes with other numbers of owners and communications: `slots`, `comms` [own number]."""
    if (slots == np.arange(len(slots))).all() and (comms == np.arange(len(comms))).all():
        return passes
    old = [tile for tile in dict.fromkeys(passes.tiles) if len(tile.rows)]
    ends = list(accumulate(len(tile.rows) for tile in old))
    rows = np.concatenate([np.zeros((0, 6), dtype=np.int64), *(tile.rows for tile in old)])
    for numbers, ops in ((slots, (Op.ALLOC, Op.FREE)), (comms, (Op.COLLECTIVE, Op.COPY))):
        at = np.flatnonzero((rows[:, OP] == ops[0]) | (rows[:, OP] == ops[1]))
        rows[at, SLOT] = numbers[rows[at, SLOT]]
    new = {tile: LayerRows(rows[start:end], tile.replay) for tile, (start, end) in
           zip(old, pairwise([0, *ends]), strict=True)}

    def cuts(pieces: tuple[tuple[LayerRows, int, bool], ...]) -> tuple[tuple[LayerRows, int, bool], ...]:
        return tuple((new.get(tile, tile), mark, replay) for tile, mark, replay in pieces)

    after, late, seed, again, *last = (new.get(tile, tile) for tile in passes.tiles[-_SINGLE:])
    grads = tuple((param, int(slots[slot]), size) for param, slot, size in passes.grads)
    return LayerPasses(cuts(passes.forward), cuts(passes.backward), after, late, seed, again, grads, *last)


def _tiles(tape: RecordedLayer, head: int) -> LayerPasses:
    """Tiles of a recorded layer; `head`: the layer index for rows of the embedding that belong to a tied head."""
    forward, backward, *others = LayerRows.of_all((
        tape.forward, tape.backward, tape.after, tape.late, tape.seed, tape.rest, tape.weight, tape.release,
        tape.casts, tape.stow, tape.fetch, tape.host.leave, tape.host.left, tape.host.come, tape.host.done,
        tape.behind))
    backward.rows[backward.rows[:, 1] >= TIED_HEAD, 1] = head
    after, late, seed, *last = (part if len(part.rows) else small_tile() for part in others)
    return LayerPasses(_cut(forward), _cut(backward), after, late, seed, small_tile(), tape.grads, *last)


def _together(lean: LayerPasses, kept_all: LayerPasses) -> LayerPasses:
    """Passes of a layer in a replayed group: `lean` runs first, and all of `kept_all` in backward.

    Tensors of the first run that the module itself still holds are freed when the replay has replaced them.
    """
    remaining: dict[int, int] = {}
    for tile in (*(t for t, _, _ in lean.forward), lean.after, lean.late):
        for layer, slot, size in tile.nets.tolist():
            if layer == 0 and slot != HIDDEN:
                remaining[slot] = remaining.get(slot, 0) + size
    freed = small_tile(*((Op.FREE, slot, -size) for slot, size in remaining.items() if size))
    rows = np.concatenate([*(t.rows for t, _, _ in kept_all.forward), kept_all.after.rows, kept_all.late.rows,
                           freed.rows])
    again = LayerRows(rows, np.ones(len(rows), dtype=np.int64))
    return LayerPasses(lean.forward, kept_all.backward, lean.after, lean.late, kept_all.seed, again, kept_all.grads,
                       lean.rest, kept_all.weight, kept_all.release, kept_all.casts, kept_all.stow, kept_all.fetch,
                       *[small_tile()] * 5)


def _cut(tile: LayerRows) -> tuple[tuple[LayerRows, int, bool], ...]:
    """Pieces of a pass, cut at the borders of an experts unit, and at its first gradient where that is marked."""
    rows, pieces, start = tile.rows, [], 0
    at = np.flatnonzero((rows[:, 0] == _MARK) & (rows[:, 2] >= EXPERTS_MARKS.start))
    if not len(at):
        return ((tile, 0, False),)
    for border in at:
        pieces.append((LayerRows(rows[start:border], tile.replay[start:border]), int(rows[border, 2]),
                       bool(tile.replay[border])))
        start = int(border) + 1
    pieces.append((LayerRows(rows[start:], tile.replay[start:]), 0, False))
    return tuple(pieces)
