"""Adapters: a table is a pure function of a frozen job."""

from __future__ import annotations

import dataclasses

import pytest

import small
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.placement.job import Draft


@pytest.mark.parametrize("name", known_frameworks())
def test_a_table_is_a_function_of_the_job_alone(name: str) -> None:
    """Made twice it is the same, defaults included, and the job has nothing that could change."""
    adapter, (job, _) = framework_adapter(name), small.prepared(name)
    first, second = adapter.table(job), adapter.table(job)
    assert first == second
    assert first.defaults == second.defaults != ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.graph = job.graph  # type: ignore[misc]
    assert not any(isinstance(getattr(job, field.name), dict | list | set) for field in dataclasses.fields(job))


def test_notes_of_a_draft_stay_with_the_draft() -> None:
    job, _ = small.prepared("fsdp2")
    one, other = Draft(job), Draft(job)
    one.note("key", "value", "source")
    assert (one.defaults, other.defaults) == ((("key", "value", "source"),), ())
