"""Framework options that a job sets and that change nothing in it, found by asking for others in their place.

[Note: idle options]
An option may be about what a job does not have: gathering ahead where nothing is sharded, waits for reductions where
there is one microbatch. Its own code seldom says so. So the job's table is made again with each other value that the
option may have. Where every one that is accepted gives an equal table, equal policies of all tensors and the same
model, no value of the option can change an answer, and the report says so. A value that others differ from is never
told. Neither is an option whose effect on time the framework has and the answer leaves out (an assumption `time of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from simcore.errors import RankscopeError
from simcore.frameworks.registry import asked_adapter
from simcore.frameworks.setup import prepare
from simcore.placement.framework import Framework
from simcore.placement.job import Job

__all__ = ["IDLE", "idle_options"]

IDLE: Final = "changes nothing in this answer"
"""Value of the assumption about such an option."""
_TRIED: Final[dict[type, tuple[Any, ...]]] = {bool: (True, False), int: (1, 2, 4)}
_BESIDE: Final = ("padding", "fullest_load", "files", "afterwards")
"""Fields of a table that are not compared by `==`."""


def idle_options(job: Job, framework: Framework) -> tuple[tuple[str, str, str, str], ...]:
    """Returns an assumption, as (key, value, kind, source), for each option that is idle, see [Note: idle options].

    () in other workloads than training, whose further phases read options too. `framework`: the job's table.
    """
    scenario = job.scenario
    if scenario.workload != "train":
        return ()
    known = asked_adapter(scenario).options(job.graph.implementation)
    unmodelled = {what for what, _, _, _ in framework.assumptions}
    return tuple((f"framework_options.{name}", IDLE, "derived", "[Note: idle options]: the framework's table is the "
                  "same with each other value that it takes here")
                 for name in sorted(scenario.framework_options)
                 if f"time of {name}" not in unmodelled and _is_idle(job, framework, name, known.get(name, ())))


def _is_idle(job: Job, framework: Framework, name: str, known: tuple[Any, ...]) -> bool:
    given, accepted = job.scenario.framework_options, 0
    for other in _others(given[name], known):
        changed = job.scenario.model_copy(update={"framework_options": {**given, name: other}})
        try:
            found = prepare(changed)
        except RankscopeError:
            continue
        if not _is_same(job, framework, *found):
            return False
        accepted += 1
    return accepted > 0


def _others(value: Any, known: tuple[Any, ...]) -> Iterator[Any]:
    """Other values that an option may have: literals, and of a type a few; not null, which leaves it out."""
    for one in known:
        for other in _TRIED.get(one, ()) if isinstance(one, type) else (one,):
            if other is not None and (type(other), other) != (type(value), value):
                yield other


def _is_same(job: Job, framework: Framework, other_job: Job, other: Framework) -> bool:
    return (job.graph is other_job.graph and framework == other
            and all(getattr(framework, name) == getattr(other, name) for name in _BESIDE)
            and framework.policies(job.graph) == other.policies(job.graph))
