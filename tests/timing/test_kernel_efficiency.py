"""Tiles and waves of products, exponentials of attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.hardware.device import Device
from simcore.hardware.topology import load_topology
from simcore.recording.kernel_shape import shape_of, shape_of_heads
from simcore.timing.kernel_efficiency import gemm_stretch, softmax_stretch, wide_stretch

A100, H100, B200, B300 = (load_topology(name).device for name in ("dgx-a100", "dgx-h100", "dgx-b200", "dgx-b300"))
DEVICES = (A100, H100, B200)
sides = st.integers(1, 40_000)


# ---- products --------------------------------------------------------------------------------------------------------
def product(device: Device = H100, m: int = 8192, n: int = 8192, k: int = 8192, groups: int = 1, *,
            sums_rows: bool = False, bits: int = 16) -> float:
    """Stretch of `groups` products of (m, k) and (k, n)."""
    rows = m if sums_rows else m * groups
    [found] = gemm_stretch(device, np.array([shape_of(rows, n, groups, sums_rows=sums_rows)]),
                           np.array([2 * m * n * k * groups]), np.array([bits]))
    return float(found)


@pytest.mark.parametrize("device", DEVICES)
def test_a_large_product_hardly_waits(device: Device) -> None:
    assert 1 <= product(device) < 1.05


def test_whole_waves_of_whole_tiles_lose_nothing() -> None:
    """132 tiles of 128 by 256 on an H100's 132 multiprocessors."""
    assert product(H100, 128 * 12, 256 * 11, 4096) == pytest.approx(1)
    assert product(H100, 128 * 12 + 1, 256 * 11, 4096) > 1.04


def test_one_tile_more_than_a_wave_takes_another_wave() -> None:
    """108 tiles of 128 by 256 on an A100's 108 multiprocessors, then 109: smaller tiles help a little."""
    assert product(A100, 128 * 108, 256, 1024) == pytest.approx(1)
    assert product(A100, 128 * 109, 256, 1024) > 1.2


def test_few_rows_a_group_fill_half_a_tile_less() -> None:
    many, few, fewer = (product(H100, each, 4096, 4096, 64) for each in (4096, 512, 64))
    assert 1 < many < few < fewer
    assert few == pytest.approx(1 + 64 / 512, abs=0.1)


def test_rows_that_are_summed_fill_half_a_step_less() -> None:
    """Steps of 64 numbers in 16 bits, 128 in 8 bits."""
    narrow = [product(H100, 4096, 4096, 128, 64, sums_rows=True, bits=bits) for bits in (16, 8)]
    assert narrow == [pytest.approx(1 + 32 / 128, abs=0.03), pytest.approx(1 + 64 / 128, abs=0.03)]


def test_too_few_tiles_are_cut_along_the_sum() -> None:
    """A router's weight gradient has 20 tiles of 128 by 128 for 132 multiprocessors; it is not 6 times slower."""
    assert 1.2 < product(H100, 128, 2560, 16384) < 2
    assert product(H100, 128, 2560, 64) > 2.5


def test_a_short_last_step_costs_a_whole_one() -> None:
    assert product(H100, k=65) / product(H100, k=128) == pytest.approx(128 / 65)


def test_what_is_no_product_takes_as_long_as_it_did() -> None:
    assert (gemm_stretch(H100, np.zeros(3, dtype=np.int64), np.arange(3), np.full(3, 16)) == 1).all()


@settings(deadline=None, max_examples=60)
@given(m=sides, n=sides, k=sides, groups=st.integers(1, 64), device=st.sampled_from(DEVICES), by_rows=st.booleans())
def test_no_product_is_faster_than_its_arithmetic_or_gets_faster_by_growing(
        m: int, n: int, k: int, groups: int, device: Device, *, by_rows: bool) -> None:
    def time(m: int, n: int, k: int) -> float:
        found = product(device, m, n, k, groups, sums_rows=by_rows)
        assert found >= 1 - 1e-9
        return found * m * n * k

    base = time(m, n, k) * (1 - 1e-9)
    assert base <= min(time(m + 1, n, k), time(m, n + 1, k), time(m, n, k + 1))


# ---- attention -------------------------------------------------------------------------------------------------------
def attention(device: Device, keys: int, values: int = 0, *, backward: bool = False, bits: int = 16,
              older: bool = False) -> float:
    """Factor for so many long heads that neither tiles nor waves matter."""
    return of_heads(device, 2**13, 2**20, (keys, values or keys), backward=backward, bits=bits, older=older)


