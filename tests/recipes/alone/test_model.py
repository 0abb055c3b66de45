"""A `config.json` is the model of the recipe that it stands beside; alone it asks for all of the training at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samples_of_recipes import SAMPLES
from simcore.errors import InputError
from simcore.inputs.loading import read
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import Opener, import_recipe
from simcore.simulate import check

ANSWERS = Answers.of_options(8, 256, "dgx-h100")
RECIPES: dict[str, dict[str, Any]] = {
    "trl": {"model_name_or_path": "OWNER/MINE", "dtype": "bfloat16"},
    "axolotl": {"base_model": "OWNER/MINE", "micro_batch_size": 1, "sequence_len": 256, "bf16": True,
                "flash_attention": True},
    "llamafactory": {"model_name_or_path": "OWNER/MINE", "stage": "sft", "do_train": True, "bf16": True,
                     "finetuning_type": "lora"},
    "automodel": {"recipe": "TrainFinetuneRecipeForNextTokenPrediction",
                  "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
                            "pretrained_model_name_or_path": "OWNER/MINE"}},
    "deepspeed": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1},
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SAMPLES["config"].write(Path())


def beside(name: str, folder: str = "") -> Imported:
    path = Path(folder) / "mine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(RECIPES[name]), encoding="utf-8")
    return import_recipe([str(path), "config.json"], ANSWERS)


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_the_model_of_the_recipe_beside_it(name: str) -> None:
    found = beside(name)
    found.expect_complete()
    assert (found.format, found.values["model"]) == (name, "config.json")
    assert str(found.origins["model",]) == "config.json the configuration"
    assert check(parse_scenario(found.document())).problems == ()


def test_its_family_decides_which_modules_get_adapters() -> None:
    assert beside("llamafactory").values["training"]["lora"]["target_modules"][-1] == "down_proj"


def test_its_path_is_relative_to_the_folder_of_the_recipe() -> None:
    found = beside("trl", "recipes")
    assert found.values["model"] == "../config.json"
    assert check(parse_scenario(found.document())).problems == ()


def test_a_recipe_that_says_its_model_itself_contradicts_it() -> None:
    SAMPLES["megatron"].write(Path())
    with pytest.raises(InputError, match="says its model itself: "):
        import_recipe([SAMPLES["megatron"].name, "config.json"], ANSWERS)
    with pytest.raises(InputError, match="a model beside the recipe, and --set model says another"):
        import_recipe([SAMPLES["megatron"].name, "config.json"], replace(ANSWERS, settings={"model": "qwen3-8b"}))


def test_alone_it_asks_for_all_of_the_training_in_one_message() -> None:
    asked = import_recipe(["config.json"], Answers()).questions
    assert [question.key for question in asked] == [
        "framework", "training.method", "topology", "training.seq_len", "mesh.dp_shard"]


@pytest.mark.parametrize(("framework", "mesh"), [("ddp", {"dp_replicate": 8}), ("fsdp2", {"dp_shard": 8})])
def test_alone_it_is_a_scenario_with_answers(framework: str, mesh: dict[str, int]) -> None:
    settings = {"framework": framework, "training.method": "full"}
    answers = Answers.of_options(8, 256, "dgx-h100", settings)
    [entry] = read(["config.json"], [f"{key}={value}" for key, value in settings.items()], Opener(answers, bool))
    assert entry.problems == ()
    assert entry.scenario is not None
    assert entry.scenario.mesh.model_dump(exclude_unset=True) == mesh
    assert (entry.scenario.name, entry.scenario.model) == ("qwen3", "config.json")
    assert check(entry.scenario).problems == ()
