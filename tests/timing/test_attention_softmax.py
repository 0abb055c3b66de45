"""Exponentials of attention."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.hardware.device import Device
from simcore.hardware.topology import load_topology
from simcore.recording.kernel_shape import shape_of_heads
from simcore.timing.attention_softmax import softmax_stretch

H100, B200, B300 = (load_topology(name).device for name in ("dgx-h100", "dgx-b200", "dgx-b300"))


def of(device: Device, keys: int, values: int = 0, *, backward: bool = False, bits: int = 16,
       older: bool = False) -> float:
    shape = np.array([shape_of_heads(keys, values or keys, backward=backward)])
    [found] = softmax_stretch(device, shape, np.array([bits]), older=np.array([older]))
    return float(found)


@pytest.mark.parametrize("device", [H100, B200, B300])
@pytest.mark.parametrize("backward", [True, False])
def test_shares_are_of_heads_of_128(device: Device, *, backward: bool) -> None:
    assert of(device, 128, backward=backward) == 1
    assert of(device, 256, backward=backward) < 1 < of(device, 64, backward=backward)


def test_small_heads_have_more_exponentials_for_their_flops() -> None:
    """H100: 512 FLOPs of a score of 128 take as long as 2 exponentials, those of 64 as long as one."""
    assert of(H100, 64) == pytest.approx((1 + 1) / (1 + 1 / 2))
    assert of(B200, 64) == pytest.approx((1 + 2) / (1 + 1))


def test_twice_as_many_exponentials_a_cycle_cost_half_as_much() -> None:
    assert of(B300, 64) == of(H100, 64) < of(B200, 64)


def test_backward_has_more_flops_beside_each() -> None:
    assert 1 < of(B200, 64, backward=True) < of(B200, 64)


def test_older_instructions_hide_more_of_them() -> None:
    assert 1 < of(H100, 64, older=True) < of(H100, 64)


def test_8_bits_save_nothing_of_them() -> None:
    """At twice the peak: at most 2 x as fast, and 1.33 x on B200."""
    assert of(B200, 128, bits=8) == pytest.approx((1 + 2) / (1 + 1))
    assert of(B300, 192, 128, bits=8) < of(B300, 128, bits=8) < of(B200, 128, bits=8)


def test_heads_that_are_not_known_change_nothing() -> None:
    unknown, older = np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.bool_)
    assert (softmax_stretch(B200, unknown, np.full(3, 8), older=older) == 1).all()
