"""A run of another job is told: what its log says otherwise than the scenario."""

from __future__ import annotations

import pytest

import small
from simcore.batch.measured import beside_scenario
from simcore.errors import InputError
from simcore.frameworks.setup import prepare
from simcore.validation.other_job import OTHER, differences, other_program

SCENARIO = small.scenario("fsdp2", {"dp_shard": 4}, microbatches=2)
STEP = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 10.0 | max allocated: 20.0 | max reserved: 30.0\n"


def test_each_number_that_differs_is_told_and_equal_ones_are_not() -> None:
    graph = prepare(SCENARIO)[0].graph
    sizes = {"layers": len(graph.architecture.pattern), "hidden size": graph.architecture.hidden,
             "parameters": graph.count(), "trainable parameters": graph.count(trainable=True) // 4}
    same = {"GPUs": 4, "data-parallel ranks": 4, "tp": 1, "micro batch": 1, "global batch": 8, "sequence length": 64}
    assert differences({**same, **sizes}, SCENARIO) == ()
    for name, value in {**same, **sizes}.items():
        told = differences({**same, **sizes, name: 3 * value}, SCENARIO)
        assert [one.startswith(f"{name} {3 * value:,}, the job has ") for one in told] == [True], (name, told)
    assert differences({"price": 3}, SCENARIO) == ()


def test_a_log_of_another_run_says_so_first() -> None:
    text = f"  world_size ...................................... 16\n{STEP}".encode()
    (found,) = beside_scenario(text, "run.log", lambda: SCENARIO)
    assert found.differs == ("GPUs 16, the job has 4",)
    (same,) = beside_scenario(text.replace(b" 16", b" 4"), "run.log", lambda: SCENARIO)
    assert same.differs == ()


def test_a_log_of_a_program_that_never_runs_the_framework_is_told() -> None:
    axolotl = b"{'loss': 1.0, 'memory/max_allocated (GiB)': 1.5, 'epoch': 0.1}\n"
    job = small.scenario("automodel", {"dp_shard": 4}, microbatches=2)
    (found,) = beside_scenario(axolotl, "run.log", lambda: job)
    assert found.differs == ("a log of axolotl, the job has framework automodel",)
    (same,) = beside_scenario(axolotl, "run.log", lambda: SCENARIO)
    assert same.differs == ()
    zero = small.scenario("zero3", {"dp_shard": 4}, microbatches=2)
    assert other_program("TRL, DeepSpeed", zero) == () == other_program("Automodel's benchmark", job)
    assert other_program("Megatron-LM", zero)
    assert all(other_program(name, job) for name in ("the Hugging Face Trainer", "DeepSpeed", "TRL, DeepSpeed"))


def test_a_rank_that_the_job_lacks_is_told_with_the_reason() -> None:
    text = f"  world_size ...................................... 16\n{STEP.replace('Rank 0', 'Rank 15')}".encode()
    with pytest.raises(InputError, match=f"no rank 15.*\n.*{OTHER} GPUs 16, the job has 4"):
        beside_scenario(text, "run.log", lambda: SCENARIO)
