"""Waits of kernels divided among calls: what nothing overlaps is exposed, counted by hand and in every framework."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.program.builder import Builder
from simcore.recording.tape import Kernel, Stream
from simcore.results.time import StepTime
from simcore.simulate import simulate
from timing.test_breakdown import builder, of, parts


def calls(out: Builder, *sent: tuple[str, int, Stream]) -> None:
    for handle, (collective, ns, stream) in enumerate(sent):
        out.collective(0, out.tables.comm(collective, "dp_shard", "bf16"), ns, stream, handle)


def shares(out: Builder, **given: Any) -> dict[str, tuple[int, int, int]]:
    """(alone, exposed, hidden) ns by collective."""
    return {one.collective: (one.alone_ns, one.exposed_ns, one.hidden_ns) for one in of(out, **given).sent}


def test_a_call_in_front_of_the_awaited_one_is_exposed() -> None:
    """5 ns of kernels beside 10 of a reduction; the other 5 and the gather behind it are waited for."""
    out = builder()
    calls(out, ("reduce_scatter", 10, Stream.ALL_GATHER), ("all_gather", 20, Stream.ALL_GATHER))
    out.compute(Kernel.GEMM, 0, 5)
    out.wait(0, 1)
    assert shares(out) == {"reduce_scatter": (10, 5, 5), "all_gather": (20, 20, 0)}
    assert parts(of(out)) == {"forward": 5, "communication": 25}


def test_the_first_gather_of_a_pass_is_exposed() -> None:
    out = builder()
    calls(out, ("all_gather", 20, Stream.ALL_GATHER))
    out.wait(0, 0)
    out.compute(Kernel.GEMM, 0, 5)
    assert shares(out) == {"all_gather": (20, 20, 0)}


def test_of_two_at_a_time_the_awaited_one_is_exposed_and_the_other_not_hidden() -> None:
    out = builder()
    calls(out, ("reduce_scatter", 10, Stream.REDUCE), ("all_gather", 20, Stream.ALL_GATHER))
    out.compute(Kernel.GEMM, 0, 5)
    out.wait(0, 1)
    assert shares(out) == {"reduce_scatter": (10, 0, 5), "all_gather": (20, 15, 5)}


def test_kernels_that_wait_for_the_host_hide_nothing() -> None:
    """A gather of 15 ns begins with the step; the kernels of 2 ns begin after 10 and 20 ns of the host."""
    out = builder()
    calls(out, ("all_gather", 15, Stream.ALL_GATHER))
    out.compute(Kernel.GEMM, 0, 2)
    out.compute(Kernel.GEMM, 0, 2)
    out.wait(0, 0)
    alone, exposed, hidden = shares(out, host_ns=10)["all_gather"]
    assert (alone, exposed) == (15, 0)
    assert hidden <= 4


def test_a_call_behind_the_last_kernel_is_exposed_with_those_before_it() -> None:
    out = builder()
    out.compute(Kernel.GEMM, 0, 5)
    calls(out, ("reduce_scatter", 10, Stream.REDUCE), ("all_gather", 20, Stream.REDUCE))
    assert shares(out) == {"reduce_scatter": (10, 10, 0), "all_gather": (20, 20, 0)}


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 16}), ("fsdp2", {"dp_replicate": 2, "dp_shard": 8}), ("fsdp1", {"dp_shard": 16}),
    ("zero1", {"dp_shard": 16}), ("zero3", {"dp_shard": 16}), ("megatron", {"dp_shard": 16}),
    ("megatron_fsdp", {"dp_shard": 16}), ("automodel", {"dp_shard": 16}), ("ddp", {"dp_replicate": 16})])
def test_no_time_is_both_exposed_and_hidden(framework: str, mesh: dict[str, int]) -> None:
    """One class of ranks, so that no rank is late: a call is exposed, hidden, or beside an idle device."""
    time = simulate(small.scenario(framework, mesh, model="llama-3-8b", seq_len=512)).time
    assert isinstance(time, StepTime)
    assert time.communication
    for row in time.communication:
        assert row.exposed_s + row.hidden_s <= row.alone_s * (1 + 1e-9) + 1e-9, row
    assert sum(row.exposed_s for row in time.communication) == pytest.approx(time.parts["communication"])
