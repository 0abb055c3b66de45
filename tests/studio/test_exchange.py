"""Files in and out: scenarios, recipes and models that are dropped, recipes and pictures to take away."""

from __future__ import annotations

from typing import Any

import pytest

from checkout import ROOT
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_files
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.text import missed as said_to_miss
from studio_jobs import IMAGES, JOB, OFFLOADED, RECIPE, UNSERVED, Asked

pytestmark = pytest.mark.slow
ZERO3 = """{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}"""
PRESETS = ROOT / "simcore/models/presets"


def test_a_recipe_asks_for_what_it_leaves_open(asked: Asked) -> None:
    answer = asked("import", files={"recipe.yaml": RECIPE})
    assert answer["format"] == "axolotl"
    assert {question["option"].split()[0] for question in answer["questions"]} == {"--gpus", "--topology"}


def test_what_no_answer_makes_modelled_is_told_with_the_questions(asked: Asked) -> None:
    (early,) = asked("import", files={"recipe.yaml": UNSERVED})["early"]
    assert "Automodel's own layers of nemotron-nas" in early
    (early,) = asked("import", files={"recipe.yaml": f"{RECIPE}{OFFLOADED}"})["early"]
    assert early.startswith("gradient_checkpointing: "), "the recipe's own key says where to look"
    both = f"{RECIPE}{OFFLOADED}sample_packing: true\n".replace("Qwen/Qwen3-8B", "tiiuae/Falcon-H1-3B-Base")
    early = asked("import", files={"recipe.yaml": both})["early"]
    assert [one.split(":")[0] for one in early][-1] == "sample_packing", early
    assert len(early) > 1, "all that stands in the way, not the first of it"
    assert asked("import", files={"recipe.yaml": RECIPE})["early"] == []
    newer = f"{RECIPE}fp8: true\n"  # a question of the machine: one of the likely ones is too old
    assert asked("import", files={"recipe.yaml": newer})["early"] == []
    assert asked("import", files={"part.json": ZERO3})["early"] == []  # its other questions stay
    assert "early" not in asked("import", 422, files={"recipe.yaml": "a: 1\n"})


def test_a_recipe_with_images_is_answered_by_the_size_that_it_leaves_open(asked: Asked) -> None:
    first = asked("import", files={"recipe.yaml": IMAGES}, gpus=8, topology="dgx-h100", seq_len=2048)
    assert [one["key"] for one in first["questions"]] == ["training.image_height"]
    size = {"training.image_height": 448}
    answer = asked("import", files={"recipe.yaml": IMAGES}, gpus=8, topology="dgx-h100", seq_len=2048, settings=size)
    assert not answer["questions"]
    assert not answer["problems"]
    assert answer["values"]["training"]["image_height"] == 448
    assert asked("view", values=answer["values"])["status"] == "ok"
    assert "settings" in str(asked("import", 422, files={"recipe.yaml": IMAGES}, settings=[1]))


def test_an_answered_recipe_is_a_job_with_the_origin_of_each_key(asked: Asked) -> None:
    answer = asked("import", files={"recipe.yaml": RECIPE}, gpus=8, topology="dgx-h100")
    assert answer["questions"] == []
    assert answer["origins"]["training.seq_len"].startswith("recipe.yaml:3")
    assert asked("view", values=answer["values"])["status"] == "ok"


def test_keys_that_the_answer_leaves_out_are_told_without_words_of_the_command_line(asked: Asked) -> None:
    text = (f"{RECIPE}adapter: lora\nlora_r: 16\nlora_target_linear: true\nlora_mlp_kernel: true\nmine: 3\n"
            "lora_target_parameters: [mlp.weight]\n")
    answer = asked("import", files={"recipe.yaml": text}, gpus=8, topology="dgx-h100")
    missed = {one["key"]: one["why"] for one in answer["missed"]}
    assert [*missed] == ["lora_target_parameters", "lora_mlp_kernel", "mine"], "refused ones first, unknown last"
    assert answer["names"]["training.lora.rank"] == "lora_r"
    command = import_files([RecipeFile("recipe.yaml", text)], Answers.of_options(8, None, "dgx-h100"), loose=True)
    assert [*said_to_miss(command.left)] == [*missed], "`rankscope run --loose` names the same"
    assert missed["lora_target_parameters"].startswith("not modelled yet: parameters")
    assert missed["mine"].startswith("rankscope does not know it")
    assert "gradient_checkpointing" in {one["key"] for one in answer["unsaid"]}
    assert "--loose" not in str([answer["missed"], answer["unsaid"]])


