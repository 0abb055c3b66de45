"""Flat buffers: every element in one place, buckets and parts that cover everything once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcore.frameworks.megatron.buffers import FlatBuffer, lay_out

SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=12)


def test_reverse_order_with_aligned_starts() -> None:
    """Registered 10, 100, 5: the last lies first; each start is a multiple of 64, the end one of 128."""
    flat = lay_out([10, 100, 5], bucket_numel=0, align_param=64, align_bucket=128)
    assert flat.starts.tolist() == [192, 64, 0]
    assert flat.ends.tolist() == [202, 164, 5]
    assert flat.buckets == ((0, 256),)
    assert (flat.numel, flat.padding) == (256, 256 - 115)


def test_a_bucket_closes_when_it_is_full() -> None:
    flat = lay_out([50, 30, 30], bucket_numel=60, align_param=1, align_bucket=8)
    assert flat.buckets == ((0, 64), (64, 120))
    assert flat.bucket_of.tolist() == [1, 0, 0]
    assert flat.starts.tolist() == [64, 30, 0]


def test_a_parameter_of_its_own_bucket() -> None:
    """Before it the open bucket is closed, behind it its own; both ends are padded."""
    flat = lay_out([10, 100, 5], bucket_numel=0, align_param=64, align_bucket=128, alone=(1,))
    assert flat.buckets == ((0, 128), (128, 256), (256, 384))
    assert flat.bucket_of.tolist() == [2, 1, 0]
    assert flat.starts.tolist() == [256, 128, 0]
    last = lay_out([10, 100, 5], bucket_numel=0, align_param=1, align_bucket=1, alone=(2,))
    assert last.buckets == ((0, 5), (5, 115))


@given(SIZES, st.sampled_from([0, 1, 100, 1000]), st.sampled_from([1, 64]), st.integers(1, 9))
def test_parts_cover_every_parameter_once(sizes: list[int], bucket: int, align: int, parts: int) -> None:
    flat = lay_out(sizes, bucket_numel=bucket, align_param=align, align_bucket=16 * parts)
    held = sum(flat.part(index, parts) for index in range(parts))
    assert held.tolist() == sizes  # type: ignore[union-attr]
    assert (flat.ends - flat.starts).tolist() == sizes


@given(SIZES, st.sampled_from([0, 1, 100]), st.sampled_from([1, 64]))
def test_nothing_overlaps_and_buckets_are_without_gaps(sizes: list[int], bucket: int, align: int) -> None:
    flat = lay_out(sizes, bucket_numel=bucket, align_param=align, align_bucket=128)
    ranges = sorted(zip(flat.starts.tolist(), flat.ends.tolist(), strict=True))
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    assert all(start % align == 0 for start, _ in ranges if align == 1 or start not in dict(flat.buckets))
    edges = [0, *(end for _, end in flat.buckets)]
    assert [start for start, _ in flat.buckets] == edges[:-1]
    assert all(end % 128 == 0 for end in edges)
    _inside_its_bucket(flat)


def _inside_its_bucket(flat: FlatBuffer) -> None:
    for start, end, number in zip(flat.starts, flat.ends, flat.bucket_of, strict=True):
        low, high = flat.buckets[number]
        assert low <= start < end <= high


def test_no_parameters_no_buffer() -> None:
    flat = lay_out([], bucket_numel=0, align_param=64, align_bucket=128)
    assert (flat.numel, flat.padding, flat.buckets) == (0, 0, ())


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_a_part_is_a_slice_of_every_bucket(ranks: int) -> None:
    flat = lay_out([48] * 3, bucket_numel=48, align_param=1, align_bucket=24)
    assert flat.buckets == ((0, 48), (48, 96), (96, 144))
    assert flat.part(0, ranks).tolist() == [48 // ranks] * 3
