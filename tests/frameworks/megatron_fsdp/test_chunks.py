"""Buckets whose parts end at rows, against what megatron-core builds (tests/truth/README.md)."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkout import ROOT
from simcore.frameworks.megatron_fsdp.chunks import lay_in_chunks

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/megatron_fsdp/core-0.16.1.json").read_text("utf-8"))
BUCKETS = [pytest.param(bucket, id=f"{case['family']}-tp{case['tp']}-ep{case['ep']}-{number}")
           for case in TRUTH["buckets"] for number, bucket in enumerate(case["found"])]

shapes = st.lists(st.one_of(st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 12), st.integers(1, 12))),
                  min_size=1, max_size=8).map(tuple)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_tensors_lie_where_the_real_ones_lie(bucket: dict[str, Any]) -> None:
    made = lay_in_chunks(tuple(tuple(shape) for _, shape, _ in bucket["tensors"]), bucket["numel"] // bucket["shard"])
    assert list(made.starts) == [start for _, _, start in bucket["tensors"]]
    assert (made.chunk, made.numel) == (bucket["chunk"], bucket["numel"])


def test_two_tensors_share_a_chunk_that_neither_fills() -> None:
    """The second one ends it; a short one lies in what is left between."""
    made = lay_in_chunks(((3, 4), (6,), (5,), (1,)), 1)
    assert made.chunk == 4
    assert dict(zip("abcd", made.starts, strict=True)) == {"a": 0, "b": 12, "c": 19, "d": 18}
    assert made.numel == 24


@given(shapes, st.integers(1, 5))
def test_no_two_tensors_overlap(given_shapes: tuple[tuple[int, ...], ...], parts: int) -> None:
    made = lay_in_chunks(given_shapes, parts)
    ends = sorted((start, start + size) for start, size in zip(made.starts, made.sizes, strict=True))
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert ends[-1][1] <= made.numel
    assert made.numel % (parts * made.chunk) == 0


@given(shapes, st.integers(1, 5))
def test_parts_hold_every_element_once(given_shapes: tuple[tuple[int, ...], ...], parts: int) -> None:
    made = lay_in_chunks(given_shapes, parts)
    held = [made.part(index, parts) for index in range(parts)]
    assert tuple(map(sum, zip(*held, strict=True))) == made.sizes
