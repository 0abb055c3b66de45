"""Runs that did not run as their configuration says, beside that configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import rank, reader
from fakes import report as answer
from simcore.validation.as_published import with_published
from simcore.validation.runs import Measured, layout_of
from simcore.validation.validate import layouts, validate

GIB = 2**30
SCENARIO = {"model": "nemotron-3-tiny", "framework": "megatron", "topology": "dgx-h100", "mesh": {"dp_shard": 2},
            "training": {"seq_len": 64}}


def row(name: str, **changed: Any) -> dict[str, Any]:
    """A row of 50 GiB and 0.4 s."""
    readings = [{"of": of, "rank": 0, "bytes": 50 * GIB} for of in ("allocated_peak", "allocated_end")]
    return {"id": name, "group": "g", "source": "s", "readings": readings, "verdict": "fits", "step_s": 0.4, **changed}


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., list[Measured]]:
    return reader(tmp_path)


def test_an_inferred_switch_has_a_line_of_its_own_and_is_judged_nowhere(
    measured: Callable[..., list[Measured]]
) -> None:
    """38 GiB and 0.5 s are simulated: -24 % and +25 %; only peaks count."""
    rows = measured(row("a", not_modelled="ran otherwise", as_published=SCENARIO))
    assert [one.entry for one in rows] == [None]
    assert [one.entry for one in with_published(rows)] == [rows[0].published]
    (entry,) = layouts(rows)
    assert entry.scenario is not None
    report = answer(step_s=0.5, scenario=entry.scenario.normalised(), ranks=(rank(40),))
    found = validate(rows, {layout_of(entry): report})
    (line,) = found.as_published
    assert (line.inferred, line.rows, line.num_memory, line.num_time) == ("ran otherwise", ("a",), 1, 1)
    assert (line.memory, line.memory_bias, line.time, line.time_bias) == pytest.approx((0.24, -0.24, 0.25, 0.25))
    assert (found.judged, found.time.judged, found.compared, found.time.timed) == ((), (), (), ())
    assert [(one.reason, one.num_rows, one.num_memory, one.num_time) for one in found.not_compared] == [
        ("no scenario: ran otherwise", 1, 1, 1)]


def test_a_run_without_such_a_switch_has_no_line(measured: Callable[..., list[Measured]]) -> None:
    rows = measured(row("a", scenario=SCENARIO), row("b", not_modelled="why"))
    assert with_published(rows) == []
