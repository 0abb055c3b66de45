"""From a number to what it is made of: what is inside a step adds up to it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

import small
from rl.test_workload import DPO, GRPO
from rl.test_workload import report as phased
from simcore.errors import InputError
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.phases import PHASE_PARTS
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.simulation.explanation import Step, class_of, explain_peak, explain_step, explain_trainable
from simcore.units import format_seconds

SCALE = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@cache
def report(framework: str = "megatron") -> Report:
    mesh = {"megatron": {"dp_shard": 2, "tp": 2}, "automodel": {"dp_shard": 2, "pp": 5}}[framework]
    return simulate(small.scenario(framework, mesh, microbatches=5, method="lora"), detail=True)


def size(amount: str) -> float:
    number, _, unit = amount.replace(",", "").partition(" ")
    return float(number) * SCALE.get(unit, 1)


def every(step: Step) -> list[Step]:
    return [step, *(inner for one in step.inside for inner in every(one))]


@pytest.mark.parametrize("framework", ["megatron", "automodel"])
def test_what_is_inside_adds_up(framework: str) -> None:
    made = report(framework)
    rank, detail = class_of(made, None)
    for whole in (explain_peak(made, rank, detail), explain_trainable(made, rank, detail)):
        for step in every(whole):
            if step.inside:
                told = sum(size(one.amount) for one in step.inside)
                assert told == pytest.approx(size(step.amount), rel=0.01, abs=64), step.words


def test_formulas_come_to_their_number() -> None:
    made = report()
    checked = 0
    for step in every(explain_peak(made, *class_of(made, None))):
        match = re.fullmatch(r"(?:(\d+) layers \u00d7 )?\((.*) = ([\d,]+)\) \u00d7 (\d+) B", step.how)
        if match:
            layers, formula, elements, width = match.groups()
            value = eval_product(formula)
            assert value == int(elements.replace(",", ""))
            assert size(step.amount) == pytest.approx(int(layers or 1) * value * int(width), rel=0.01)
            checked += 1
    assert checked > 5


def test_kinds_of_one_name_are_not_counted_by_the_elements_of_one() -> None:
    """Gemma 3's layers with and without a window: two kinds, both called decoder."""
    made = simulate(parse_scenario(parse_document("""
name: gemma
model: gemma-3-1b
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 8}
training: {seq_len: 256}
""", "gemma.yaml")), detail=True)
    found = [step for step in every(explain_peak(made, *class_of(made, None))) if "26 layers of kind" in step.words]
    assert len(found) > 5
    assert all(step.how.startswith("26 \u00d7 ") for step in found)


def eval_product(formula: str) -> int:
    """`8 copies of 16 x 32 / ep 2 / tp 2`."""
    whole, *cuts = formula.replace(",", "").split(" / ")
    copies, _, shape = whole.rpartition(" copies of ")
    value = int(copies or 1)
    for part in shape.split(" \u00d7 "):
        value *= int(part)
    for cut in cuts:
        value //= int(cut.split()[-1])
    return value


def test_the_peak_is_the_reports() -> None:
    made = report()
    rank, detail = class_of(made, None)
    assert rank.peak is not None
    whole = explain_peak(made, rank, detail)
    assert size(whole.amount) == pytest.approx(rank.peak.device_bytes, rel=0.01)
    assert rank.peak.layer in whole.words
    assert [step.words for step in whole.inside[0].inside] == list(rank.peak.by_category)
    assert {step.words for step in whole.inside[1:]} >= set(rank.peak.outside)
    assert all(step.source for step in whole.inside)


def test_trainable_is_what_rests_and_is_trained() -> None:
    made = report()
    rank, detail = class_of(made, None)
    whole = explain_trainable(made, rank, detail)
    assert size(whole.amount) == sum(c.num_trainable_params for c in rank.at_rest.values())
    assert {step.words for step in whole.inside} == {"adapters", "expert_adapters"}


def test_a_rank_past_the_last_row_of_a_tensor_holds_none_of_it() -> None:
    """80 elements of a Mamba-2 mixer's `dt_bias` over 100 ranks."""
    made = simulate(small.scenario("fsdp1", {"dp_shard": 100}, model="mamba2-2.7b", seq_len=1), detail=True)
    whole = explain_trainable(made, *class_of(made, None))
    assert size(whole.amount) == sum(c.num_trainable_params for c in made.ranks[0].at_rest.values())


def test_parts_of_a_step_are_told_with_what_they_are() -> None:
    made = report("automodel")
    assert made.time is not None
    whole = explain_step(made)
    assert [step.words for step in whole.inside] == [part for part, seconds in made.time.parts.items() if seconds]
    bubble = next(step for step in whole.inside if step.words == "bubble")
    assert "neighbouring stage" in bubble.how


@pytest.mark.parametrize("base", [GRPO, DPO], ids=["grpo", "dpo"])
def test_phases_are_told_in_the_order_of_time_with_what_they_do(base: dict[str, Any]) -> None:
    made = phased(base)
    whole = explain_step(made)
    assert made.time is not None
    assert [step.words.partition(",")[0] for step in whole.inside] == [phase.phase for phase in made.phases]
    for step, phase in zip(whole.inside, made.phases, strict=True):
        assert [inner.words for inner in step.inside] == list(phase.parts)
        assert ("nvlink" in step.how) == ("nvlink" in phase.sent_bytes)
    steps = next(inner for inner in whole.inside[-1].inside if inner.words == "training steps")
    trained = {name for name, seconds in made.time.parts.items() if seconds} - set(PHASE_PARTS)
    assert {inner.words for inner in steps.inside} == trained


def test_a_rank_that_ends_early_waits_for_the_others() -> None:
    made = phased(GRPO)
    assert made.time is not None
    late = made.model_copy(update={"time": made.time.model_copy(update={"step_s": made.time.step_s + 1.5})})
    assert explain_step(late).inside[-1].words == "waits for slower ranks"
    assert explain_step(late).inside[-1].amount == format_seconds(1.5)
    assert explain_step(made).inside[-1].words.startswith("training")


def test_a_rank_is_found_in_its_class() -> None:
    made = report("automodel")
    assert [class_of(made, rank)[0].stage for rank in (0, 3, 9)] == [0, 1, 4]
    with pytest.raises(InputError, match="no rank 10: there are 10"):
        class_of(made, 10)


def test_what_was_refused_says_why() -> None:
    refused = simulate(small.scenario("megatron", {"tp": 3}), detail=True)
    with pytest.raises(InputError):
        class_of(refused, None)
    timeless = report().model_copy(update={"time": None})
    with pytest.raises(InputError, match="no time"):
        explain_step(timeless)
