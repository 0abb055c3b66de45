"""Parameter groups of ZeRO-1 and 2: flat buffers whose parts are asked for at each gradient."""

from __future__ import annotations

from collections.abc import Iterator

from simcore.frameworks.deepspeed.experts.groups import Group


class _Entries(tuple[tuple[int, int, int], ...]):
    """Entries that count how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        _Entries.reads += 1
        return super().__iter__()


def test_a_group_counts_its_elements_once() -> None:
    """Owners are asked for at each of thousands of gradients: with small buckets that was most of an answer's time."""
    group = Group("dp_shard", 2, 0, 0, _Entries((0, number, 3) for number in range(4)))
    assert [list(group.owners(at, at + 3)) for at in (0, 3, 6, 9)] == [[(0, 3)], [(0, 3)], [(1, 3)], [(1, 3)]]
    assert _Entries.reads == 1
