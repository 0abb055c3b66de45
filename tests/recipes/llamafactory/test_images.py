"""Recipes of LLaMA-Factory for models that read images: adapters of the language model alone, a frozen tower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import RankscopeError
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

LORA: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen3-VL-4B-Instruct", "stage": "sft", "do_train": True, "finetuning_type": "lora",
    "lora_target": "all", "bf16": True, "cutoff_len": 2048, "per_device_train_batch_size": 1,
    "template": "qwen3_vl_nothink", "image_max_pixels": 262144}
ASKED = {"training.images": 1, "training.image_height": 512}


def imported(folder: Path, values: dict[str, Any], settings: dict[str, Any]) -> Imported:
    file = folder / "mine.yaml"
    file.write_text(json.dumps(values), encoding="utf-8")
    return import_recipe([str(file)], Answers.of_options(8, None, "dgx-h100", settings))


def test_all_linear_layers_are_those_of_the_language_model(tmp_path: Path) -> None:
    found = imported(tmp_path, LORA, ASKED)
    found.expect_complete()
    found.values["training"].update(images=1, image_height=512)  # as the command does with --set
    graph = prepare(parse_scenario(found.document()))[0].graph
    adapted = [layer.path for layer in graph.layers for spec in graph.tensors[layer.kind]
               if spec.name.endswith("lora_a.weight")]
    assert len(adapted) == 7 * 36
    assert all(path.startswith("model.language_model.layers.") for path in adapted)


def test_images_are_asked_within_their_bounds(tmp_path: Path) -> None:
    questions = imported(tmp_path, LORA, {}).questions
    assert [question.key for question in questions] == ["training.images", "training.image_height"]
    assert "image_max_pixels 262,144" in questions[1].text
    unsaid = imported(tmp_path, LORA | {"image_max_pixels": None}, {})
    assert "image_max_pixels" not in unsaid.questions[1].text


def test_a_tower_is_frozen_in_full_training_too(tmp_path: Path) -> None:
    found = imported(tmp_path, LORA | {"finetuning_type": "full"}, ASKED)
    assert found.values["training"]["frozen"] == ["model.visual"]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_layers_of_a_frozen_tower_are_not_recomputed(tmp_path: Path, method: str) -> None:
    """LLaMA-Factory ff6d4d12 model/model_utils/checkpointing.py get_custom_gradient_checkpointing_func."""
    vision = LORA | {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "finetuning_type": method}
    found = imported(tmp_path, vision, ASKED)
    assert found.values["framework_options"]["checkpoint_frozen_layers"] is False
    off = imported(tmp_path, vision | {"disable_gradient_checkpointing": True}, ASKED)
    assert "checkpoint_frozen_layers" not in off.values.get("framework_options", {})


@pytest.mark.parametrize(("changed", "told"), [
    ({"freeze_vision_tower": False}, "freeze_vision_tower: a vision tower that is trained"),
    ({"freeze_multi_modal_projector": False}, "a projector that is trained"),
    ({"finetuning_type": "full", "freeze_language_model": True}, "a language model that is frozen"),
])
def test_other_parts_are_refused_by_name(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError) as caught:
        imported(tmp_path, LORA | changed, ASKED).expect_complete()
    assert told in str(caught.value)