def test_a_scenario_is_taken_as_it_is_without_its_sweep(asked: Asked) -> None:
    text = "name: x\nframework: fsdp2\ntopology: dgx-h100\nsweep: {training.seq_len: [1, 2]}\n"
    answer = asked("import", files={"mine.yaml": text})
    assert answer["kind"] == "scenario"
    assert answer["values"] == {"name": "x", "framework": "fsdp2", "topology": "dgx-h100"}
    assert answer["notes"] == ["its sweep is left out"]


@pytest.mark.parametrize("files", [{}, {"a.yaml": "a: 1\n"}, {"a.yaml": "a: ["}, {"a.sh": "ls\n"}])
def test_other_files_are_refused(asked: Asked, files: dict[str, str]) -> None:
    assert asked("import", 422, files=files)["problems"]


@pytest.mark.parametrize("gpus", [0, "8", True, -1])
def test_an_answer_of_another_kind_is_refused(asked: Asked, gpus: Any) -> None:
    (problem,) = asked("import", 422, files={"recipe.yaml": RECIPE}, gpus=gpus)["problems"]
    assert problem["where"] == "gpus"


def test_a_job_becomes_a_recipe(asked: Asked) -> None:
    job = {**JOB, "framework": "automodel"}
    assert "automodel" in asked("formats", values=job)["formats"]
    assert "model" in asked("convert", values=job, format="automodel")["text"]
    assert asked("convert", 422, values=job, format="nothing")["problems"]


def test_a_picture_stands_alone(asked: Asked) -> None:
    svg = asked("figure", values=JOB)["svg"]
    assert svg.startswith("<?xml")
    assert "var(--" not in svg
    assert asked("figure", 422, values={**JOB, "framework": "none"})["problems"]


@pytest.mark.parametrize("what", ["peak", "step", "trainable"])
def test_a_number_is_explained(asked: Asked, what: str) -> None:
    assert asked("explain", values=JOB, what=what)["inside"]


def test_options_of_a_framework_are_listed(asked: Asked) -> None:
    assert asked("options", framework="fsdp2")["options"]
    assert asked("options", framework="nothing")["options"] == []
    assert asked("catalogue")["start"]["training"]["method"] == "lora"


def test_a_launch_script_alone_is_told_what_it_lacks(asked: Asked) -> None:
    script = "accelerate launch -m axolotl.cli.train --learning_rate 1e-4\n"
    (problem,) = asked("import", 422, files={"sft.sh": script})["problems"]
    assert "together with the recipe" in problem["message"]
    (problem,) = asked("import", 422, files={"sft.yaml": "a: 1\n"})["problems"]
    assert "is of no format" in problem["message"]


def test_a_recipe_that_lacks_a_file_is_told_in_words_of_the_page(asked: Asked) -> None:
    text = "defaults: one.yaml\ngrpo: {max_num_steps: 3}\n"
    (problem,) = asked("import", 422, files={"eight.yaml": text})["problems"]
    assert problem["message"].endswith("one.yaml: no such file: drop that file too")
    text = f"{RECIPE}deepspeed: mine/zero.json\n"
    (problem,) = asked("import", files={"recipe.yaml": text}, gpus=8, topology="dgx-h100")["problems"]
    assert problem["message"] == ("deepspeed: DeepSpeed's configuration in another file, 'mine/zero.json': "
                                  "drop that file too")
    both = asked("import", files={"recipe.yaml": text, "zero.json": ZERO3}, gpus=8, topology="dgx-h100")
    assert (both["problems"], both["values"]["framework"]) == ([], "zero3")


def test_a_model_that_is_not_known_is_told_at_once_and_completed_by_its_config(asked: Asked) -> None:
    text = RECIPE.replace("Qwen/Qwen3-8B", "mine/Qwen3-8X")
    (problem,) = asked("import", files={"recipe.yaml": text})["problems"]
    assert problem["where"] == "recipe.yaml:1"
    assert "unknown model 'mine/Qwen3-8X'" in problem["message"]
    assert "hf download mine/Qwen3-8X config.json" in problem["message"]
    assert problem["message"].endswith("drop that file too")
    assert asked("import", files={"recipe.yaml": text}, gpus=8, topology="dgx-h100")["problems"] == []  # at its field
    config = (PRESETS / "qwen3-8b.json").read_text(encoding="utf-8")
    both = asked("import", files={"recipe.yaml": text, "config.json": config})
    assert (both["problems"], both["values"]["model"]) == ([], "config.json")
