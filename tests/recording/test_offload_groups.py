"""Groups of modules: what others hold is emptied when the group leaves, and not when it stays."""

from __future__ import annotations

import pytest

from simcore.recording.offload_groups import ModuleGroups
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Tape


@pytest.mark.parametrize(("kept", "freed"), [(-1, [64, 64]), (0, [])])
def test_tensors_that_others_hold_are_emptied(kept: int, freed: list[int]) -> None:
    tape = Tape({}, {}, groups=ModuleGroups(("core_attn",), 16, 0, kept))
    assert tape.groups is not None
    query, small, held = (tape.empty((size,), "fp32", name) for name, size in (("q", 16), ("s", 4), ("held", 16)))
    group = tape.groups.begin("core_attn")
    node = tape.node((Param("w", (16,), "fp32", trainable=True),), (query, small), lambda _tape, _grads, _saved: [None])
    assert node is not None
    tape.groups.commit(group, (query, held))
    assert [-row[3] for row in tape.rows if row[0] == Op.FREE] == freed
    assert held.storage is not None
    assert held.storage.num_bytes == (64 if kept == 0 else 0)
    node.saved.clear()
    del small