def of_heads(device: Device, heads: int, seq: int, sizes: tuple[int, int] = (128, 128), *, backward: bool = False,
             bits: int = 16, older: bool = False) -> float:
    shape = np.array([shape_of_heads(*sizes, heads * seq, backward=backward)])
    flops = np.array([heads * seq**2 * sum(sizes) * (5 if backward else 2) // 2])
    [found] = softmax_stretch(device, shape, flops, np.array([bits]), older=np.array([older]))
    return round(float(found), 3)


@pytest.mark.parametrize("device", [H100, B200, B300])
@pytest.mark.parametrize("backward", [True, False])
def test_shares_are_of_heads_of_128(device: Device, *, backward: bool) -> None:
    assert attention(device, 128, backward=backward) == 1
    assert attention(device, 256, backward=backward) < 1 < attention(device, 64, backward=backward)


def test_small_heads_have_more_exponentials_for_their_flops() -> None:
    """H100: 512 FLOPs of a score of 128 take as long as 2 exponentials, those of 64 as long as one."""
    assert attention(H100, 64) == pytest.approx((1 + 1) / (1 + 1 / 2), rel=1e-3)
    assert attention(B200, 64) == pytest.approx((1 + 2) / (1 + 1), rel=1e-3)


def test_twice_as_many_exponentials_a_cycle_cost_half_as_much() -> None:
    assert attention(B300, 64) == attention(H100, 64) < attention(B200, 64)


def test_backward_has_more_flops_beside_each() -> None:
    assert 1 < attention(B200, 64, backward=True) < attention(B200, 64)


def test_older_instructions_hide_more_of_them() -> None:
    assert 1 < attention(H100, 64, older=True) < attention(H100, 64)


def test_8_bits_save_nothing_of_them() -> None:
    """At twice the peak: at most 2 x as fast, and 1.33 x on B200."""
    assert attention(B200, 128, bits=8) == pytest.approx((1 + 2) / (1 + 1), rel=1e-3)
    assert attention(B300, 192, 128, bits=8) < attention(B300, 128, bits=8) < attention(B200, 128, bits=8)


def test_heads_that_are_not_known_change_nothing() -> None:
    unknown, older = np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.bool_)
    assert (softmax_stretch(B200, unknown, unknown + 1, np.full(3, 8), older=older) == 1).all()


@pytest.mark.parametrize("backward", [True, False])
def test_wide_keys_leave_no_room_for_sums_in_registers(*, backward: bool) -> None:
    sizes = ((128, 128), (192, 128), (64, 64), (256, 256))
    shapes = [shape_of_heads(keys, values, 1024, backward=backward) for keys, values in sizes]
    assert wide_stretch(np.array([*shapes, 0])).tolist() == [1, 2.56, 1, 2.56, 1]


@pytest.mark.parametrize(("backward", "measured"), [
    (False, {64: 0.8715, 32: 0.7318, 16: 0.5783, 8: 0.3102, 4: 0.1669}),
    (True, {32: 0.7963, 16: 0.7553, 8: 0.6586, 4: 0.3456})])
def test_few_heads_leave_multiprocessors_idle(measured: dict[int, float], *, backward: bool) -> None:
    """Rates of 4,096 tokens on a B200, by the peak of the whole square; those of many heads are 1 and 0.8.

    SimuMax 4dcaae51 `configs/system/b200_bf16_ceperm.json`, sdp_fwd and sdp_bwd.
    """
    for heads, rate in measured.items():
        found = (0.8 if backward else 1.0) / of_heads(B200, heads, 4096, backward=backward)
        assert found == pytest.approx(rate, rel=0.1 if heads > 8 or backward else 0.37), heads


def test_tiles_at_the_edge_of_the_mask_are_half_masked() -> None:
    short, long = (of_heads(H100, 2**16, seq, backward=True) for seq in (512, 2**20))
    assert short / long == pytest.approx((256 + 64) / 256, rel=1e-3)


def test_older_kernels_take_128_queries_and_not_256() -> None:
    assert of_heads(B200, 32, 4096, older=True) < of_heads(B200, 32, 4096)
    assert of_heads(H100, 32, 4096, older=True) == of_heads(H100, 32, 4096)
