"""Sums past 64 bits, held against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from simcore.recording.exact_sums import countable, dot, fitting, sums_by_key
from simcore.results.report import Report
from simcore.simulate import simulate

SIZES = st.integers(0, 2**62)
PAIRS = st.lists(st.tuples(SIZES, st.integers(0, 2**40)), max_size=30)


@given(PAIRS)
def test_a_sum_of_products_is_python_s(pairs: list[tuple[int, int]]) -> None:
    values, times = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    assert dot(values, times) == sum(a * b for a, b in pairs)


@given(PAIRS.filter(bool))
def test_columns_are_too(pairs: list[tuple[int, int]]) -> None:
    values, times = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    table = np.stack([times, 2 * times], axis=1)
    found = (countable(values, table.sum(axis=1)) @ table).tolist()
    assert found == [sum(a * b for a, b in pairs), sum(2 * a * b for a, b in pairs)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**57), 2**57)), max_size=30))
def test_sums_by_key_are_python_s(pairs: list[tuple[int, int]]) -> None:
    """Also beyond 2**53, where sums in floats are some bytes off."""
    keys, values = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    assert sums_by_key(keys, values, 5).tolist() == [sum(b for a, b in pairs if a == key) for key in range(5)]


@given(st.lists(st.integers(-(2**62), 2**62), max_size=30))
def test_what_fits_is_counted_and_the_rest_refused(sizes: list[int]) -> None:
    values, total = np.array(sizes, dtype=np.int64), sum(map(abs, sizes))
    if total < 2**62 - 2**20:
        assert fitting(values) is values
    elif total > 2**62 + 2**20:
        with pytest.raises(OverflowError):
            fitting(values)


# ---- of a step -------------------------------------------------------------------------------------------------------
JOBS: dict[str, tuple[str, dict[str, int], str]] = {
    "fsdp2": ("fsdp2", {"dp_shard": 8}, "llama-3.1-405b"),
    "one": ("fsdp2", {"dp_shard": 1}, "llama-3.1-8b"),
    "megatron": ("megatron", {"tp": 8}, "llama-3.1-405b"),
    "stages": ("megatron", {"pp": 4, "dp_shard": 8, "ep": 8}, "nemotron-3-nano-30b-a3b"),
}  # fmt: skip


def stepped(name: str, num_microbatches: int) -> Report:
    framework, mesh, model = JOBS[name]
    report = simulate(small.scenario(framework, mesh, model=model, microbatches=num_microbatches, seq_len=32768))
    assert report.status == "ok", report.problems
    return report


def counts(report: Report) -> dict[tuple[object, ...], int]:
    """FLOPs and bytes that are sums over microbatches."""
    assert report.time is not None
    found: dict[tuple[object, ...], int] = {}
    for kernel in report.time.kernels:
        found[kernel.kernel, kernel.dtype, "flops"], found[kernel.kernel, kernel.dtype,
                                                           "moved"] = kernel.flops, kernel.bytes_moved
    for number, rank in enumerate(report.ranks):
        for row in rank.traffic:
            key = (number, row.collective, row.axis, row.phase, row.dtype)
            found |= {(*key, "payload"): row.payload_bytes, (*key, "wire"): row.wire_bytes, (*key, "calls"): row.calls}
    return found


@pytest.mark.parametrize("name", JOBS)
@given(more=st.integers(10, 20))
@settings(max_examples=2, deadline=None)
def test_sums_of_a_step_are_a_line_in_its_microbatches(name: str, more: int) -> None:
    """Python's integers extend what a few microbatches take to 2**`more`: FLOPs of them pass 2**63."""
    few = [counts(stepped(name, count)) for count in (64, 128)]
    many = counts(stepped(name, 2**more))
    line = {key: low + (few[1][key] - low) // 64 * (2**more - 64) for key, low in few[0].items()}
    assert many == line


def test_a_long_step_passes_64_bits_and_is_told() -> None:
    """`llama-3.1-405b` with 8,192 microbatches once told 67 TFLOP/s beside an MFU of a half."""
    report = stepped("megatron", 8192)
    time = report.time
    assert time is not None
    assert time.roofline is not None
    flops = sum(kernel.flops for kernel in time.kernels)
    assert flops > 2**63
    assert time.executed_tflops_per_gpu is not None
    assert time.executed_tflops_per_gpu >= time.model_tflops_per_gpu * 0.99
    assert time.peak_tflops is not None
    assert time.mfu == pytest.approx(time.model_tflops_per_gpu / time.peak_tflops)
    assert time.roofline.limit == "compute"
    assert Report.model_validate_json(report.model_dump_json()) == report
    assert sum(time.parts.values()) == pytest.approx(time.step_s)


def test_sizes_that_64_bits_cannot_count_are_refused() -> None:
    wide = {"hidden_size": 2**18, "intermediate_size": 2**20, "vocab_size": 2**24, "num_attention_heads": 2**12}
    model = {"config": "llama-3.1-8b", "overrides": wide}
    with pytest.raises(OverflowError):
        simulate(small.scenario("fsdp2", model=model, seq_len=2**22))


def test_the_longest_sequence_of_a_published_run_is_counted() -> None:
    """Llama 8B with 15 million tokens over 32 GPUs (ALST, 2506.13996); a 405B's attention passes 64 bits on one."""
    found = simulate(small.scenario("zero3", {"dp_shard": 1, "cp": 32}, model="llama-3.1-8b", seq_len=32 * 468_750,
                                    topology="dgx-h100", optimizer={"implementation": "fused"}))
    assert found.status == "ok", found.problems
    assert found.time is not None
    assert found.time.step_s > 3600
    with pytest.raises(OverflowError):
        simulate(small.scenario("automodel", {"dp_shard": 8}, model="llama-3.1-405b", seq_len=2**24))
