"""Known runs and recipes of a layout, from the shipped rows and `recipes.json`."""

from __future__ import annotations

from functools import cache

import pytest

import simcore.validation.evidence as module
from checkout import ROOT
from measured_memory import measured_rows
from simcore.errors import RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.loading import read
from simcore.inputs.scenario import Scenario
from simcore.memory.band import band_of, layout_class
from simcore.placement.framework import Framework
from simcore.placement.job import Job
from simcore.results.evidence import Evidence, Recipe
from simcore.simulate import check, simulate
from simcore.tables.fields import SCENARIO_FIELDS
from simcore.validation.evidence import Known, evidence_of, known_recipes, known_runs

SCENARIOS = ROOT / "scenarios"


def asked(file: str, *overrides: str) -> Scenario:
    (entry,) = read([SCENARIOS / f"{file}.yaml"], ["sweep=null", *overrides])
    assert entry.scenario is not None, entry.problems
    return entry.scenario


def known(file: str, *overrides: str) -> Evidence:
    return evidence_of(*prepare(asked(file, *overrides)))


@cache
def recipes() -> list[Known]:
    return [one for ones in known_recipes().values() for one in ones]


# ---- measured runs --------------------------------------------------------------------------------------------------
def test_every_measured_run_finds_itself() -> None:
    lost, found = [], 0
    for row in measured_rows():
        if row.entry is None or row.entry.scenario is None:
            continue
        try:
            job, framework = prepare(row.entry.scenario)
        except RankscopeError:
            continue
        evidence = evidence_of(job, framework)
        found += 1
        if evidence.kind != "measured" or row.row.id not in {run.id for run in evidence.runs}:
            lost.append(row.row.id)
    assert lost == []
    assert found > 500


def of_row(row_id: str, **training: object) -> Evidence:
    (row,) = [one for one in measured_rows() if one.row.id == row_id]
    assert row.entry is not None
    assert row.entry.scenario is not None
    scenario = row.entry.scenario
    changed = scenario.model_copy(update={"training": scenario.training.model_copy(update=training)})
    return evidence_of(*prepare(changed))


ROW = "automodel-blog-Nemotron-3-Nano-30B-A3B-am"


def test_more_microbatches_are_the_same_layout_and_longer_sequences_are_not() -> None:
    assert of_row(ROW, global_batch_size=64).kind == "measured"
    assert of_row(ROW, seq_len=8192).kind == "class"
    assert of_row(ROW, loss="masked").kind == "class"
    run = of_row(ROW).runs[0]
    assert (run.id, run.topology, run.oom) == (ROW, "dgx-h100", False)
    assert "benchmark_results.md" in of_row(ROW).sentence(has_phases=False)


def test_a_run_that_ran_out_of_memory_says_so() -> None:
    evidence = of_row("mbskill-nemotron3nano-h100-16g-core_attn")
    assert evidence.runs[0].oom
    assert "out of memory" in evidence.sentence(has_phases=False)


# ---- recipes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", range(len(recipes())))
def test_every_recipe_is_a_layout_that_is_accepted_and_finds_itself(number: int) -> None:
    one = recipes()[number]
    assert isinstance(one.shown, Recipe)
    assert one.shown.repository.count("/") == 1
    assert one.shown.release
    evidence = evidence_of(*prepare(one.scenario()))
    assert one.shown in evidence.recipes


@pytest.mark.parametrize(("file", "overrides", "kind"), [
    ("nano-ep4/automodel-4gpu", ("training.method=lora",), "recipe"),
    ("nano-ep4/automodel-4gpu", ("training.method=full",), "class"),
    ("nano-ep4/automodel-8gpu", ("training.method=lora",), "recipe"),
    ("nano-ep4/automodel-8gpu-reshard", ("training.method=lora",), "none"),
    ("nano-ep4/automodel-8gpu-cp2", ("training.method=full",), "recipe"),
    ("nano-ep4/megatron-8gpu", ("training.method=lora",), "none"),
    ("nano-ep4/megatron-8gpu", ("training.method=full",), "class"),
    ("nano-ep4/megatron-8gpu", ("training.method=lora", "mesh.ep=8"), "recipe"),
    ("nano-grpo/full-ep8", (), "class"),
    ("nano-grpo/dpo-ep8", (), "recipe")])
def test_layouts_of_nano_and_who_ships_them(file: str, overrides: tuple[str, ...], kind: str) -> None:
    assert known(file, *overrides).kind == kind


def test_a_recipe_counts_at_any_release_and_not_with_another_placement() -> None:
    other_release = ("training.method=lora", "mesh.ep=8", "framework_version=main 2026-08-22")
    assert known("nano-ep4/megatron-8gpu", *other_release).recipes
    assert not known("nano-ep4/automodel-4gpu", "training.method=lora", "training.recompute=full").recipes


def test_a_recipe_tells_which_sizes_it_has_otherwise() -> None:
    ranks = known("nano-ep4/automodel-8gpu", "training.method=lora").recipes
    assert [one.differs for one in ranks] == [{"training.lora.rank": "8"}]
    longer = known("nano-ep4/automodel-4gpu", "training.method=lora", "training.seq_len=8192").recipes
    assert [one.differs for one in longer] == [{"training.seq_len": "2048"}]
    of_data = known("nano-ep4/automodel-8gpu", "training.method=lora", "training.seq_len=8192").recipes
    assert "training.seq_len" not in of_data[0].differs


# ---- all of it ------------------------------------------------------------------------------------------------------
def test_the_class_is_that_of_the_band() -> None:
    job, framework = prepare(asked("nano-ep4/megatron-8gpu", "training.method=full"))
    evidence = evidence_of(job, framework)
    assert evidence.layout_class == layout_class(job, framework) == "resident, hybrid, full"
    assert evidence.class_runs == band_of(evidence.layout_class).num > 0


def test_rows_are_read_once_and_nothing_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second question about any scenario prepares no row again."""
    scenario = asked("nano-ep4/automodel-8gpu", "training.method=lora")
    first = evidence_of(*prepare(scenario))

    def refused(_: Scenario) -> tuple[Job, Framework]:
        raise AssertionError("a row was prepared again")

    job, framework = prepare(scenario)
    monkeypatch.setattr(module, "prepare", refused)
    assert evidence_of(job, framework) == first
    assert known_runs() is known_runs()


def test_results_have_it_and_engines_do_not() -> None:
    scenario = asked("nano-ep4/automodel-4gpu", "training.method=lora")
    assert simulate(scenario, timed=False).evidence == check(scenario).evidence == evidence_of(*prepare(scenario))
    dpo = asked("nano-ep4/nemo-rl-dpo", "topology=gb200-nvl72")
    assert simulate(dpo).evidence == evidence_of(*prepare(dpo))
    assert simulate(asked("nano-grpo/serve")).evidence is None


def test_a_column_of_tables_has_its_kind() -> None:
    (field,) = [field for field in SCENARIO_FIELDS if field.column.name == "evidence"]
    assert field.value(check(asked("nano-ep4/automodel-4gpu", "training.method=lora"))) == "recipe"
    assert field.value(check(asked("nano-grpo/serve"))) is None
