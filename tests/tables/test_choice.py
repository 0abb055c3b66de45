"""Choice and order of the results that are shown."""

from __future__ import annotations

import pytest

from fakes import illegal, report
from simcore.errors import InputError
from simcore.results.report import Report
from simcore.tables.choice import BEST, REPORTS, Choice

MADE = [report("a", 40), report("b", 100), report("c", 20), illegal("d"), report("e", 60)]
choice = REPORTS.choice


def names(asked: Choice[Report], reports: list[Report] = MADE) -> str:
    pairs = [(key, at) for at, one in enumerate(reports) if (key := asked.key(one)) is not None]
    return "".join(reports[at].name for at in asked.chosen(pairs))


@pytest.mark.parametrize(("asked", "expected"), [
    (choice(), "abcde"), (choice("peak_bytes"), "caebd"), (choice("-peak_bytes"), "beacd"), (choice("name"), "abcde"),
    (choice("-name"), "edcba"), (choice("status"), "dabce"), (choice("-status"), "abced"),
    (choice("peak_bytes", 2), "ca"), (choice(top=3), "abc"), (choice("-peak_bytes", 2, verdicts=["fits"]), "ea"),
    (choice(verdicts=["oom"]), "b"), (choice(top=9), "abcde")])
def test_results_in_the_order_of_a_column(asked: Choice[Report], expected: str) -> None:
    assert names(asked) == expected


def fast(name: str, tokens: float, gib: float = 40) -> Report:
    made = report(name, gib)
    assert made.time is not None
    return made.model_copy(update={"time": made.time.model_copy(update={"tokens_per_s_per_gpu": tokens})})


def test_the_best_fit_and_are_fast() -> None:
    assert names(BEST, [illegal("d"), fast("l", 9.0, gib=100), fast("s", 1.0), fast("f", 2.0)]) == "fsld"


def test_names_of_columns_may_be_short() -> None:
    assert REPORTS.column("peak_bytes", "").column.name == "peak_bytes"
    assert REPORTS.column("training.seq_len", "").column.name == "training.seq_len"
    assert REPORTS.column("seq_len", "").column.name == "training.seq_len"
    assert REPORTS.column("max_fill", "").column.name == "limits.max_fill"


@pytest.mark.parametrize(("name", "near"), [
    ("peak_byte", "peak_bytes"), ("xyz", ""), ("micro_batch_sizes", "training.micro"), ("", "expected a column")])
def test_a_column_that_is_none_is_refused(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"--sort.*{near}"):
        REPORTS.column(name, "--sort")
