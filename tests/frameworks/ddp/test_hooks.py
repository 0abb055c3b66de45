"""Buckets of the reducer: filled as gradients become ready, reduced in the last microbatch."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.memory.ledger import balance
from simcore.placement.plan import Plan
from simcore.program.program import Program

MODEL = {"config": "llama-3.2-3b", "overrides": {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12,
                                                 "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
                                                 "vocab_size": 16384, "tie_word_embeddings": False}}
MIB = 2**20


def plan(copies: int = 2) -> Plan:
    return small.plan_of("ddp", {"dp_replicate": copies}, model=MODEL)


def gradient_bytes() -> int:
    return 2 * plan().graph.count()


def made(copies: int = 2, **given: Any) -> Program:
    return small.program_of("ddp", {"dp_replicate": copies}, model=MODEL, **given)


def reduced(**given: Any) -> list[int]:
    return [size for *_, size in small.calls(made(**given), "all_reduce")]


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 4}, {"gradient_as_bucket_view": True}])
def test_every_gradient_is_sent_once_a_step(microbatches: int, options: dict[str, Any]) -> None:
    assert sum(reduced(microbatches=microbatches, options=options)) == gradient_bytes()


def test_buckets_close_when_they_have_reached_their_cap() -> None:
    """The head (16 MiB) is ready first and fills the first bucket of 1 MiB alone; then 25 MiB or more, and the rest."""
    first, *full, last = reduced()
    assert first == 2 * 16384 * 512
    assert len(full) >= 1
    assert all(25 * MIB <= size < 25 * MIB + 2 * 16384 * 512 for size in full)
    assert 0 < last < 25 * MIB + 2 * 16384 * 512


def test_a_given_cap_holds_for_the_first_bucket_too() -> None:
    assert len(reduced(options={"bucket_cap_mb": 1024})) == 1
    assert len(reduced(options={"bucket_cap_mb": 1})) > len(reduced())


def test_buckets_rest_beside_gradients() -> None:
    assert small.postings(made(), "buckets") == [(0, "build", gradient_bytes())]
    assert small.postings(made(1), "buckets") == []


def _held(program: Program) -> int:
    """Bytes of gradients that are alive together at the most."""
    held = most = 0
    slots = {number for (name, category), number in program.tables.slots.items() if category == "unsharded_grad"}
    for row in program.columns.tolist():
        if row[0] in (0, 1) and row[2] in slots:
            held += row[3]
            most = max(most, held)
    return most


def test_gradients_rest_until_zero_grad_unless_they_are_pieces_of_buckets() -> None:
    beside, pieces = made(), made(options={"gradient_as_bucket_view": True})
    assert _held(beside) == gradient_bytes()
    assert 0 < _held(pieces) <= 2 * 16384 * 512 + gradient_bytes() // 4
    assert balance(beside).peak_bytes > balance(pieces).peak_bytes


def test_microbatches_add_up_in_place() -> None:
    assert _held(made(microbatches=3)) < 2 * gradient_bytes()
    assert balance(made(microbatches=3)).end_bytes == balance(made()).end_bytes


def test_one_process_sends_nothing() -> None:
    assert small.calls(made(1), "all_reduce") == []
