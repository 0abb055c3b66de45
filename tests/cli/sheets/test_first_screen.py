"""The first screen: verdict, one table within the width, why, what to do, defaults."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

import small
from checkout import ROOT
from fakes import illegal, report
from simcore.cli.sheets.first_screen import first_screen
from simcore.inputs.loading import load
from simcore.results.report import Advice, Assumption, Report
from simcore.results.time import Cost
from simcore.simulate import simulate


def shown(reports: list[Report], width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(*first_screen(reports, width), sep="\n", soft_wrap=True)
    return stream.getvalue().splitlines()


def test_lines_break_between_words() -> None:
    border = report("border", 79.5).model_copy(update={"verdict": "unsure"})
    lines = [line.rstrip() for line in shown([border])]
    assert lines[:2] == ["border: unsure, 79.50 GiB of 80.00 GiB (99%), by measured runs 78.50 GiB to", "80.50 GiB"]
    assert max(map(len, lines)) <= 80


def defaults(**values: str) -> tuple[Assumption, ...]:
    return tuple(Assumption(what=f"training.{key.replace('__', '.')}", value=value, kind="default", source="")
                 for key, value in values.items())


@pytest.mark.parametrize("width", [80, 100, 160, 240])
def test_one_table_fits_the_width(width: int) -> None:
    lines = shown([report("nano"), report("big", 100), illegal("odd"), report("x" * 60)], width)
    assert max(map(cell_len, lines)) <= width
    assert sum(line.startswith("\u2500") for line in lines) == 1
    for word in ("verdict", "peak", "fill", "step"):
        assert any(word in line for line in lines[:2])


def test_a_wider_screen_has_more_columns() -> None:
    reports = [report("nano"), report("big", 100)]
    heads = [" ".join(" ".join(shown(reports, width)[:2]).split()) for width in (80, 240)]
    assert len(heads[0]) < len(heads[1])
    assert "all-gather" in heads[1]


def test_a_single_scenario_begins_with_its_verdict() -> None:
    lines = shown([report("big", 100)])
    assert lines[0] == "big: OOM, 100.00 GiB of 80.00 GiB (125%)"
    assert not any("scenario" in line for line in lines)
    (why,) = [line for line in lines if line.startswith("why: ")]
    assert why.startswith("why: backward, layers.51: ")
    assert cell_len(why) <= 80


def test_an_unsure_one_has_its_range() -> None:
    border = report("border", 79.5).model_copy(update={"verdict": "unsure"})
    assert shown([border], 100)[0] == ("border: unsure, 79.50 GiB of 80.00 GiB (99%), by measured runs 78.50 GiB to "
                                  "80.50 GiB")


def test_the_best_advice_is_a_line() -> None:
    advice = Advice(changes={"mesh.ep": 8}, verdict="fits", peak_bytes=60 * 2**30, headroom_bytes=20 * 2**30,
                    step_s=0.5)
    assert "try: --set mesh.ep=8 (fits, 60.00 GiB, step 500 ms)" in shown([report("big", 100, advice=(advice,))])


def test_what_is_alike_is_told_once() -> None:
    lines = shown([report("nano"), report("big", 100)])
    assert "all: framework fsdp2, layout pp2 dp4 tp2 ep4, GPUs 16, method lora" in lines
    assert not any("fsdp2" in line for line in lines if not line.startswith("all: "))


@pytest.mark.parametrize(("cost", "line"), [
    (Cost(price_per_gpu_hour=2.0, per_step=0.0045, per_million_tokens=1.25),
     "cost: 0.0045 USD a step, 1.25 USD a million tokens"),
    (Cost(price_per_gpu_hour=2.0, per_step=3.5, per_million_tokens=1.25, run_s=7200, gpu_hours=16, per_run=1232.0),
     "cost: 3.50 USD a step, 1.25 USD a million tokens; the run 1,232.00 USD, 2 h, 16 GPU hours"),
    (Cost(run_s=7200, gpu_hours=16, note="no price"), "cost: no price; the run 2 h, 16 GPU hours"),
    (Cost(note="no price"), None), (None, None)])
def test_the_price_of_one_scenario_is_a_line(cost: Cost | None, line: str | None) -> None:
    timed = report("a")
    assert timed.time is not None
    priced = timed.model_copy(update={"time": timed.time.model_copy(update={"cost": cost})})
    assert [each for each in shown([priced], 100) if each.startswith("cost: ")] == ([line] if line else [])
    assert not any(each.startswith("cost: ") for each in shown([priced, report("b")]))


def test_deciding_defaults_are_one_line_with_their_values() -> None:
    one = report("a", assumptions=defaults(precision__params="fp32", loss="hf", optimizer__implementation="fused"))
    two = report("b", assumptions=defaults(precision__params="bf16", loss="hf"))
    assert shown([one])[-1] == "defaults: parameters fp32, loss hf"
    assert shown([one, two])[-1] == "defaults: parameters fp32|bf16, loss hf"
    assert not any(line.startswith("defaults") for line in shown([report("a")]))


def test_the_dispatcher_is_a_deciding_default_where_a_framework_has_several() -> None:
    found = {name: simulate(small.scenario(name, {"dp_shard": 4, "ep": 2})) for name in ("megatron", "automodel",
                                                                                       "fsdp2")}
    last = {name: next(line for line in shown([one]) if line.startswith("defaults: ")) for name, one in found.items()}
    assert "dispatcher alltoall" in last["megatron"]
    assert "dispatcher deepep" in last["automodel"]
    assert "dispatcher" not in last["fsdp2"]
    asked = simulate(small.scenario("automodel", {"dp_shard": 4, "ep": 2}, options={"dispatcher": "deepep"}))
    assert "dispatcher" not in next(line for line in shown([asked]) if line.startswith("defaults: "))


def test_another_assumption_may_have_the_word_in_its_name() -> None:
    """`settings.chosen_dispatcher` finds the value by the framework's own table."""
    one = report("a", assumptions=defaults(dispatcher_of_something="x", loss="hf"))
    assert shown([one])[-1] == "defaults: loss hf"


def test_names_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in "".join(shown([report("evil\x1b[31m")]))


def test_ranks_that_train_have_a_line_beside_fuller_engines() -> None:
    (scenario,) = load(ROOT / "scenarios/nano-grpo/full-separate.yaml")
    lines = shown([simulate(scenario)], 160)
    (at,) = [number for number, line in enumerate(lines) if line.startswith("why: refit, weights are received")]
    assert lines[at + 1].startswith("ranks 0-15, which train, 46.50 GiB: backward, loss: opt_state ")


def test_an_engine_that_does_not_start_is_the_reason() -> None:
    (scenario,) = load(ROOT / "scenarios/nano-grpo/full-separate.yaml", ["generation.gpu_memory_utilization=0.2"])
    lines = shown([simulate(scenario)], 160)
    (at,) = [number for number, line in enumerate(lines) if line.startswith("why: ")]
    assert lines[at] == "why: the engine does not start: no memory is left for cache blocks"
    assert lines[at + 1].startswith("peak: backward, loss: ")
