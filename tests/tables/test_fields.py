"""The columns of a table of results say what the results say."""

from __future__ import annotations

import pytest

import fakes
import small
from simcore.inputs.scenario import Mesh
from simcore.results.frame import Value
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.tables.fields import PLACES, RANK_FIELDS, SCENARIO_FIELDS
from simcore.tables.tabulate import table

TYPES: dict[str, type] = {"string": str, "int64": int, "float64": float, "bool": bool}


@pytest.fixture(scope="module")
def staged() -> Report:
    return simulate(small.scenario("megatron", {"pp": 2, "dp_shard": 2}, model="llama-tiny"))


def row(report: Report) -> dict[str, Value]:
    return table([report]).records[0]


def test_a_row_says_what_its_result_says(staged: Report) -> None:
    found, worst, time = row(staged), staged.peak_rank, staged.time
    assert worst is not None
    assert worst.peak is not None
    assert time is not None
    assert time.cost is not None
    assert (found["name"], found["status"], found["verdict"]) == ("small", "ok", "fits")
    assert (found["device_bytes"], found["allocated_bytes"], found["reserved_bytes"]) == (
        worst.peak.device_bytes, worst.peak.allocated_bytes, worst.peak.reserved_bytes)
    assert (found["worst_ranks"], found["peak_phase"], found["peak_event"]) == (
        ", ".join(worst.ranks), worst.peak.phase, worst.peak.event)
    assert (found["step_s"], found["part_bubble_s"], found["bubble_share"], found["mfu"]) == (
        time.step_s, time.parts["bubble"], time.bubble_share, time.mfu)
    assert time.roofline is not None
    limits = {name: found[f"limit_{name}_s"] for name in time.roofline.limits}
    assert (limits, found["limit"]) == (time.roofline.limits, time.roofline.limit)
    assert limits["nvlink"] != limits["network"]
    assert found["cost_per_step_usd"] == time.cost.per_step
    assert (found["pp"], found["dp_shard"], found["tp"], found["etp"], found["num_gpus"]) == (2, 2, 1, None, 4)


def test_traffic_adds_up(staged: Report) -> None:
    values = row(staged)
    parts = {name: value for name, value in values.items() if name.startswith("sent_") and name.count("_") > 2}
    assert "sent_send_recv_pp_bytes" in parts
    worst = staged.peak_rank
    assert worst is not None
    assert sum(int(value or 0) for value in parts.values()) == values["sent_bytes"] == sum(
        one.wire_bytes for one in worst.traffic)


@pytest.mark.parametrize("ranks", [False, True])
def test_every_cell_has_the_type_of_its_column(staged: Report, ranks: bool) -> None:
    made = table([staged, fakes.report("b", 100), fakes.report("c", None), fakes.illegal("d")], ranks=ranks)
    for place, column in enumerate(made.columns):
        assert {type(one[place]) for one in made.rows} <= {TYPES[column.dtype], type(None)}, column.name


def test_a_row_for_each_class_of_ranks(staged: Report) -> None:
    made = table(staged, ranks=True)
    found = made.records
    assert [one["rank_class"] for one in found] == list(range(len(staged.ranks)))
    assert len(found) == 2
    assert sum(int(one["num_ranks"] or 0) for one in found) == 4
    assert [one["is_worst"] for one in found].count(True) == 1
    assert [one["pp"] for one in found] == ["0", "1"]
    for one in found:
        at_rest = sum(int(value or 0) for name, value in one.items() if name.startswith("at_rest_") and name.count(
            "_") > 2)
        assert at_rest + int(one["padding_bytes"] or 0) == one["at_rest_bytes"]


def test_every_axis_has_a_column() -> None:
    names = {field.column.name for field in SCENARIO_FIELDS}
    assert set(Mesh.model_fields) <= names
    assert set(PLACES) <= {field.column.name for field in RANK_FIELDS}
