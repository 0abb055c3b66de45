"""Memory over the step: thinned for pictures, exact at every moment that is kept."""

from __future__ import annotations

import numpy as np
import pytest

import small
from simcore.memory.ledger import running
from simcore.memory.series import MAX_SAMPLES, memory_series
from simcore.program.outline import Phase


@pytest.mark.parametrize(("framework", "mesh", "microbatches"), [
    ("fsdp2", {"dp_shard": 4}, 1), ("megatron", {"pp": 5, "dp_shard": 2}, 5), ("ddp", {"dp_replicate": 2}, 2)])
def test_owners_add_up_to_the_ledger_at_every_moment(framework: str, mesh: dict[str, int], microbatches: int) -> None:
    program = small.program_of(framework, mesh, microbatches=microbatches)
    made, total = memory_series(program, None), running(program)
    first = int(np.argmax(program.phase != Phase.BUILD))
    assert len(made.event_index) <= MAX_SAMPLES
    assert [sum(values) for values in zip(*made.values, strict=True)] == [total[first + n] for n in made.event_index]
    assert max(map(sum, zip(*made.values, strict=True))) == total[first:].max()
    assert all(min(values) >= 0 and any(values) for values in made.values)
    assert len(set(made.categories)) == len(made.categories) > 5
