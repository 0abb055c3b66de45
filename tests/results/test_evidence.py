"""Sentences about what is known of a layout, and the field in JSON."""

from __future__ import annotations

import pytest

from simcore.results.evidence import COUNTED, Evidence, EvidenceKind, MeasuredRun, Recipe

RECIPE = Recipe(repository="a/b", file="folder/c.yaml", release="1.0", differs={"training.seq_len": "4096"},
                note="a test")
RUN = MeasuredRun(id="row-1", source="github:a/b", topology="dgx-h100")


def known(kind: EvidenceKind, runs: tuple[MeasuredRun, ...] = (), recipes: tuple[Recipe, ...] = (),
          num: int = 0) -> Evidence:
    return Evidence(kind=kind, runs=runs, recipes=recipes, layout_class="gathered, moe, full", class_runs=num)


@pytest.mark.parametrize(("evidence", "words"), [
    (known("measured", runs=(RUN, RUN.model_copy(update={"oom": True}))),
     "measured run of this very layout: row-1 on dgx-h100 (github:a/b), row-1 on dgx-h100, out of memory (github:a/b)"),
    (known("recipe", recipes=(RECIPE,), num=1),
     "shipped as a recipe, no measured run published: c.yaml of a/b, 1.0 (there training.seq_len 4096; a test); "
     "1 measured run of its class (gathered, moe, full)"),
    (known("class", num=7), "nobody is known to have run this layout; "
     "7 measured runs of its class (gathered, moe, full)"),
    (known("none"), "nobody is known to have run this layout; "
     "no measured runs of its class (gathered, moe, full)")])
def test_one_sentence_with_its_sources(evidence: Evidence, words: str) -> None:
    assert evidence.sentence(has_phases=False) == words
    assert evidence.kind in COUNTED


def test_runs_are_of_training_alone_where_a_job_has_other_phases() -> None:
    assert known("class", num=7).sentence(has_phases=True).endswith(
        "7 measured runs of its class (gathered, moe, full, of training steps alone)")


def test_a_long_list_is_counted() -> None:
    assert known("measured", runs=(RUN,) * 5).sentence(has_phases=False).endswith(" and 3 more")


def test_json_in_and_out() -> None:
    evidence = known("recipe", recipes=(RECIPE,), num=1)
    assert Evidence.model_validate_json(evidence.model_dump_json()) == evidence
