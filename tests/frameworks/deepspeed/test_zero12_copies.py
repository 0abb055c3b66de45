"""Flat buffers out of which ZeRO-3 copies parameters."""

from __future__ import annotations

import small
from simcore.frameworks.deepspeed.zero12_copies import FlatBuffers
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables


def test_a_buffer_goes_with_the_last_of_its_parameters_that_is_asked_for() -> None:
    out = Builder(Tables())
    out.at(Phase.FORWARD, 0)
    slot = out.tables.slot("prefetched", "all_gather_output")
    flat = FlatBuffers(out, slot)
    out.alloc(0, slot, 10)
    out.alloc(1, slot, 7)
    flat.arrived([(0, 1, 0), (1, 0, 0)], 0, 10)
    flat.arrived([(1, 1, 0), (1, 2, 0)], 1, 7)
    flat.asked([(0, 1, 0)])
    assert len(flat.kept) == 2
    flat.asked([(1, 1, 0), (1, 2, 0)])
    flat.asked([(1, 1, 0)])
    flat.asked([(1, 0, 0)])
    assert not flat.kept
    program = small.written(out, "a", "b")
    assert small.postings(program, "prefetched") == [
        (0, "forward", 10), (1, "forward", 7), (1, "forward", -7), (0, "forward", -10)]
