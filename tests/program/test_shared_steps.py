"""Steps of plans of one form: the rows of a walk, without the walk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcore.program.lower as lowering
import simcore.program.shared_steps as shared
import small
from layouts import Layout as Drawn
from layouts import layouts, resharded
from simcore.program.program import Program
from simcore.program.row_cache import _ALL

LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 4}}
STAGES: dict[str, Any] = {"pipeline": {"layers": [3, 2]}}
Layout = tuple[dict[str, int], dict[str, Any]]
SPACES: dict[str, list[Layout]] = {
    "fsdp2": [({"dp_shard": 2}, {}), ({"dp_shard": 4}, {}), ({"dp_shard": 8}, LORA), ({"dp_shard": 4}, LORA),
              ({"dp_shard": 4, "ep": 2}, {}), ({"dp_shard": 8, "ep": 4}, {}), ({"dp_shard": 4, "ep": 4}, LORA),
              ({"dp_replicate": 2, "dp_shard": 2}, {}), ({"dp_replicate": 2, "dp_shard": 4}, {}), ({"dp_shard": 1}, {}),
              ({"dp_shard": 8}, {"recompute": "full"}), ({"dp_shard": 2}, {"recompute": "full"})],
    "automodel": [({"dp_shard": 2}, {}), ({"dp_shard": 4}, {}), ({"dp_shard": 4, "ep": 2}, {}), ({"dp_shard": 4}, LORA),
                  ({"dp_shard": 8, "ep": 2}, {}), ({"dp_shard": 8, "ep": 4}, LORA), ({"dp_shard": 4, "ep": 4}, LORA),
                  ({"pp": 2, "dp_shard": 2}, {}), ({"pp": 2, "dp_shard": 4}, {}),
                  ({"pp": 2, "dp_shard": 4, "ep": 2}, {})],
    "megatron": [({"dp_shard": 2}, {}), ({"dp_shard": 4}, {}), ({"dp_shard": 4, "ep": 2}, {}), ({"tp": 2}, {}),
                 ({"dp_shard": 4}, LORA), ({"tp": 2, "dp_shard": 2}, LORA), ({"dp_replicate": 2, "dp_shard": 2}, {}),
                 ({"pp": 2, "dp_shard": 2}, STAGES), ({"pp": 2, "dp_shard": 4}, STAGES),
                 ({"pp": 2, "tp": 2, "dp_shard": 2, "ep": 2}, STAGES),
                 ({"dp_shard": 4}, {"offload": {"optimizer": "host"}})]}


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    small.forget_outlines()
    yield
    small.forget_outlines()


def equal(one: Program, other: Program) -> bool:
    tables = [[list(p.tables.slots), list(p.tables.comms), list(p.tables.hooks), p.tables.units] for p in (one, other)]
    return tables[0] == tables[1] and np.array_equal(one.outline.columns, other.outline.columns) and np.array_equal(
        one.columns, other.columns)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("framework", SPACES)
def test_shared_steps_have_the_rows_of_a_walk(framework: str, microbatches: int, monkeypatch: pytest.MonkeyPatch,
                                              ) -> None:
    def programs() -> list[Program]:
        return [small.program_of(framework, mesh, rank=rank, microbatches=max(microbatches, mesh.get("pp", 1)), **given)
                for mesh, given in SPACES[framework] for rank in (0, _last_rank(mesh))]

    found = programs()
    patterns = sum(len(known) for known in map(shared._PATTERNS.get, _forms()) if known)
    small.forget_outlines()
    monkeypatch.setattr(lowering, "shared_step", lambda *_: None)
    assert all(equal(one, other) for one, other in zip(found, programs(), strict=True))
    assert 0 < patterns < len(found)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(st.one_of(layouts(16), resharded(16)), min_size=3, max_size=6), st.sampled_from([{}, LORA]))
def test_so_have_drawn_ones(drawn: list[Drawn], method: dict[str, Any]) -> None:
    def programs() -> list[Program]:
        small.forget_outlines()
        return [small.program_of(name, mesh, options=options, microbatches=max(2, mesh.get("pp", 1)), **method)
                for name, mesh, options in drawn]

    found = programs()
    with patch.object(lowering, "shared_step", lambda *_: None):
        assert all(equal(one, other) for one, other in zip(found, programs(), strict=True))


def _last_rank(mesh: dict[str, int]) -> int:
    return math.prod(mesh.get(axis, 1) for axis in ("pp", "dp_replicate", "dp_shard", "tp")) - 1


def _forms() -> list[Any]:
    return [key[1] for key in list(_ALL.found) if key[0] is shared._PATTERNS]


def test_a_plan_of_other_answers_has_its_own_pattern() -> None:
    """One rank of shards gathers nothing: rows differ, not the form."""
    small.program_of("fsdp2", {"dp_shard": 4})
    (form,) = _forms()
    small.program_of("fsdp2", {"dp_shard": 8})
    assert len(shared._PATTERNS.get(form) or ()) == 1
    small.program_of("fsdp2", {"dp_shard": 1})
    assert len(shared._PATTERNS.get(form) or ()) == 2


def test_what_a_cpu_updates_is_walked_by_itself() -> None:
    """Its amounts do not come from traced sizes, so nothing is shared, and the copies are there."""
    host = dict.fromkeys(("params", "gradients", "optimizer"), "host")
    program = small.program_of("fsdp2", {"dp_shard": 4}, offload=host)
    (form,) = _forms()
    assert shared._PATTERNS.get(form) == (None,)
    assert ("copy", "to_device", "fp32") in program.tables.comms


def test_without_its_guards_a_pattern_would_give_wrong_rows() -> None:
    """The comparison with walks fails where the answers of a walk are not asked again."""
    small.program_of("fsdp2", {"dp_shard": 4})
    (form,) = _forms()
    (pattern,) = shared._PATTERNS.get(form) or ()
    assert pattern is not None
    pattern.trace.guards.clear()
    pattern.trace.is_some.clear()
    wrong = small.program_of("fsdp2", {"dp_shard": 1})
    small.forget_outlines()
    assert not equal(wrong, small.program_of("fsdp2", {"dp_shard": 1}))
