"""Number of nodes that the groups of a mesh axis span; nodes hold consecutive ranks."""

from __future__ import annotations

import math
from functools import cache

__all__ = ["worst_spread"]


@cache
def worst_spread(group_size: int, stride: int, world_size: int, gpus_per_node: int) -> tuple[int, int]:
    """(number of nodes, fewest members in one of these nodes) of the group of ranks that is spread worst.

    Groups are `group_size` ranks with distance `stride`, of `world_size` ranks in all; nodes hold consecutive ranks.
    Worst is a group in several nodes before one inside a node, then fewest members in one node, then most nodes.
    """
    block = group_size * stride
    num_alignments = min(max(world_size // block, 1), gpus_per_node // math.gcd(block, gpus_per_node))
    offsets = range(min(stride, gpus_per_node))
    starts = {(i * block + offset) % gpus_per_node for i in range(num_alignments) for offset in offsets}
    spreads = [_spread(start, group_size, stride, gpus_per_node) for start in starts]
    return max(spreads, key=lambda spread: (spread[0] > 1, -spread[1], spread[0]))


def _spread(start: int, group_size: int, stride: int, gpus_per_node: int) -> tuple[int, int]:
    """(number of nodes, fewest members in one) of ranks start, start + stride, ...; 0 <= start < gpus_per_node."""
    if stride >= gpus_per_node:
        return group_size, 1
    last_node = (start + (group_size - 1) * stride) // gpus_per_node
    # The counts of full nodes repeat after `stride` nodes, so the first `stride` nodes and the last are enough.
    nodes = {*range(min(last_node, stride + 1)), last_node}
    return last_node + 1, min(_members(node, start, group_size, stride, gpus_per_node) for node in nodes)


def _members(node: int, start: int, group_size: int, stride: int, gpus_per_node: int) -> int:
    def before(rank: int) -> int:
        return min(max(-((start - rank) // stride), 0), group_size)

    return before((node + 1) * gpus_per_node) - before(node * gpus_per_node)
