"""From times to shares: what a machine of known shares would have shown is found again."""

from __future__ import annotations

import pytest

from simcore.calibration.fit import above_floor, fit_both, fit_line, fit_memory
from simcore.calibration.reading import NotMeasured, Reading

PEAK, BANDWIDTH = 1e15, 3e12


def reading(flops: int, moved: int, compute: float = 0.7, memory: float = 0.8, noise: float = 1.0) -> Reading:
    seconds = (flops / (PEAK * compute) + moved / (BANDWIDTH * memory)) * noise
    return Reading("gemm", "torch.mm", f"{flops} {moved}", "bf16", flops, moved, seconds)


def product(rows: int, **shares: float) -> Reading:
    return reading(2 * rows * 4096 * 4096, 2 * (2 * rows * 4096 + 4096 * 4096), **shares)


ROWS = (16, 128, 1024, 8192)


def test_both_shares_are_found() -> None:
    shares = fit_both([product(m) for m in ROWS], PEAK, BANDWIDTH, 0.5)
    assert shares.told_apart
    assert shares.compute == pytest.approx(0.7)
    assert shares.memory == pytest.approx(0.8)
    assert shares.error == pytest.approx(0, abs=1e-9)


def test_errors_count_by_their_share_of_the_time_so_short_kernels_weigh_as_much_as_long_ones() -> None:
    noisy = [product(m, noise=1.1 if i % 2 else 0.9) for i, m in enumerate(ROWS * 2)]
    shares = fit_both(noisy, PEAK, BANDWIDTH, 0.5)
    assert shares.compute == pytest.approx(0.7, rel=0.2)
    assert shares.memory == pytest.approx(0.8, rel=0.2)
    assert shares.error == pytest.approx(0.1, abs=0.03)


def test_readings_of_one_intensity_keep_the_memory_share_that_is_given() -> None:
    shares = fit_both([reading(10**12 * i, 10**9 * i, memory=0.5) for i in (1, 2, 3)], PEAK, BANDWIDTH, 0.5)
    assert not shares.told_apart
    assert shares.memory == 0.5
    assert shares.compute == pytest.approx(0.7)


def test_a_given_share_that_is_too_slow_for_what_was_read_does_not_hold() -> None:
    fast = [reading(10**9 * i, 10**9 * i, memory=0.9) for i in (1, 2, 3)]
    shares = fit_both(fast, PEAK, BANDWIDTH, 0.1)
    assert shares.memory > 0.8


@pytest.mark.parametrize(("compute", "memory"), [(1.5, 0.6), (0.6, 1.5), (2.0, 2.0)])
def test_no_share_passes_the_peak(compute: float, memory: float) -> None:
    shares = fit_both([product(m, compute=compute, memory=memory) for m in ROWS], PEAK, BANDWIDTH, 0.5)
    assert shares.compute is not None
    assert max(shares.compute, shares.memory) == 1.0
    assert min(shares.compute, shares.memory) > 0.4


def test_without_products_arithmetic_runs_at_the_vector_peak() -> None:
    shares = fit_memory([reading(10**9 * i, 10**9, compute=1.0, memory=0.4) for i in (1, 5)], PEAK, BANDWIDTH)
    assert shares.compute is None
    assert shares.memory == pytest.approx(0.4)


def test_launches_are_no_readings() -> None:
    short, long = reading(10, 10), product(1024)
    assert above_floor([short, long], 1e-6) == [long]
    with pytest.raises(NotMeasured, match="shortest kernel"):
        above_floor([short], 1e-6)


def test_a_line_is_a_latency_and_a_rate() -> None:
    latency, rate = fit_line([(amount, 5e-6 + amount / 50e9) for amount in (1e3, 1e6, 1e9)])
    assert latency == pytest.approx(5e-6)
    assert rate == pytest.approx(50e9)


def test_a_line_never_starts_before_zero() -> None:
    latency, rate = fit_line([(1e6, 1e-6), (1e9, 2e-3)])
    assert latency == 0
    assert 5e11 <= rate <= 1e12


def test_a_line_needs_two_amounts() -> None:
    with pytest.raises(ValueError, match="two amounts"):
        fit_line([(1.0, 1.0), (1.0, 2.0)])
