"""Forward passes without gradients: nothing is kept, and log-probabilities take their logits in fp32."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.rl.forward import passes
from simcore.simulate import simulate
from simcore.simulation.simulation import Simulation, placed_simulation

BASE: dict[str, Any] = {"name": "f", "model": "nemotron-3-tiny", "framework": "fsdp2", "topology": "dgx-h100",
                        "mesh": {"dp_shard": 8}}  # fmt: skip
parts_of = placed_simulation


def parts(framework: str = "fsdp2", model: str = "nemotron-3-tiny", mesh: dict[str, int] | None = None,
          framework_options: dict[str, Any] | None = None, **training: Any) -> Simulation:
    asked = BASE | {"framework": framework, "model": model, "mesh": mesh or BASE["mesh"],
                    "framework_options": framework_options or {}, "training": {"seq_len": 256, **training}}
    return parts_of(parse_scenario(parse_document(json.dumps(asked), "f.json")))


@pytest.mark.parametrize("framework", ["fsdp2", "automodel"])
def test_parameters_rest_and_states_do_not(framework: str) -> None:
    made = parts(framework)
    found = passes(made)
    plan = made.plans[0]
    assert sum(found.rest[0].values()) == sum(plan.kinds[kind].rest_bytes * count for kind, count in plan.kind_counts)
    assert "opt_state" not in found.rest[0]


def test_less_is_held_than_in_training() -> None:
    report = simulate(parts().job.scenario)
    assert report.ranks[0].peak is not None
    held = report.ranks[0].peak.allocated_bytes
    found = passes(parts())
    assert sum(found.rest[0].values()) + sum(found.above[0].values()) < held


def test_logits_are_wide_and_log_softmax_makes_as_many() -> None:
    """A long sequence is highest where logits are: fp32 twice, and a third time where a slice is not contiguous."""
    vocab = parts().job.graph.architecture.vocab
    highs = [sum(passes(parts(seq_len=16384, micro_batch_size=batch)).above[0].values()) for batch in (1, 2)]
    gathered = passes(parts(seq_len=16384)).above[0]
    assert gathered["activation"] >= 16384 * vocab * 8
    assert highs[1] - 2 * highs[0] >= 2 * 16384 * vocab * 4 - highs[0]


def test_passes_after_the_first_take_as_long_as_the_second() -> None:
    found = passes(parts())
    assert found.total_ns(1) == found.ns[0] > 0
    assert found.total_ns(5) - found.total_ns(4) == found.ns[1] > 0
    assert found.ns[1] <= found.ns[0]


def test_a_megatron_rank_has_its_part_of_the_logits() -> None:
    """Fp32 logits, less their maximum, and their exponentials, of half the vocabulary."""
    made = parts("megatron", mesh={"dp_shard": 4, "tp": 2, "etp": 1}, seq_len=16384)
    above = passes(made).above[0]
    assert above["activation"] >= 16384 * made.job.graph.architecture.vocab // 2 * 12
