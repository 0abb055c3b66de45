"""Steps of a collective over nodes, as NCCL counts them: they follow each other, one per rank of a ring.

[Note: steps of a ring]
In an all-gather or reduce-scatter over n ranks a part of the data passes n - 1 ranks one after another, in an
all-reduce twice as many, and each step takes a while however few bytes it carries: over 512 GPUs a millisecond. NCCL
tells these times to its own choice of algorithms and protocols (nccl 5067397c `graph/tuning.cc`: ncclTunerConstants,
ncclTopoTuneModel, ncclTopoGetAlgoTime), and takes the fastest: a ring that syncs by flags in every line of 128 bytes
(LL128, 0.92 of the bandwidth) or in whole pieces (Simple), for an all-reduce a tree between nodes, and for one rank a
node PAT (0.75). The protocol LL is left out: it is for small messages. Bytes over bandwidth are added to the steps.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["over_nodes_s"]


class _Protocol(NamedTuple):
    """Seconds of a call, of a step inside a node and of one between nodes; `rate`: share of the bandwidth."""

    call: float
    inside: float
    between: float
    rate: float


_RINGS: Final = (_Protocol(14.0e-6, 1.9e-6, 4.0e-6, 0.92), _Protocol(8.4e-6, 3.4e-6, 14.0e-6, 1.0))
_TREES: Final = (_Protocol(14.0e-6, 1.25e-6, 8.5e-6, 0.92), _Protocol(8.4e-6, 4.0e-6, 14.0e-6, 1.0))
"""LL128 and Simple. With one rank a node a ring's steps take as long as a tree's."""
_PAT: Final = _Protocol(8.0e-6, 2.8e-6, 4.0e-6, 0.75)
"""A step for each rank, and one that halves the distance."""


def over_nodes_s(collective: str, group_size: int, num_nodes: int, busy_s: float) -> float:
    """Seconds of a collective over `num_nodes` nodes by the fastest of NCCL's ways; 0 for collectives without steps.

    `group_size`: number of ranks; `busy_s`: seconds of its bytes at full bandwidth. See [Note: steps of a ring].
    """
    if collective not in ("all_gather", "reduce_scatter", "all_reduce"):
        return 0.0
    rounds = 2 if collective == "all_reduce" else 1
    apart = group_size == num_nodes
    ways = []
    for ring, tree in zip(_RINGS, _TREES, strict=True):
        between = tree.between if apart else ring.between
        steps = (group_size - num_nodes) * ring.inside + (num_nodes - 1) * between
        ways.append(ring.call + rounds * steps + busy_s / ring.rate)
        if collective == "all_reduce":
            climb = (group_size // num_nodes - 1) * tree.inside + _levels(num_nodes) * tree.between
            ways.append(tree.call + 2 * climb + busy_s / tree.rate)
    if apart and collective != "all_reduce":
        ways.append(_PAT.call + group_size * _PAT.inside + _levels(num_nodes) * _PAT.between + busy_s / _PAT.rate)
    return min(ways)


def _levels(num_nodes: int) -> int:
    """Levels of a tree of nodes: the logarithm to the base of two, rounded down as NCCL does."""
    return num_nodes.bit_length() - 1
