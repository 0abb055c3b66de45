"""Step time: parts add up, kernels alone are a floor, more ranks and microbatches do what they must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.hardware.topology import load_topology
from simcore.placement.fold import fold
from simcore.program.outline import Phase
from simcore.program.tile import AMOUNT, AUX, OP
from simcore.recording.tape import Op, Stream
from simcore.timing.routes import Routes
from simcore.timing.step import StepTiming, time_step, with_reasons


def clocked(name: str, mesh: dict[str, int], *, microbatches: int = 2, **given: Any) -> StepTiming:
    """Every microbatch written out."""
    job, table = prepare(small.scenario(name, mesh, microbatches=microbatches, **given))
    classes = fold(job.graph, job.mesh, table)
    programs = [small.program_of(name, mesh, rank=c.representative, microbatches=microbatches, **given)
                for c in classes]
    length = time_step(programs, classes, Routes(job, table, load_topology("dgx-h100", None)), table, range(1), 0)
    return with_reasons(length, programs[length.worst])


def exposed(made: StepTiming) -> int:
    return made.spending.parts["communication"]


def once(name: str) -> int:
    """Host time of Megatron's loop once a step."""
    return int(load_topology("dgx-h100").efficiency.host.step.si * 1e9) if name.startswith("megatron") else 0


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_phases_of_the_slowest_rank_are_the_step(name: str) -> None:
    """Whatever a compute stream does, it does in a phase; communication may trail behind it."""
    timing = clocked(name, {"dp_shard": 4, "ep": 2})
    last = max(int(rows[-1]) for rows in timing.row_ns) + once(name)
    assert sum(timing.phase_ns.values()) <= timing.step_ns
    assert abs(sum(timing.phase_ns.values()) - last) <= last // 100
    assert all(part > 0 for part in timing.phase_ns.values())


@pytest.mark.parametrize("name", small.FRAMEWORKS)
def test_one_rank_never_waits(name: str) -> None:
    timing = clocked(name, {})
    assert (exposed(timing), timing.step_ns) == (0, sum(timing.phase_ns.values()))


def test_time_never_runs_backwards() -> None:
    for rows in clocked("automodel", {"pp": 2, "dp_shard": 4, "ep": 2}, microbatches=4).row_ns:
        assert (np.diff(rows) >= 0).all()


def test_waiting_is_part_of_the_step() -> None:
    timing = clocked("fsdp2", {"dp_shard": 8})
    alone = clocked("fsdp2", {})
    assert 0 < exposed(timing) < timing.step_ns
    assert exposed(alone) == 0


def test_forward_flops_are_those_of_all_ranks() -> None:
    """Data-parallel ranks do the same work each; microbatches too."""
    one = clocked("fsdp2", {}, microbatches=1).forward_flops
    assert clocked("fsdp2", {"dp_shard": 3}, microbatches=2).forward_flops == 6 * one


def test_forward_flops_of_a_dense_model() -> None:
    """Two for each weight of a matrix and token, four for each pair of positions, head and dimension of attention."""
    matrices = 4 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688) + 1000 * 256
    attention = 4 * 4 * 64 * 64 * 8 * 32
    found = clocked("fsdp2", {}, microbatches=1, model="llama-tiny").forward_flops
    assert found in (2 * 64 * matrices + attention, 2 * 64 * matrices + attention // 2)  # causal: half the pairs


def test_every_kernel_takes_time() -> None:
    """A row that does nothing is the host's alone."""
    program = small.program_of("fsdp2")
    timing = clocked("fsdp2", {}, microbatches=1)
    kernels = (program.columns[:, OP] == Op.COMPUTE) & (program.columns[:, AMOUNT] + program.columns[:, AUX] > 0)
    spent = np.diff(np.concatenate([[0], timing.row_ns[0]]))
    assert (spent[kernels] > 0).all()
    assert (spent[~kernels] == 0).all()


LORA: dict[str, Any] = {"method": "lora", "lora": {"target_modules": ["q_proj"]}}


@pytest.mark.parametrize("given", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize(("name", "mesh"), [
    ("fsdp2", {"dp_shard": 2}), ("fsdp2", {"dp_shard": 2, "dp_replicate": 2}), ("fsdp1", {"dp_shard": 2}),
    ("fsdp1", {"dp_shard": 2, "dp_replicate": 2}), ("ddp", {"dp_replicate": 2}), ("zero1", {"dp_shard": 2}),
    ("zero2", {"dp_shard": 2}), ("zero3", {"dp_shard": 2}), ("automodel", {"dp_shard": 2}),
    ("megatron", {"dp_shard": 2})])
def test_the_optimizer_steps_when_all_gradients_are_reduced(name: str, mesh: dict[str, int],
                                                            given: dict[str, Any]) -> None:
    """Also where the model's first layers have no gradient (LoRA's targets lie in the layers)."""
    if given and name in ("automodel", "megatron"):  # their own words for the same matrix
        given = LORA | {"lora": {"target_modules": ["*q_proj" if name == "automodel" else "linear_qkv"]}}
    options = {"options": {"use_orig_params": True}} if name == "fsdp1" else {}
    _check_wait(name, mesh, **given, **options)


def test_the_optimizer_waits_for_a_last_bucket_that_is_full() -> None:
    """DDP, adapters of 1 MiB each: every gradient fills a bucket, that of the first layer too."""
    _check_wait("ddp", {"dp_replicate": 2}, method="lora", lora={"rank": 2048, "target_modules": ["q_proj"]},
                options={"bucket_cap_mb": 1})


def _check_wait(name: str, mesh: dict[str, int], **given: Any) -> None:
    given = given | {"model": "llama-tiny", "seq_len": 1}
    timing = clocked(name, mesh, microbatches=3, **given)
    program = small.program_of(name, mesh, microbatches=3, **given)
    begin = int(np.flatnonzero(program.phase == Phase.OPTIMIZER)[0])
    awaited = {item.wait_for for item in timing.tracks[0].skeleton.items if item.row <= begin}
    last = max(call.number for call, _, _ in timing.times[0].calls if call.stream in (Stream.REDUCE, Stream.ALL_REDUCE))
    assert last in awaited


@pytest.mark.parametrize("name", ["fsdp2", "fsdp1", "megatron_fsdp"])
def test_replicas_sum_what_was_scattered(name: str) -> None:
    """HSDP, shards in a node, replicas over the network: an all-reduce takes the result of a reduce-scatter."""
    timing = clocked(name, {"dp_shard": 8, "dp_replicate": 2}, model="llama-tiny", microbatches=1)
    calls = {stream: [(start, end) for call, start, end in timing.times[0].calls if call.stream == stream]
             for stream in (Stream.REDUCE, Stream.ALL_REDUCE)}
    ends = sorted(end for _, end in calls[Stream.REDUCE])
    starts = sorted(start for start, _ in calls[Stream.ALL_REDUCE])
    assert len(starts) == len(ends)
    assert all(end <= start for end, start in zip(ends, starts, strict=True))
