"""Sums of a tile, against its rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import small
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.tile import LayerRows, posted_bytes
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Op, Section

POSTINGS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 50), st.booleans()), min_size=1,
                    max_size=20)


def tile(found: list[tuple[int, int, int, bool]]) -> LayerRows:
    return LayerRows.of(Section(tuple((Op.ALLOC, layer, slot, size, 0, 0) if born else (Op.FREE, layer, slot, -size, 0,
                                                                                        0)
                                 for layer, slot, size, born in found)))


@given(POSTINGS)
def test_sums(found: list[tuple[int, int, int, bool]]) -> None:
    laid_rows = tile(found)
    amounts = [size if born else -size for *_, size, born in found]
    sums = [sum(amounts[:i + 1]) for i in range(len(amounts))]
    out = Builder(Tables())
    out.tile(tile(found[:1]), 0)
    out.tile(laid_rows, 0)
    nets, tops = small.written(out, "a").tile_sums
    assert (nets.tolist(), tops.tolist()) == ([amounts[0], sums[-1], 0], [amounts[0], max(sums), 0])
    assert laid_rows.highest == sums.index(max(sums))
    assert posted_bytes(laid_rows.rows).tolist() == amounts


@given(POSTINGS, st.integers(0, 19))
def test_what_owners_hold(found: list[tuple[int, int, int, bool]], row: int) -> None:
    held: dict[tuple[int, int], int] = {}
    for layer, slot, size, born in found[:row + 1]:
        held[layer, slot] = held.get((layer, slot), 0) + (size if born else -size)
    nets = {(layer, slot): size for layer, slot, size in tile(found[:row + 1]).nets.tolist()}
    assert nets == {owner: size for owner, size in held.items() if size}


def test_a_replay_is_marked_and_has_its_own_top() -> None:
    mark = (Op.MARK, 0, RECOMPUTE_BEGIN, 0, 0, 0), (Op.MARK, 0, RECOMPUTE_END, 0, 0, 0)
    made = LayerRows.of(Section(((Op.ALLOC, 0, 0, 9, 0, 0), (Op.FREE, 0, 0, -9, 0, 0), mark[0],
                                 (Op.ALLOC, 0, 1, 4, 0, 0),
                            (Op.COLLECTIVE, 0, 3, 64, 0, 0), mark[1], (Op.COLLECTIVE, 0, 2, 32, 0, 0))))
    assert made.replayed
    assert (made.prefix.max(), made.top_of_replay) == (9, 4)
    out = Builder(Tables())
    out.tile(made, 0)
    assert small.written(out, "a").calls().tolist() == [[3, 64, Phase.RECOMPUTE, 0], [2, 32, Phase.BUILD, 0]]
    assert not tile([(0, 0, 1, True)]).replayed
