"""Breakdown of time, as it is printed."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

import small
from fakes import illegal, report
from simcore.cli.sheets.time import timesheet
from simcore.results.report import Report
from simcore.simulate import simulate


def shown(*reports: Report, width: int = 240) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(*timesheet(reports, width), sep="\n", soft_wrap=True)
    return stream.getvalue()


def timed(mesh: dict[str, int] | None = None, **given: Any) -> Report:
    return simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, **given))


def test_parts_of_the_step_are_told_in_percent() -> None:
    text = shown(timed())
    heads, row = text.splitlines()[1], text.splitlines()[3]
    found = dict(zip(heads.split()[2:9], row.split()[3:10], strict=True))
    assert list(found) == ["forward", "backward", "optimizer", "tion", "comm.", "bubble", "host"]
    assert found["bubble"] == "-"
    assert abs(sum(float(cell.rstrip("%")) for cell in found.values() if cell != "-") - 100) < 0.5
    assert "megatron-bridge up to 0.4" in row


def test_one_scenario_shows_what_it_is_made_of() -> None:
    alone, two = shown(timed()), shown(timed(), timed({"tp": 2}))
    for told in ("communication of a step", "reduce_scatter", "dp_cp", "nvlink", "gemm bf16", "of ranks 0-1, which end "
                 "last; MFU of 989.4 TFLOP/s dense bf16", "2.95 USD per GPU hour (2026-05-20)"):
        assert told in alone
        assert told not in two


def test_limits_of_each_link_are_apart() -> None:
    found = timed({"dp_shard": 16})
    assert found.time is not None
    assert found.time.roofline is not None
    limits = {name.replace("_", " "): seconds for name, seconds in found.time.roofline.limits.items() if seconds}
    assert {"nvlink", "network"} <= set(limits)
    (line,) = [line for line in shown(found).splitlines() if line.startswith("least time by the datasheets: ")]
    told = [part.rsplit(" ", 2)[0] for part in line.partition(": ")[2].split(", ")]
    assert told == sorted(limits, key=lambda name: -limits[name])
    assert told[0] == found.time.roofline.limit.replace("_", " ")
    assert not any("network" in line for line in shown(timed({"dp_shard": 2})).splitlines())


def test_one_rank_sends_nothing() -> None:
    assert "communication of a step" not in shown(timed({"dp_shard": 1}))


def test_kernels_that_take_no_time_have_no_pace() -> None:
    """On a machine whose file says that it is faster than a nanosecond can tell."""
    result = simulate(small.scenario("fsdp2", model="llama-tiny"))
    assert result.time is not None
    first, *others = result.time.kernels
    none = first.model_copy(update={"kernel": "no_time", "forward_s": 0.0, "backward_s": 0.0, "optimizer_s": 0.0})
    changed = result.model_copy(update={"time": result.time.model_copy(update={"kernels": (none, *others)})})
    assert "no_time" not in shown(changed)
    assert others[0].kernel in shown(changed)


def test_a_run_and_its_price() -> None:
    text = shown(timed(num_tokens=10**6))
    assert "; the run: 0." in text
    assert text.rstrip().endswith("USD")


def test_no_price_is_said_and_is_not_zero() -> None:
    text = shown(timed(topology="dgx-spark", mesh={"dp_shard": 1}))
    assert "no price" in text.splitlines()[3]
    assert "no price: dgx-spark" in text


def test_what_has_no_time_is_not_in_it() -> None:
    """Refused, not asked, or told by an older version that had no parts."""
    assert timesheet([illegal("a"), report("b", None), report("c")], 240) == []


def test_narrow_terminals_get_more_tables() -> None:
    assert shown(timed(), timed(), width=80).count("scenario ") > 1
    assert max(map(len, shown(timed(), timed(), width=80).splitlines())) <= 80
