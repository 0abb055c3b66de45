"""The ledger: allocations and frees of a program in order of issue, by owner; the peak is the maximum of a running sum.

Input: a `Program`. Output: `MemoryPeak`: the highest moment, the owners of its bytes, the peak of each phase. Allocated
bytes depend only on the order of issue (PyTorch lowers them in `free()` on the host), so no clock is needed. Sums run
over pieces of the program; only the piece with the peak is expanded.

[Note: the first step]
States of the optimizer are allocated in its first step. Also, mamba_ssm's scans are Triton kernels with
`@triton.autotune` (`ops/triton/ssd_state_passing.py` and its neighbours): at their first call, forward and backward,
every configuration is timed, with a buffer of 256 MiB that empties the L2 cache (triton 3 `testing.py` do_bench,
`third_party/nvidia/ backend/driver.py` get_empty_cache_for_benchmark). It is allocated by torch, and freed before the
next kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase, StepTemplate, ranges
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT, posted_bytes
from simcore.recording.exact_sums import fitting, sums_by_key
from simcore.recording.tape import Op

__all__ = ["TRIAL_BYTES", "MemoryPeak", "balance", "first_step", "peak_and_end", "running"]

TRIAL_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, eq=False)
class MemoryPeak:
    """The moment of a step with most allocated bytes on one rank, and the tensors that hold them.

    `phase`, `event`, `layer`, `microbatch`: where in the step it is (`event`: the last callback (hook) of the framework
    that ran before, "build" if none; `layer`: a module path, "" outside layers; `microbatch`: index among the simulated
    ones). `by_category`: bytes then, by category of tensor. `top`: (owner, category, bytes), largest first; an owner is
    "layer path/tensor". `by_phase`: highest bytes in each phase that the step has. `end_bytes`: allocated when the step
    is over. `first_scan_bytes`: highest bytes while the first Mamba scans run; None without any.
    """

    peak_bytes: int
    phase: str
    event: str
    layer: str
    microbatch: int
    by_category: dict[str, int]
    by_phase: dict[str, int]
    top: tuple[tuple[str, str, int], ...]
    end_bytes: int
    first_scan_bytes: int | None = None


def first_step(balance: MemoryPeak, born_in_step: int) -> int:
    """Peak in bytes of one rank in the very first step; optimizer states do not exist until its optimizer runs.

    `balance`: peak of a later step; `born_in_step`: bytes of the states that the first optimizer step allocates.
    Mamba's kernels are tuned in that step too, see [Note: the first step].
    """
    before = max((size for phase, size in balance.by_phase.items() if phase != "optimizer"), default=0)
    if balance.first_scan_bytes is not None:
        before = max(before, balance.first_scan_bytes + TRIAL_BYTES)
    return max(before - born_in_step, balance.by_phase.get("optimizer", 0))


def running(program: Program) -> IntArray:
    """Allocated bytes after each operation of the program, in order of issue, persistent tensors included."""
    return np.cumsum(fitting(posted_bytes(program.columns)))


def peak_and_end(program: Program) -> tuple[int, int]:
    """(highest allocated bytes of a step, bytes when it is over): `peak_bytes` and `end_bytes` of `balance`."""
    sums = _Sums(program)
    return int(sums.peaks.max()), sums.end()


def balance(program: Program, num_top: int = 12) -> MemoryPeak:
    """Peak of the program's allocated bytes (one rank, a later step than the first), and the peak of each phase.

    `num_top`: number of its largest owners that `MemoryPeak.top` gets.
    """
    sums = _Sums(program)
    piece, row = sums.peak()
    alive = _held(program, piece, row)
    at = program.outline.piece(piece)
    in_replay = at.tile >= 0 and bool(program.tiles[at.tile].replay[row])
    rows = program.outline.loose if at.tile < 0 else program.tiles[at.tile].rows
    layer = int(rows[row, LAYER]) + at.layer
    return MemoryPeak(
        sums.peak_bytes(piece), (Phase.RECOMPUTE if in_replay else Phase(at.phase)).name.lower(),
        _event(program, piece, row), program.layer_paths[layer] if 0 <= layer < len(program.layer_paths) else "",
        at.microbatch, _by_category(program, alive), sums.by_phase(), _owners(program, alive, num_top), sums.end(),
        sums.first_scan())


class _Sums:
    """Bytes at the borders of pieces, and the most inside each piece."""

    def __init__(self, program: Program) -> None:
        self.program = program
        outline = program.outline
        self.tile = outline.columns[0]
        net_of, top_of = program.tile_sums
        nets, tops = outline.nets + net_of[self.tile], outline.tops + top_of[self.tile]
        self.after = np.cumsum(fitting(nets))
        self.base = self.after - nets
        self.peaks = self.base + tops

    def peak(self) -> tuple[int, int]:
        """(piece, row) of the peak: a row of the piece's tile, or the number of a loose row."""
        number = int(np.argmax(self.peaks))
        piece = self.program.outline.piece(number)
        if piece.tile >= 0:
            return number, self.program.tiles[piece.tile].highest
        return number, piece.start + int(np.argmax(self.program.outline.running[piece.start:piece.end]))

    def peak_bytes(self, piece: int) -> int:
        return int(self.peaks[piece])

    def end(self) -> int:
        return int(self.after[-1])

    def first_scan(self) -> int | None:
        """Most bytes while the first Mamba scans of forward and of backward run; None without any."""
        tops = ((at, self.program.tiles[int(self.tile[at])].top_of_scan) for at in self.program.outline.first_scans)
        return max((int(self.base[at]) + top for at, top in tops if top is not None), default=None)

    def by_phase(self) -> dict[str, int]:
        """Peak of each phase; a phase begins with the bytes that the phase before left."""
        peaks = {name: max(int(self.base[inside[0]]), int(self.peaks[inside].max()))
                 for name, inside in self.program.outline.groups.items()}
        replays = [int(self.base[self.tile == number].max()) + self.program.tiles[number].top_of_replay
                   for number in self.program.outline.replayed]
        inside_tiles = max(replays, default=0)
        return peaks | ({"recompute": max(inside_tiles, peaks.get("recompute", 0))} if replays else {})


