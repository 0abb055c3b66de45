"""Memory in a terminal: bars that end at the device, and a line that goes from its lowest to its highest."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

import fakes
import small
from simcore.cli.sheets.memory import Bars, Spark, memorysheet
from simcore.results.detail import MemorySeries
from simcore.results.report import Report
from simcore.simulate import simulate

REST, MORE, ROOM, END = "█", "▓", "░", "│"


def shown(part: object, width: int = 100, *, colours: bool = False) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system="standard" if colours else None, force_terminal=colours,
            highlight=False).print(part)
    return stream.getvalue().splitlines()


def series(*totals: int) -> MemorySeries:
    return MemorySeries(categories=("a",), event_index=tuple(range(len(totals))), time_s=(0.0,) * len(totals),
                        phases=("forward",) * (len(totals) // 2) + ("backward",) * (len(totals) - len(totals) // 2),
                        values=(totals,))


@pytest.fixture(scope="module")
def made() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 4}), series=True)


def test_the_line_goes_from_its_lowest_to_its_highest() -> None:
    assert shown(Spark(series(0, 1, 2, 3, 7, 3, 2, 0))) == [
        "allocated over the step, in issue order: 0 B to 7 B", "▁▂▃▄█▄▃▁", "F...B...", "F forward, B backward"]
    assert shown(Spark(series(5, 5)))[1] == "▁▁"
    assert shown(Spark(series())) == []


@pytest.mark.parametrize("width", [30, 72, 100])
def test_a_long_step_keeps_its_peak(width: int) -> None:
    totals = [1] * 600
    totals[437] = 100
    line = shown(Spark(series(*totals)), width)[-3]
    assert len(line) == min(width, 72)
    assert line.count("█") == 1


def test_a_phase_of_a_few_samples_is_there() -> None:
    short = series(*range(500)).model_copy(update={"phases": ("forward",) * 497 + ("optimizer",) * 3})
    *_, marks, told = shown(Spark(short))
    assert marks.endswith(".O")
    assert told == "F forward, O optimizer"


def test_phases_with_one_first_letter_are_told_apart() -> None:
    names = ("refit", "generation", "reference", "recompute", "refit", "e", "r")
    *_, marks, told = shown(Spark(series(*range(7)).model_copy(update={"phases": names})))
    assert marks == "RGECR**"
    assert told == "R refit, G generation, E reference, C recompute, * e, * r"


def test_bars_end_at_the_device(made: Report) -> None:
    (rank,) = made.ranks
    assert rank.peak is not None
    roomy, key = shown(Bars(made))
    assert roomy.startswith("ranks 0-3  ")
    assert roomy.index(END) > roomy.rindex(ROOM)
    assert "end of the device" in key
    full = shown(Bars(made.model_copy(update={"capacity_bytes": rank.peak.device_bytes // 2})))[0]
    assert full.index(END) < full.rindex(MORE)
    assert full.endswith("200%")


def test_a_bar_is_as_long_as_the_memory_is() -> None:
    bar = shown(Bars(fakes.report("a", 40)))[0]
    assert (bar.count(REST), bar.count(MORE), bar.count(ROOM)) == (4, 20, 24)
    assert bar.endswith(" 40.00 GiB  50%")


@pytest.mark.parametrize("width", [48, 60, 80, 200])
def test_a_bar_takes_the_width_that_there_is(width: int) -> None:
    bar, *_ = shown(Bars(fakes.report("a", 40)), width)
    assert len(bar) <= width
    assert 8 <= sum(map(bar.count, (REST, MORE, ROOM))) <= 48
    assert bar.endswith("50%")


def test_of_very_many_classes_the_fullest_are_shown() -> None:
    ranks = tuple(fakes.rank(10 + n % 40, ranks=(str(n),), num_ranks=1) for n in range(50))
    lines = shown(Bars(fakes.report("a", 40, ranks=ranks)))
    assert len(lines) == 14
    assert [line.split()[1] for line in lines[:12]] == [str(n) for n in range(28, 40)]
    assert lines[12] == "and 38 more classes of ranks, none of them fuller"


def test_colour_says_what_the_numbers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in shown(Bars(fakes.report("a", 40)), colours=True)[0]
    assert "\x1b[1;31m" in shown(Bars(fakes.report("a", 100)), colours=True)[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", "".join(shown(Bars(fakes.report("a", 100)), colours=True)))


def test_only_one_scenario_with_a_peak_is_drawn(made: Report) -> None:
    bars, gap, line = memorysheet([made])
    assert (type(bars), gap, type(line)) == (Bars, "", Spark)
    assert [type(part) for part in memorysheet([fakes.report("a")])] == [Bars]
    for others in ([made, made], [], [fakes.illegal("a")], [fakes.report("a", None)]):
        assert memorysheet(others) == []


def test_no_name_steers_the_terminal(made: Report) -> None:
    evil = fakes.rank(40, ranks=("\x1b[31m",), memory=series(1, 2).model_copy(update={"phases": ("\x07x", "\x07x")}))
    lines = [line for part in memorysheet([fakes.report("a", ranks=(evil,))]) for line in shown(part)]
    assert not set("".join(lines)) & {"\x1b", "\x07"}
