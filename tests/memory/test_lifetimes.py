"""Births and deaths of allocations against the ledger's running sum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import small
from simcore.memory.ledger import running
from simcore.memory.lifetimes import TOGETHER, lifetimes
from simcore.program.builder import Builder
from simcore.program.outline import Phase, Tables
from simcore.program.program import Program
from simcore.program.tile import OP
from simcore.recording.tape import Op
from simcore.results.detail import Lifetimes

MESHES = [("fsdp2", {"dp_shard": 4}), ("automodel", {"dp_shard": 4, "ep": 2}), ("megatron", {"dp_shard": 2, "tp": 2}),
          ("megatron_fsdp", {"dp_shard": 4}), ("ddp", {"dp_replicate": 2}), ("zero3", {"dp_shard": 2}),
          ("automodel", {"dp_shard": 2, "pp": 5})]


def sums(policies: Lifetimes) -> list[int]:
    """Bytes after each moment."""
    change = [0] * len(policies.time_us)
    for size, born, died in zip(policies.bytes, policies.born, policies.died, strict=True):
        change[born] += size
        if died >= 0:
            change[died] -= size
    return list(itertools.accumulate(change))


def posted(program: Program) -> list[int]:
    """The ledger's sum after each row that posts something."""
    return running(program)[program.columns[:, OP] <= Op.FREE].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("framework", "mesh"), MESHES, ids=str)
def test_sums_are_the_ledgers_at_every_moment(framework: str, mesh: dict[str, int]) -> None:
    program = small.program_of(framework, mesh, microbatches=5)
    policies = lifetimes(program, None, 1 << 30)
    assert sums(policies) == posted(program)
    assert policies.merged == 0
    assert all(size > 0 for size in policies.bytes)
    assert all(died > born for born, died in zip(policies.born, policies.died, strict=True) if died >= 0)


@pytest.mark.parametrize(("framework", "mesh"), MESHES, ids=str)
@pytest.mark.parametrize("limit", [400, 40])
def test_told_together_the_highest_moment_stays(framework: str, mesh: dict[str, int], limit: int) -> None:
    program = small.program_of(framework, mesh, microbatches=5)
    whole = posted(program)
    assert len(whole) > limit
    policies = lifetimes(program, None, limit)
    found = sums(policies)
    assert (max(found), found[-1]) == (max(whole), whole[-1])
    assert len(policies.bytes) < len(whole) / 2
    assert policies.merged == sum(later > before for before, later in itertools.pairwise([0, *whole]))
    assert {name for _, name, _ in policies.owners} == {TOGETHER}


def test_what_rests_is_there_first() -> None:
    policies = lifetimes(small.program_of("fsdp2", {"dp_shard": 4}), None, 1 << 30)
    phases = [policies.phases[moment] for moment in policies.born]
    assert phases[0] == "build"
    assert "build" not in phases[phases.index("forward"):]


def by_hand(*steps: tuple[str, int]) -> Program:
    out = Builder(Tables())
    slot = out.tables.slot("x", "activation")
    out.at(Phase.FORWARD, 0)
    for what, size in steps:
        (out.alloc if what == "+" else out.free)(0, slot, size)
    return small.written(out, "embedding")


def rows(program: Program) -> list[tuple[int, int, int]]:
    policies = lifetimes(program, None, 1 << 30)
    return list(zip(policies.bytes, policies.born, policies.died, strict=True))


def test_of_equal_blocks_the_youngest_goes() -> None:
    assert rows(by_hand(("+", 8), ("+", 8), ("-", 8))) == [(8, 0, -1), (8, 1, 2)]


def test_of_unequal_blocks_the_one_of_this_size_goes() -> None:
    assert rows(by_hand(("+", 8), ("+", 5), ("-", 8))) == [(8, 0, 2), (5, 1, -1)]


def test_a_block_that_goes_in_parts_is_parts() -> None:
    assert sorted(rows(by_hand(("+", 8), ("-", 3), ("-", 5)))) == [(3, 0, 1), (5, 0, 2)]


def test_parts_that_go_together() -> None:
    assert rows(by_hand(("+", 8), ("+", 5), ("-", 13))) == [(8, 0, 2), (5, 1, 2)]


def test_names_dates_and_microbatches() -> None:
    program = small.program_of("megatron", {"dp_shard": 2}, microbatches=5)
    row_ns = 1500 * np.arange(len(program.columns))
    policies = lifetimes(program, row_ns, 1 << 30)
    assert list(policies.time_us) == sorted(policies.time_us)
    assert policies.time_us[-1] > 0
    assert {0, 1} <= {policies.microbatches[moment] for moment in policies.born}
    assert all(layer and tensor and category for layer, tensor, category in policies.owners)
