"""Step of the `dion` package's Muon over shards: batches of matrices, each made orthogonal whole on one rank.

[Note: dion's Muon] microsoft/dion 7452a58 `dion/muon.py`, `opt_utils.py`. Matrices of one shape and format go in
batches of as many as there are ranks; a last batch is filled up with empty ones, of parameter, gradient and momentum
(pad_batch). An all-to-all of shards in bf16 gives each rank one matrix, Newton-Schulz's result goes back by another.
Three tasks run at a time (AsyncRuntime): a batch sends, the one before computes, the one before that updates. Updates
are copies of momenta in bf16; with Nesterov, or momenta in fp32, tensors of their own, else the momenta themselves.
Functions are compiled: Inductor's code of torch 2.13 holds three matrices and a Gram matrix beside the gathered one in
Newton-Schulz steps, nothing in the update, and of AdamW both new moments and the square of the gradient of a whole
group (foreach lerp is a kernel of its own). Numbers of one element are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["DION", "Matrix", "held", "messages", "product_flops"]

DION: Final = "dion"
"""Implementation in a scenario whose step this is."""
_BF16: Final = 2
_KEPT_BY_ADAM: Final = 3


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of the step: its whole `shape`, and bytes of an element of parameter (momentum) and gradient."""

    shape: tuple[int, int]
    size: int
    grad_size: int

    @property
    def whole(self) -> int:
        """Bytes of all of it in bf16."""
        return _BF16 * math.prod(self.shape)


def _batches(matrices: Sequence[Matrix], ranks: int) -> Iterator[tuple[Matrix, int]]:
    """Yields (a matrix, how many are alike) of each batch, in the order in which a shape first appears."""
    groups: dict[Matrix, int] = {}
    for matrix in matrices:
        groups[matrix] = groups.get(matrix, 0) + 1
    for matrix, count in groups.items():
        for begin in range(0, count, ranks):
            yield matrix, min(ranks, count - begin)


def messages(matrices: Sequence[Matrix], ranks: int) -> list[int]:
    """Returns the bytes that a rank receives in each all-to-all of a step, in order; none on one rank."""
    if ranks == 1:
        return []
    sizes = [matrix.whole for matrix, _ in _batches(matrices, ranks)]
    sent: list[int] = []
    for at in range(len(sizes) + 1):
        sent += [*sizes[at:at + 1], *sizes[at - 1:at]] if at else sizes[:1]
    return sent


def _stages(matrix: Matrix, count: int, ranks: int, *, aliased: bool) -> list[tuple[int, int]]:
    """(Bytes at most, bytes that stay) of each turn of a batch's task, beyond what stays of the turn before."""
    gram = _BF16 * min(matrix.shape) ** 2
    updates = 0 if aliased else matrix.whole
    if ranks == 1:
        return [(updates + 3 * matrix.whole + gram, 0)]
    padded = (ranks - count) * math.prod(matrix.shape) // ranks * (2 * matrix.size + matrix.grad_size)
    begun = padded + updates + matrix.whole
    return [(begun, begun), (4 * matrix.whole + gram, 0), (0, -begun)]


def held(matrices: Sequence[Matrix], others: Sequence[int], ranks: int, *, nesterov: bool) -> int:
    """Returns the most bytes that a step holds at a time, besides states.

    `others`: bytes of the rank's part of a moment of each group that AdamW updates. `ranks`: that share each matrix.
    """
    tasks = [_stages(matrix, count, ranks, aliased=not nesterov and matrix.size == _BF16)
             for matrix, count in _batches(matrices, ranks)]
    tasks += [[(_KEPT_BY_ADAM * group, 0)] for group in others]
    now = most = 0
    for turn in range(len(tasks) + 2):
        for back in range(3):
            stages = tasks[turn - back] if 0 <= turn - back < len(tasks) else []
            if back < len(stages):
                most = max(most, now + stages[back][0])
                now += stages[back][1]
    return most


def product_flops(matrices: Sequence[Matrix], ranks: int) -> int:
    """Returns the FLOPs of a rank's Newton-Schulz steps: of one matrix of each batch, whole."""
    total = 0
    for matrix, _ in _batches(matrices, ranks):
        small, large = sorted(matrix.shape)
        total += 5 * (2 * 2 * small * small * large + 2 * small ** 3)
    return total
