"""Forward passes without gradients: nothing is kept, and log-probabilities take their logits in fp32."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest

from checkout import ROOT
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.rl.step.forward import passes
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


@pytest.mark.parametrize("batch", [1, 2])
def test_chunks_of_dtensor_workers_lie_beside_all_logits_in_fp32(batch: int) -> None:
    """A copy where there are several sequences, and log_softmax; the cast of all logits is more than small chunks."""
    truth = json.loads((ROOT / "tests/truth/losses/logprobs-nemo-rl-7ea279ab.json").read_text(encoding="utf-8"))
    one = next(case for case in truth["local"] if (case["batch"], case["chunk"]) == (batch, 4))
    each = max(accumulate(one["pass"])) // (one["chunk"] * one["vocab"])
    assert each == 4 * batch * batch
    made = parts(seq_len=16384, micro_batch_size=batch)
    small, less, more = (passes(made, chunk, timed=False).above[0]["activation"] for chunk in (512, 10240, 12288))
    assert more - less == 2048 * each * made.job.graph.architecture.vocab
    assert small == passes(made, 1024, timed=False).above[0]["activation"] < less


def test_chunks_of_megatron_are_cast_one_by_one() -> None:
    """Logits in bf16, and 12 bytes of a chunk: fp32 logits, less their maximum, and their exponentials."""
    mesh = {"dp_shard": 4, "tp": 2, "etp": 1}
    whole, most = (parts("megatron", mesh=mesh, seq_len=16384, logprob_chunk_size=size) for size in (16384, 12288))
    entries = whole.job.graph.architecture.vocab // 2
    above, less = (passes(made, timed=False).above[0]["activation"] for made in (whole, most))
    assert above >= (2 + 12) * 16384 * entries
    assert above - less == pytest.approx(12 * 4096 * entries, abs=8 * 16384)  # log-probabilities themselves
