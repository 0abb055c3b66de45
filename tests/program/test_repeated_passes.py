"""Passes that are copied: the same step as when every pass is written, and fewer passes written."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import pytest

import small
from simcore.program.program import Program
from simcore.program.repeated_passes import RepeatedPasses

DEEP: Final = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}
JOBS: Final[dict[str, tuple[str, dict[str, int], dict[str, Any]]]] = {
    "one stage": ("fsdp2", {"dp_shard": 2}, {}),
    "several stages": ("automodel", {"pp": 2, "dp_shard": 2}, {}),
    "experts are units": ("automodel", {"pp": 2, "dp_shard": 4, "ep": 2}, {"model": "nemotron-3-tiny"}),
    "chunks": ("fsdp2", {"pp": 2, "dp_shard": 2}, {
        "model": DEEP, "implementation": "torchtitan", "pipeline": {"virtual_stages": 2}}),
    "split backward": ("fsdp2", {"pp": 2, "dp_shard": 2}, {
        "model": "llama-tiny", "implementation": "torchtitan", "pipeline": {"schedule": "zb_h1"}}),
    "replayed layers": ("automodel", {"pp": 2, "dp_shard": 2}, {"recompute": "full"}),
    "flat buffers": ("megatron", {"pp": 2, "dp_shard": 2}, {"model": "llama-tiny"}),
    "sums without reductions": (
        "fsdp2", {"dp_shard": 2}, {"model": "llama-tiny", "precision": {"grad_reduce": "fp32"}}),
    "no copies": ("megatron_fsdp", {"dp_shard": 2}, {}),
}
"""Name -> framework, mesh and training of a job with 8 microbatches."""


def step(name: str, microbatches: int = 8) -> Program:
    framework, mesh, given = JOBS[name]
    small.forget_outlines()
    return small.program_of(framework, mesh, microbatches=microbatches, **given)


def fresh(self: RepeatedPasses, kind: Hashable, written: Callable[[], None]) -> None:
    """In place of `RepeatedPasses.write`: writes every pass."""
    written()


@pytest.mark.parametrize("name", JOBS)
def test_a_step_is_the_same_with_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = step(name)
    monkeypatch.setattr(RepeatedPasses, "write", fresh)
    written = step(name)
    assert (copied.columns == written.columns).all()
    assert (copied.phase == written.phase).all()
    assert (copied.microbatch == written.microbatch).all()


@pytest.mark.parametrize(("name", "copies"), [("several stages", True), ("flat buffers", True), ("no copies", False)])
def test_what_more_microbatches_add_is_copied(
        name: str, copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up, cool-down and first gradients are written; where hooks have no state, every pass is."""
    count, write = 0, RepeatedPasses.write

    def counted(self: RepeatedPasses, kind: Hashable, written: Callable[[], None]) -> None:
        def one() -> None:
            nonlocal count
            count += 1
            written()

        write(self, kind, one)

    monkeypatch.setattr(RepeatedPasses, "write", counted)
    step(name, 8)
    few, count = count, 0
    step(name, 16)
    assert count == (few if copies else 2 * few)
    assert few < 16 or not copies
