"""Costs: kernels, copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from simcore.errors import InputError
from simcore.hardware.device import Peaks
from simcore.hardware.efficiency import Kernels
from simcore.hardware.topology import Topology, load_topology
from simcore.recording.kernel_shape import shape_of_heads
from simcore.timing.kernel import DTYPES, KERNELS, compute_ns, cpu_rate, worked_flops

A100, H100, B200 = (load_topology(name) for name in ("dgx-a100", "dgx-h100", "dgx-b200"))
BF16 = DTYPES.index("bf16")
GEMM = KERNELS.index("gemm")

payloads = st.integers(0, 2**40)
unhurried = settings(deadline=None, max_examples=50)


def kernel_ns(machine: Topology, *columns: ArrayLike) -> NDArray[np.int64]:
    return compute_ns(machine.device, machine.efficiency, *columns)


def test_the_tables_name_what_the_files_hold() -> None:
    assert tuple(field.alias or name for name, field in Kernels.model_fields.items()) == KERNELS
    assert tuple(Peaks.model_fields) == DTYPES


def test_a_large_gemm_runs_at_its_share_of_the_peak() -> None:
    """The additional time is its memory traffic."""
    share = H100.efficiency.kernels.gemm
    assert share.compute is not None
    [ns] = kernel_ns(H100, [GEMM], [2 * 8192**3], [3 * 2 * 8192**2], [BF16])
    arithmetic = 2 * 8192**3 / (989.4e12 * share.compute.si) * 1e9
    assert ns == pytest.approx(arithmetic + 3 * 2 * 8192**2 / (3.35e12 * share.memory.si) * 1e9, abs=1)
    assert arithmetic < ns < 1.2 * arithmetic


def test_fewer_rows_reach_less_of_the_peak() -> None:
    few, many = kernel_ns(H100, GEMM, [2 * m * 4096**2 for m in (128, 8192)],
                          [2 * (2 * m * 4096 + 4096**2) for m in (128, 8192)], BF16)
    assert few * 64 > 1.5 * many


def test_shapes_are_of_products_and_of_attention_alone() -> None:
    """The number of operators that other kernels have in its place adds no FLOPs."""
    kinds = np.arange(len(KERNELS))
    flops = np.full(len(KERNELS), 10**12)
    shapes = np.full(len(KERNELS), shape_of_heads(64, 64, 2**20))
    worked = worked_flops(H100.device, kinds, flops, np.full(len(KERNELS), BF16), shapes)
    changed = {KERNELS[at] for at in np.flatnonzero(worked > 1.01 * flops)}
    assert changed == {"gemm", "grouped_gemm", "attention", "attention_flash2", "attention_triton",
                       "attention_efficient"}
    assert (worked_flops(H100.device, kinds, flops, np.full(len(KERNELS), BF16), 0 * shapes) == flops).all()


def test_torchs_memory_efficient_kernel_alone_is_slow_for_wide_keys() -> None:
    shape = shape_of_heads(192, 128, 2**20)
    kinds = [KERNELS.index(name) for name in ("attention", "attention_flash2", "attention_efficient")]
    own, flash2, efficient = worked_flops(H100.device, np.array(kinds), np.full(3, 10**12), np.full(3, BF16),
                                          np.full(3, shape))
    assert own < flash2 * 1.1
    assert efficient == pytest.approx(2.56 * flash2)


def test_a_norm_runs_at_its_share_of_the_memory_bandwidth() -> None:
    [ns] = kernel_ns(H100, [KERNELS.index("norm")], [0], [10**9], [BF16])
    assert ns == pytest.approx(1e9 / (3.35e12 * H100.efficiency.kernels.norm.memory.si) * 1e9, abs=1)


def test_pointwise_kernels_of_tensors_that_a_cache_holds_run_there() -> None:
    """L40S: 96 MB at 3.65 TB/s; half of it is the most, products and a GPU without the key read memory."""
    ada, plain = load_topology("l40s"), load_topology("rtx-3090")
    norm, product = KERNELS.index("norm"), KERNELS.index("gemm")
    assert kernel_ns(ada, norm, 0, [48_000_000, 48_000_001], BF16).tolist() == [
        13151, int(np.ceil(48_000_001 / (864 * 0.8)))]
    assert kernel_ns(ada, KERNELS.index("elementwise_eager"), 0, 36_500_000, BF16) == 10_000
    assert kernel_ns(ada, product, 0, 48_000_000, BF16) == np.ceil(48_000_000 / (864 * 0.8))
    assert plain.device.cache is None


def test_no_kernel_is_shorter_than_the_shortest() -> None:
    every = np.arange(len(KERNELS))
    assert (kernel_ns(H100, every, 0, 1, BF16) == H100.efficiency.shortest.si * 1e9).all()


def test_a_row_of_the_host_alone_takes_no_time_of_the_device() -> None:
    every = np.arange(len(KERNELS))
    assert (kernel_ns(H100, every, 0, 0, BF16) == 0).all()


def test_fp8_is_refused_where_there_is_none() -> None:
    with pytest.raises(InputError, match=r"A100.* does not compute in fp4, fp8"):
        kernel_ns(A100, [GEMM, GEMM], [1, 1], [1, 1], [DTYPES.index("fp8"), DTYPES.index("fp4")])
    assert kernel_ns(A100, [KERNELS.index("copy")], [0], [1], [DTYPES.index("fp8")])[0] == 2000


def test_fp8_runs_at_its_share_of_twice_the_peak() -> None:
    flops = 10**15
    bf16, fp8 = kernel_ns(B200, [GEMM, GEMM], flops, 0, [BF16, DTYPES.index("fp8")])
    kept = B200.efficiency.low_precision.fp8
    assert kept is not None
    assert bf16 / fp8 == pytest.approx(2 * kept.si, rel=1e-6)


@unhurried
@given(kernel=st.integers(0, len(KERNELS) - 1), flops=st.integers(0, 2**60), size=st.integers(0, 2**45),
       more=st.integers(0, 2**40))
def test_kernels_never_get_faster_with_more_work(kernel: int, flops: int, size: int, more: int) -> None:
    base, worked, moved = kernel_ns(H100, [kernel] * 3, [flops, flops + more, flops], [size, size, size + more],
                                     [BF16] * 3)
    assert (base > 0) == (flops + size > 0)
    assert base <= min(worked, moved)


def test_kernels_of_a_column_cost_what_each_costs_alone() -> None:
    rng = np.random.default_rng(0)
    kernels, dtypes = rng.integers(0, len(KERNELS), 500), rng.integers(0, 5, 500)
    flops, sizes = rng.integers(0, 10**14, 500), rng.integers(0, 10**10, 500)
    column = kernel_ns(H100, kernels, flops, sizes, dtypes)
    alone = [kernel_ns(H100, *row)[()] for row in zip(kernels, flops, sizes, dtypes, strict=True)]
    assert column.dtype == np.int64
    assert column.tolist() == alone


def test_ranks_of_a_host_share_its_memory() -> None:
    bandwidth = H100.node.host_bandwidth
    assert bandwidth is not None
    assert cpu_rate(H100, 64) == cpu_rate(H100, 8) == bandwidth.si * 0.7 / 8
    assert cpu_rate(H100, 2) == 4 * cpu_rate(H100, 8)


def test_a_machine_that_does_not_tell_its_memory_is_asked_for_it() -> None:
    dumb = H100.model_copy(update={"node": H100.node.model_copy(update={"host_bandwidth": None})})
    with pytest.raises(InputError, match=r"does not say node\.host_bandwidth"):
        cpu_rate(dumb, 8)
