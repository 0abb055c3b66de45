"""What lives across steps, and what Adam needs for a moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.ledger import running
from simcore.outline import Phase

WHOLE = 4 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688 + 2 * 256) + 2 * 1000 * 256 + 256
ROTARY = 2 * 4 * 16


def built(**given: Any) -> int:
    program = small.program_of("fsdp2", model="llama-tiny", **given)
    return int(running(program)[np.flatnonzero(program.phase == Phase.BUILD)[-1]])


@pytest.mark.parametrize(("optimizer", "per_element"), [({"name": "adamw"}, 12), ({"name": "sgd"}, 4),
                                                        ({"name": "adamw", "moments": "bf16"}, 8)])
def test_parameters_and_moments_rest(optimizer: dict[str, str], per_element: int) -> None:
    assert built(optimizer=optimizer) == per_element * WHOLE + ROTARY


def temporaries(**optimizer: str) -> int:
    program = small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", optimizer=optimizer)
    found = small.postings(program, "sqrt_exp_avg_sq")
    assert sum(amount for *_, amount in found) == 0
    assert {phase for _, phase, _ in found} <= {"optimizer"}
    return sum(amount for *_, amount in found if amount > 0)


def test_foreach_takes_a_root_of_all_second_moments() -> None:
    assert temporaries(implementation="foreach") == 4 * WHOLE // 2


@pytest.mark.parametrize("optimizer", [{"implementation": "fused"}, {"name": "sgd"}])
def test_fused_and_sgd_take_nothing(optimizer: dict[str, str]) -> None:
    assert temporaries(**optimizer) == 0


def test_a_loop_takes_the_largest_root_and_quotients() -> None:
    """The up projection's root and quotient are made while the gate's quotient, of the same size, is there."""
    largest = 256 * 688 // 2 * 4
    embedding = 1000 * 256 // 2 * 4
    assert temporaries(implementation="for_loop") == max(3 * largest, 2 * embedding + 256 // 2 * 4)
