"""Phases for a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from rl.test_workload import APART, DPO, report
from simcore.cli.sheets.phases import phasesheet
from simcore.results.report import Report
from simcore.units import format_bytes


def shown(*reports: Report) -> str:
    out = StringIO()
    Console(file=out, width=240).print(*phasesheet(reports), sep="\n")
    return out.getvalue()


def test_each_phase_has_a_line_and_the_highest_is_named() -> None:
    text = shown(report(), report(DPO))
    assert text.count("sets the peak") == 2
    assert "generation sets the peak" in text
    for told in ("refit", "logprob", "reference", "prefill of the most tokens", "policy, copied"):
        assert (told in text) == (told != "policy, copied")  # who is on the host is in the JSON


def test_bytes_that_are_sent_add_up() -> None:
    found = report()
    lines = shown(found).splitlines()
    sizes = [sum(phase.sent_bytes.get(link, 0) for phase in found.phases) for link in ("nvlink", "host")]
    total = next(line for line in lines if line.strip().startswith("step "))
    assert all(format_bytes(size) in total for size in sizes)
    assert "sent, network" not in shown(found)  # nothing crosses one
    assert sum(sizes) == sum(row.wire_bytes for row in found.ranks[0].traffic)


def test_ranks_that_generate_have_a_table_of_their_own() -> None:
    text = shown(report(generation=APART))
    assert text.index("ranks 0-7, which train") < text.index("ranks 8-11, which generate")
    assert text.count("sets the peak") == 2


def test_what_does_not_fit_says_so() -> None:
    assert " OOM" in shown(report(limits={"usable_memory": "20 GiB"}))
    assert " OOM" not in shown(report())


def test_nothing_for_a_plain_step() -> None:
    assert phasesheet([report().model_copy(update={"phases": ()})]) == []
