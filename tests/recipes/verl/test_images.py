"""Scripts of verl whose model has a vision tower: what is asked, what is written, and the step over FSDP 1."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from recipes.verl.test_recipe import imported
from recipes.verl.test_rl import SCRIPT
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.results.report import Report
from simcore.simulate import simulate

SEES: Final = SCRIPT.replace("Qwen2.5-0.5B-Instruct", "Qwen2.5-VL-3B-Instruct")
FREEZES: Final = "actor_rollout_ref.actor.freeze_vision_tower=True \\\n    trainer.nnodes=2 $@"
SIDES: Final = {"training.images": 1, "training.image_height": 448}


def read(folder: Path, text: str) -> Imported:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return import_recipe([str(folder / "run.sh")], Answers.of_options(None, None, "dgx-h100", SIDES)).with_settings(
        SIDES)


def simulated(folder: Path, text: str) -> Report:
    found = read(folder, text)
    found.expect_complete()
    report = simulate(parse_scenario(found.document()))
    assert report.status == "ok", report.problems
    return report


def test_images_and_their_size_are_asked(tmp_path: Path) -> None:
    assert {one.key for one in imported(tmp_path, SEES).questions} == {"training.images", "training.image_height"}
    assert not imported(tmp_path, SCRIPT).questions


def test_a_frozen_tower_has_parameters_by_themselves(tmp_path: Path) -> None:
    found = parse_scenario(read(tmp_path, SEES.replace("trainer.nnodes=2 $@", FREEZES)).document())
    assert found.training.frozen == ("model.visual",)
    assert found.framework_options["use_orig_params"] is True
    assert parse_scenario(read(tmp_path, SEES).document()).training.frozen == ()
    assert not imported(tmp_path, SCRIPT.replace("trainer.nnodes=2 $@", FREEZES)).refused


def test_a_step_trains_the_tower_and_sends_it_to_an_engine_that_holds_it(tmp_path: Path) -> None:
    trained, frozen = (simulated(tmp_path, text) for text in (SEES, SEES.replace("trainer.nnodes=2 $@", FREEZES)))
    for report in (trained, frozen):
        assert {"vision tower of the actor", "vision tower of the engine"} <= {one.what for one in report.assumptions}
        assert report.serving is not None
        assert report.serving.version == "0.12.0"
    at_rest = [report.ranks[0].at_rest["vision_tower"] for report in (trained, frozen)]
    assert [one.params_bytes for one in at_rest] == [4 * at_rest[0].num_params] * 2
    assert [one.optimizer_bytes > 0 for one in at_rest] == [True, False]
