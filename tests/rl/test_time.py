"""Time of a step with phases: parts add up to it in every view, rates and prices are of the whole step."""

from __future__ import annotations

import json

import pytest

from cli.sheets.test_time import shown
from rl.test_workload import DPO, GRPO, asked, report
from simcore.cli.sheets.time import timesheet
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.compare import compare
from simcore.results.report import Report
from simcore.results.time import StepTime
from simcore.simulate import simulate
from simcore.tables.tabulate import table
from viz.notebook.report import report_html
from viz.pages.report import article

APART = GRPO["generation"] | {"colocated": False, "engines": 2}
OWN_PARTS = {"refit", "generation", "logprob", "reference", "host copies"}


def time_of(found: Report) -> StepTime:
    assert found.time is not None, found.problems
    return found.time


def training_alone(**training: object) -> StepTime:
    base = {key: value for key, value in GRPO.items() if key not in ("workload", "rl", "generation")}
    text = json.dumps(base | {"training": GRPO["training"] | training})
    return time_of(simulate(parse_scenario(parse_document(text, "t.json"))))


@pytest.mark.parametrize("batch", [32, 16, 8], ids=["one step", "two", "four"])
def test_training_counts_every_step_of_the_optimizer(batch: int) -> None:
    """32 sequences are generated; with a batch of 8 the optimizer steps four times, and none of it is a copy."""
    changed = GRPO["training"] | {"global_batch_size": batch}
    found, alone = time_of(report(training=changed)), training_alone(global_batch_size=batch)
    steps = 32 // batch
    assert {name: found.parts[name] for name in alone.parts} == pytest.approx(
        {name: steps * seconds for name, seconds in alone.parts.items()})
    assert (found.forward_s, found.exposed_communication_s) == pytest.approx(
        (steps * alone.forward_s, steps * alone.exposed_communication_s))
    assert sum(row.calls for row in found.communication) == steps * sum(row.calls for row in alone.communication)
    assert sum(row.flops for row in found.kernels) == steps * sum(row.flops for row in alone.kernels)
    assert found.parts["host copies"] == pytest.approx(time_of(report()).parts["host copies"])
    assert found.tokens_per_s_per_gpu == pytest.approx(32 * 256 / found.step_s / 8)
    assert found.mfu * found.step_s == pytest.approx(steps * alone.mfu * alone.step_s)
    assert found.convention == f"{alone.convention} (training)"


def test_only_copies_are_copies() -> None:
    """An engine that never sleeps is not copied; a policy that stays on its GPUs is copied for the reference alone."""
    asleep, awake = (time_of(report(generation=GRPO["generation"] | {"sleep_level": level})) for level in (1, 0))
    assert awake.parts["generation"] == pytest.approx(asleep.parts["generation"])
    assert awake.parts["host copies"] < asleep.parts["host copies"]
    none = {"rl": GRPO["rl"] | {"reference": "none"}, "generation": APART}
    assert time_of(report(**none)).parts["host copies"] == 0
    assert time_of(report(generation=APART)).parts["host copies"] > 0


def test_gpus_that_only_generate_are_paid_and_counted() -> None:
    found = time_of(report(generation=APART))
    assert found.cost is not None
    assert found.cost.price_per_gpu_hour is not None
    assert found.cost.per_step == pytest.approx(10 * found.cost.price_per_gpu_hour * found.step_s / 3600)
    assert found.tokens_per_s_per_gpu == pytest.approx(32 * 256 / found.step_s / 10)
    alone = training_alone()
    assert found.mfu * found.step_s * 10 == pytest.approx(2 * alone.mfu * alone.step_s * 8)


@pytest.mark.parametrize("base", [GRPO, DPO], ids=["grpo", "dpo"])
def test_prices_are_of_the_whole_step(base: dict[str, object]) -> None:
    found = time_of(report(base))
    assert found.cost is not None
    assert found.cost.price_per_gpu_hour is not None
    assert found.cost.per_step is not None
    assert found.cost.per_step == pytest.approx(8 * found.cost.price_per_gpu_hour * found.step_s / 3600)
    assert found.cost.per_million_tokens == pytest.approx(found.cost.per_step / (32 * 256) * 1e6)


@pytest.mark.parametrize(("base", "samples"), [(GRPO, 4), (DPO, 16)], ids=["prompts", "pairs"])
def test_a_run_is_counted_in_prompts_or_pairs(base: dict[str, dict[str, object]], samples: int) -> None:
    length = {"num_epochs": 2.5, "dataset_size": 2 * samples}
    found = time_of(report(base, training=base["training"] | length))
    assert found.cost is not None
    assert found.cost.run_s == pytest.approx(5 * found.step_s)


@pytest.mark.parametrize("base", [GRPO, DPO], ids=["grpo", "dpo"])
def test_parts_add_up_in_every_view(base: dict[str, object]) -> None:
    result = simulate(asked(base))
    time = time_of(result)
    assert sum(time.parts.values()) == pytest.approx(time.step_s)
    row = table([result]).records[0]
    parts = [float(value or 0) for name, value in row.items() if name.startswith("part_")]
    assert sum(parts) == pytest.approx(time.step_s)
    assert {one.what for one in compare(result, result).time} >= OWN_PARTS & set(time.parts)
    notebook, page = report_html(result), str(article(result, 0))
    for words in ("reference", "host copies"):
        assert words in notebook
        assert words in page
    assert "time of training" not in notebook
    assert timesheet([result], 240)


def test_the_terminal_shows_all_of_the_step() -> None:
    text = shown(report(), width=400)
    row = text.splitlines()[3]
    shares = [float(cell.rstrip("%")) for cell in row.split()[2:] if cell.endswith("%")]
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.6)  # the last is the MFU
    assert "FLOPs too, over the whole step" in text