def _event(program: Program, piece: int, row: int) -> str:
    """Name of the last hook passed at or before a row, in upstream's spelling."""
    loose, marked = program.outline.loose, program.outline.marked
    for number in marked[:np.searchsorted(marked, piece, side="right")][::-1].tolist():
        at = program.outline.piece(number)
        rows = loose[at.start:at.end] if at.tile < 0 else program.tiles[at.tile].rows
        if number == piece:
            rows = rows[:row + 1 - at.start]
        marks = np.flatnonzero(rows[:, OP] == Op.MARK)
        if len(marks):
            return program.event(rows[marks[-1]], at.layer)
    return "build"


def _held(program: Program, piece: int, row: int) -> IntArray:
    """Bytes alive after a row by owner: [layer + 1, slot]. Sums are exact."""
    outline, rows = program.outline, program.distinct
    at, first_loose = outline.piece(piece), len(outline.tile_of)
    whole, layers, times = _laid_before(outline, piece)
    last_loose = row + 1
    if at.tile >= 0:
        last_loose = int(outline.columns[2, :piece].max(initial=0))
        first = int(outline.firsts[at.tile])
        begun = first + np.flatnonzero(rows[first:first + row + 1, OP] <= Op.FREE)
        whole, layers = np.concatenate([whole, begun]), np.concatenate([layers, np.full(len(begun), at.layer)])
        times = np.concatenate([times, np.ones_like(begun)])
    loose = first_loose + np.flatnonzero(rows[first_loose:first_loose + last_loose, OP] <= Op.FREE)
    at_rows = np.concatenate([whole, loose])
    layer_of, slots, amounts = (rows[:, column][at_rows] for column in (LAYER, SLOT, AMOUNT))
    layer_of[:len(whole)] += layers
    amounts[:len(whole)] *= times
    num_slots = len(program.tables.slots)
    shape = (len(program.layer_paths) + 2, num_slots)
    return sums_by_key((layer_of + 1) * num_slots + slots, amounts, shape[0] * shape[1]).reshape(shape)


def _laid_before(outline: StepTemplate, piece: int) -> tuple[IntArray, IntArray, IntArray]:
    """Allocations and frees in tiles before a segment: distinct row, layer of its tile, how often it was laid there."""
    tile, _, _, layer, *_ = outline.columns[:, :piece]
    num_layers = len(outline.layer_paths) + 2
    counts = np.bincount(((tile * num_layers) + layer + 1)[tile >= 0])
    laid = np.flatnonzero(counts)
    tile, layer = np.divmod(laid, num_layers)
    posts, num_posts = outline.posts
    rows = posts[ranges((np.cumsum(num_posts) - num_posts)[tile], num_posts[tile])]
    return rows, np.repeat(layer - 1, num_posts[tile]), np.repeat(counts[laid], num_posts[tile])


def _by_category(program: Program, alive: IntArray) -> dict[str, int]:
    names, numbers = program.outline.categories
    sums = sums_by_key(numbers, alive.sum(axis=0), len(names))
    sizes = {name: size for name, size in zip(names, sums.tolist(), strict=True) if size}
    return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def _owners(program: Program, alive: IntArray, limit: int) -> tuple[tuple[str, str, int], ...]:
    """(owner, category, bytes), largest first; equal ones by layer, then in the order of their first rows."""
    flat = alive.ravel()
    owners = np.flatnonzero(flat > 0)
    if len(owners) > limit:
        owners = owners[flat[owners] >= np.partition(flat[owners], -limit)[-limit]]
    largest = owners[np.argsort(-flat[owners], kind="stable")[:limit]]
    layers, slots = np.divmod(largest, alive.shape[1])
    return tuple((*program.owner(layer - 1, slot), size) for layer, slot, size in
                 zip(layers.tolist(), slots.tolist(), flat[largest].tolist(), strict=True))
