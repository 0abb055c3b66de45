"""All-gathers of FSDP2: how many, how large, and how many buffers are alive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import small

LAYER = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688 + 2 * 256)
ROOT = 2 * (2 * 1000 * 256 + 256)
"""Bytes of a Llama layer, and of embedding, final norm and head, in bf16."""


def gathers(**options: object) -> list[tuple[str, int]]:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", options=options)
    return [(phase, size) for _, phase, size in small.calls(program, "all_gather")]


def alive(amounts: Iterable[int]) -> tuple[int, int]:
    """(the most at once, the rest in the end)."""
    held = most = 0
    for amount in amounts:
        held += 1 if amount > 0 else -1
        most = max(most, held)
    return most, held


def test_forward_gathers_every_unit_and_backward_all_but_the_root() -> None:
    assert gathers() == [("forward", ROOT), *[("forward", LAYER)] * 4, *[("backward", LAYER)] * 4]


def test_what_is_not_resharded_is_not_gathered_again() -> None:
    assert gathers(reshard_after_forward=False) == [("forward", ROOT), *[("forward", LAYER)] * 4]
    assert gathers(set_last_reshard=False).count(("backward", LAYER)) == 3


def test_one_rank_gathers_nothing() -> None:
    program = small.program_of("fsdp2", model="llama-tiny")
    assert small.calls(program, "all_gather") == []
    assert small.postings(program, "all_gather_output") == []


@pytest.mark.parametrize(("prefetch", "most"), [(None, 2), (1, 2), (2, 3)])
def test_the_buffer_in_use_and_those_ahead_are_alive(prefetch: int | None, most: int) -> None:
    """Without prefetch the buffer before is kept until the next one is copied out; with it, it goes first."""
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", options={"prefetch": prefetch})
    forward = [amount for _, phase, amount in small.postings(program, "all_gather_output") if phase != "backward"]
    assert alive(forward) == (most, 0)


def test_every_buffer_and_every_whole_parameter_goes() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", microbatches=2)
    for name in ("all_gather_output", "all_gather_cast_input", "unsharded_param"):
        assert sum(amount for *_, amount in small.postings(program, name)) == 0, name


def test_whole_parameters_in_forward_are_the_root_and_one_layer() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny")
    held, most = 0, 0
    for _, phase, amount in small.postings(program, "unsharded_param"):
        held += amount
        most = max(most, held) if phase == "forward" else most
    assert most == ROOT + LAYER


def test_a_smaller_group_keeps_its_shard() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 4}, model="llama-tiny", options={"reshard_after_forward": 2})
    kept = [amount for *_, amount in small.postings(program, "post_forward_shard")]
    assert sum(amount for amount in kept if amount > 0) == (4 * LAYER + ROOT) // 2
    assert sum(kept) == 0
    assert {axis for axis, phase, _ in small.calls(program, "all_gather") if phase == "backward"} == {"dp_shard_cp/2"}
