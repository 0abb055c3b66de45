"""Gradients without a bucket: all that is made goes, and what is left at the end of a step is what a bucket leaves."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.simulate import simulate

BUCKET = 200_000
MODEL = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 3}}


BESIDE = {"config": "granite-4.0-h-tiny", "overrides": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]}}
"""An MLP stands beside the module of the experts."""


def left(stage: int, *, contiguous: bool, microbatches: int, model: dict[str, Any] = MODEL) -> int:
    """Bytes of a rank when its step is over."""
    (rank, *_) = simulate(small.scenario(
        f"zero{stage}", {"dp_shard": 2}, model=model, microbatches=microbatches,
        options={"reduce_bucket_size": BUCKET, "contiguous_gradients": contiguous})).ranks
    assert rank.end_bytes is not None
    return rank.end_bytes


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("stage", [1, 2])
def test_nothing_more_is_left_than_with_a_bucket(stage: int, microbatches: int) -> None:
    assert left(stage, contiguous=False, microbatches=microbatches) == left(stage, contiguous=True,
                                                                            microbatches=microbatches)


@pytest.mark.parametrize("model", [MODEL, BESIDE], ids=lambda model: str(model["config"]))
@pytest.mark.parametrize("microbatches", [1, 3])
def test_of_zero3_the_bucket_itself_is_spared(microbatches: int, model: dict[str, Any]) -> None:
    with_one, without = (left(3, contiguous=contiguous, microbatches=microbatches, model=model)
                         for contiguous in (True, False))
    assert with_one - without == 2 * BUCKET


def test_states_on_the_host_bring_the_bucket_back() -> None:
    def names(stage: str, offload: dict[str, str]) -> set[str]:
        program = small.program_of(stage, {"dp_shard": 2}, model=MODEL, offload=offload,
                                   options={"contiguous_gradients": False})
        return {owner for owner, _ in program.tables.slots if small.postings(program, owner)}

    assert "ipg_bucket" in names("zero2", {"optimizer": "host"})
    assert "ipg_bucket" not in names("zero3", {"optimizer": "host"})
    assert "ipg_bucket" not in names("zero2", {})
