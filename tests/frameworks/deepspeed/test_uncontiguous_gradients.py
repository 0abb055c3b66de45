"""Gradients without a bucket: all that is made goes, and what is left at the end of a step is what a bucket leaves."""

from __future__ import annotations

import pytest

import small
from simcore.simulate import simulate

BUCKET = 200_000
MODEL = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 3}}


def left(stage: int, *, contiguous: bool, microbatches: int) -> int:
    """Bytes of a rank when its step is over."""
    (rank, *_) = simulate(small.scenario(
        f"zero{stage}", {"dp_shard": 2}, model=MODEL, microbatches=microbatches,
        options={"reduce_bucket_size": BUCKET, "contiguous_gradients": contiguous})).ranks
    assert rank.end_bytes is not None
    return rank.end_bytes


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("stage", [1, 2])
def test_nothing_more_is_left_than_with_a_bucket(stage: int, microbatches: int) -> None:
    assert left(stage, contiguous=False, microbatches=microbatches) == left(stage, contiguous=True,
                                                                            microbatches=microbatches)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_of_zero3_the_bucket_itself_is_spared(microbatches: int) -> None:
    spared = left(3, contiguous=True, microbatches=microbatches) - left(3, contiguous=False, microbatches=microbatches)
    assert spared == 2 * BUCKET


def test_states_on_the_host_bring_the_bucket_back() -> None:
    def names(stage: str, offload: dict[str, str]) -> set[str]:
        program = small.program_of(stage, {"dp_shard": 2}, model=MODEL, offload=offload,
                                   options={"contiguous_gradients": False})
        return {owner for owner, _ in program.tables.slots if small.postings(program, owner)}

    assert "ipg_bucket" in names("zero2", {"optimizer": "host"})
    assert "ipg_bucket" not in names("zero3", {"optimizer": "host"})
    assert "ipg_bucket" not in names("zero2", {})
