"""Results whose cards are tested."""

from __future__ import annotations

import pytest

import fakes
import small
from cards import Shown
from reports import EVIL, a_report
from simcore import compare, simulate, table
from simcore.results.report import Report


@pytest.fixture(scope="module")
def simulated() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 4, "ep": 2}), series=True)


@pytest.fixture(scope="module")
def every_result(simulated: Report) -> list[Shown]:
    """Results of every kind that has a card, among them refused ones and one whose texts are markup."""
    many = [simulated, fakes.report("b", 100), fakes.report("c"), fakes.illegal("d"), fakes.report("e", None)]
    harmful = a_report(EVIL)
    tables = [table(many), table(many, ranks=True), table([]), table([harmful])]
    return [*many, harmful, compare(simulated, harmful), *tables]
