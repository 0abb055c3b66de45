"""Differences between what a log says of its job and a scenario: a run of another job is told, not only compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from simcore.errors import RankscopeError
from simcore.frameworks.registry import framework_adapter
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.validation.logs.job_told import BATCH, TRAINABLE

__all__ = ["OTHER", "differences", "other_program"]

OTHER: Final = "another run than this job:"
"""First words of what is told about a run of another job."""
_NEAR: Final = 0.02
"""Share by which numbers of parameters may differ: a vocabulary that was rounded up is still the same model."""
_PARAMETERS: Final = (TRAINABLE, "parameters")


def differences(told: Mapping[str, int], scenario: Scenario) -> tuple[str, ...]:
    """Differences of a log from the scenario, a text for each; () where all that it says agrees.

    `told`: numbers of the log by name (`job_told`). A job of several phases is not compared.
    """
    if not told or scenario.workload != "train":
        return ()
    return tuple(f"{name} {_count(value)}, the job has {_count(ours)}" for name, value, ours in _pairs(told, scenario)
                 if not _is_same(name, value, ours, scenario.world_size))


def other_program(trainer: str, scenario: Scenario) -> tuple[str, ...]:
    """Text that a log is of a program which never runs the scenario's framework; () where it may.

    `trainer`: name of the program, as `Log.trainer` has it.
    """
    if trainer.startswith(framework_adapter(scenario.framework).foreign):
        return (f"a log of {trainer}, the job has framework {scenario.framework}",)
    return ()


def _pairs(told: Mapping[str, int], scenario: Scenario) -> Iterator[tuple[str, int, int]]:
    """(name, value of the log, value of the scenario) of each number that both have."""
    ours = {**_of_keys(scenario), **(_of_model(scenario) if set(told) - set(_of_keys(scenario)) else {})}
    return ((name, value, ours[name]) for name, value in told.items() if name in ours)


def _of_keys(scenario: Scenario) -> dict[str, int]:
    mesh, training = scenario.mesh, scenario.training
    ranks = mesh.dp_replicate * mesh.dp_shard
    ours = {"GPUs": scenario.world_size, "data-parallel ranks": ranks, "tp": mesh.tp, "pp": mesh.pp, "cp": mesh.cp,
            "ep": mesh.ep}
    if training.packed_length is not None or training.lengths != "fixed":
        return ours  # rows of a batch are another number of samples there
    sizes = {"micro batch": training.micro_batch_size, "sequence length": training.seq_len}
    return {**ours, **sizes, BATCH: scenario.num_microbatches * training.micro_batch_size * ranks}


def _of_model(scenario: Scenario) -> dict[str, int]:
    """Sizes of the model; of a base in 4 bits programs count its parameters in several ways."""
    try:
        graph = prepare(scenario)[0].graph
    except RankscopeError:
        return {}
    sizes = {"layers": len(graph.architecture.pattern), "hidden size": graph.architecture.hidden,
             TRAINABLE: graph.count(trainable=True), "parameters": graph.count()}
    if scenario.training.method == "qlora":
        del sizes["parameters"]
    return sizes


def _is_same(name: str, told: int, ours: int, ranks: int) -> bool:
    """True for equal numbers; parameters may be those of one rank's part too."""
    if name not in _PARAMETERS:
        return told == ours
    return any(abs(told - part) <= _NEAR * part for part in (ours, ours / ranks))


def _count(number: int) -> str:
    return f"{number:,}"
