"""One rank's step at any number of rows that its experts receive, layer by layer: peaks of many draws at once.

[Note: peaks without a program each]
A layer's rows are shapes times a number of received rows, so bytes are affine in it, except where an operator rounds
(tokens that arrive once for several experts) or reaches a limit (all tokens are there). The step is lowered at the
fewest and the most rows of all draws and in the middle. Where the middle is off the straight line by more than
rounding, both halves are looked into. All these programs share one outline, so a draw's bytes at any row of the step
lie on straight lines between two of them, each layer and microbatch at its own number. What a layer keeps stays until
its backward, so a step is one running sum over all layers; its maximum over the few rows of each tile that can be the
highest is the peak. The sum runs over all draws at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import posted_bytes
from simcore.simulation.expert_loads import Floats

__all__ = ["PiecewiseLinearStep", "spread"]

_ROUNDED = 64
"""Bytes by which an operator's own rounding may be off, beside that of whole rows."""
_EXACT = 0.5
"""Bytes are whole; floats are not."""


@dataclass(frozen=True, eq=False)
class _Line:
    """A tile's bytes: `nets[knot]` in all, `tops[knot, row]` at each row that may be its highest."""

    nets: Floats
    tops: Floats

    @property
    def varies(self) -> bool:
        return bool((self.nets != self.nets[0]).any() or (self.tops != self.tops[0]).any())


@dataclass(frozen=True, eq=False)
class PiecewiseLinearStep:
    """One rank's step at several numbers of rows (tokens) that its experts receive.

    `knots`: these numbers, rising; `programs`: the step at each. Between two of them bytes are affine; `exact`: to the
    byte, else up to rounding.
    """

    knots: tuple[int, ...]
    programs: tuple[Program, ...]
    exact: bool

    @cached_property
    def _lines(self) -> list[_Line]:
        return [_line(np.stack([p.tiles[n].prefix for p in self.programs]).astype(np.float64))
                if len(tile.rows) else _line(np.zeros((len(self.knots), 1)))
                for n, tile in enumerate(self.programs[0].tiles)]

    @property
    def varying_layers(self) -> set[int]:
        """Numbers (in the whole model, embedding 0) of the layers whose bytes depend on received rows."""
        varies = [line.varies for line in self._lines]
        return {p.layer for p in self.programs[0].outline.pieces if p.tile >= 0 and varies[p.tile]}

    def peaks(self, rows: Mapping[int, IntArray]) -> IntArray:
        """Highest allocated bytes of the step for each of many cases, as an array [case].

        `rows[layer][microbatch, case]`: rows that experts of the layer (number in the whole model) receive, needed for
        all `varying_layers`; everything else is taken from the first of `programs`. Without `rows` there is one case.
        OverflowError from 2**62 bytes.
        """
        columns = next(iter(rows.values())).shape[1] if rows else 1
        lines, outline = self._lines, self.programs[0].outline
        base, best = np.zeros(columns), np.full(columns, -np.inf)
        fixed = rest = 0.0
        top = -np.inf
        for number, piece in enumerate(outline.pieces):
            line = lines[piece.tile] if piece.tile >= 0 else None
            if line is not None and line.varies:
                np.maximum(best, base + (fixed + top), out=best)
                net, tops = _at(line, self.knots, rows[piece.layer][piece.microbatch])
                fixed, rest, top = fixed + rest, 0.0, -np.inf
                for each in tops:
                    np.maximum(best, base + (each + fixed), out=best)
                base += net
                continue
            net_of, top_of = (int(outline.nets[number]), int(outline.tops[number])) if line is None else (
                float(line.nets[0]), float(line.tops[0].max()))
            top = max(top, rest + top_of)
            rest += net_of
        np.maximum(best, base + (fixed + top), out=best)
        if best.max() >= 2.0**62:
            raise OverflowError("peaks pass 64 bits")
        highest: IntArray = np.rint(best).astype(np.int64)
        return highest


def _at(line: _Line, knots: tuple[int, ...], rows: IntArray) -> tuple[Floats, list[Floats]]:
    """(bytes in all, bytes at each candidate) for each number of rows."""
    last = len(knots) - 2
    at = np.clip(np.searchsorted(knots, rows, side="right") - 1, 0, last) if last else np.zeros((), np.int64)
    past = rows - np.array(knots)[at]

    def straight(values: Floats) -> Floats:
        slopes = np.diff(values) / np.diff(knots)
        found: Floats = values[at] + slopes[at] * past
        return found

    return straight(line.nets), [straight(values) for values in line.tops.T]


def _line(prefix: Floats) -> _Line:
    """Last of the sums after each row, [knot, row], and those sums that are the highest somewhere between two knots."""
    ends = np.minimum(np.arange(len(prefix)) + 1, len(prefix) - 1)
    kept = np.zeros(prefix.shape[1], dtype=bool)
    for left, right in zip(prefix, prefix[ends], strict=True):
        beaten = np.zeros(len(left), dtype=bool)
        for champion in {int(np.argmax(left)), int(np.argmax(right))}:
            beaten |= (left <= left[champion]) & (right <= right[champion]) & (np.arange(len(left)) != champion)
        kept |= ~beaten
        kept[np.argmax(left)] = True
    return _Line(prefix[:, -1], prefix[:, kept])


def spread(program_at: Callable[[int], Program], fewest: int, most: int, slack: int) -> PiecewiseLinearStep:
    """One rank's step for `fewest` to `most` received rows, simulated at enough numbers to interpolate.

    `program_at`: gives the program for a number of rows. `slack`: number of rows by which an operator's rounding may
    move bytes.
    """
    found = {rows: program_at(rows) for rows in {fewest, most}}
    todo = [(fewest, most)] if most - fewest > 1 else []
    exact = True
    while todo:
        low, high = todo.pop()
        middle = (low + high) // 2
        program = program_at(middle)
        is_exact, is_rounding = _straight(found[low], program, found[high], (middle - low) / (high - low),
                                          slack / (high - low))
        if not is_rounding and high - low >= 2 * slack:
            found[middle] = program
            todo += [(low, middle), (middle, high)]
        else:
            exact &= is_exact
    knots = tuple(sorted(found))
    return PiecewiseLinearStep(knots, tuple(found[rows] for rows in knots), exact)


def _straight(low: Program, middle: Program, high: Program, share: float, slack: float) -> tuple[bool, bool]:
    """Tells whether the middle's posted bytes are on the line between both ends: (to the byte, but for rounding)."""
    assert low.outline is middle.outline is high.outline, "what is received changes what a step does"
    exact = fine = True
    for tiles in zip(low.tiles, middle.tiles, high.tiles, strict=True):
        a, b, c = (posted_bytes(tile.rows) for tile in tiles)
        away = np.abs(b - (a + (c - a) * share))
        exact &= bool((away < _EXACT).all())
        fine &= bool((away <= np.abs(c - a) * slack + _ROUNDED).all())
    return exact, fine
