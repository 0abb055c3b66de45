"""DeepSpeed's configurations that a trainer ships are read where a recipe names one, and said to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipes.huggingface.shipped_files import STORED, hash_of, with_whole_numbers
from simcore.recipes.answers import Answers
from simcore.recipes.huggingface.shipped import AXOLOTL, LLAMA_FACTORY, Shipped
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

AXOLOTLS = {"base_model": "qwen3-8b", "datasets": [{"path": "a/b", "type": "alpaca"}], "sequence_len": 512,
            "micro_batch_size": 1, "gradient_accumulation_steps": 1, "bf16": "auto", "optimizer": "adamw_torch"}
FACTORYS = {"model_name_or_path": "qwen3-8b", "stage": "sft", "do_train": True, "finetuning_type": "full",
            "cutoff_len": 512, "per_device_train_batch_size": 1, "bf16": True}
ZERO = {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}


def imported(folder: Path, recipe: dict[str, Any], name: str, *beside: dict[str, Any]) -> Imported:
    files = [folder / "mine.yaml", *(folder / name.rpartition("/")[2] for _ in beside)]
    for file, values in zip(files, ({**recipe, "deepspeed": name}, *beside), strict=True):
        file.write_text(json.dumps(values), encoding="utf-8")
    return import_recipe([*map(str, files)], Answers.of_options(4, None, "dgx-h100"))


@pytest.mark.parametrize("shipped", [AXOLOTL, LLAMA_FACTORY])
def test_values_are_those_of_the_trainers_files(shipped: Shipped) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))[shipped.release]
    ours = {name: hash_of(with_whole_numbers(config)) for name, config in shipped.files.items()}
    others = {"ds_z3_fp8_config.json"}  # a file for products in 8 bits, which are refused
    assert ours == {name: value for name, value in stored.items() if name not in others}


@pytest.mark.parametrize(("recipe", "name", "framework"), [
    (AXOLOTLS, "deepspeed_configs/zero1.json", "zero1"), (AXOLOTLS, "/workspace/axolotl/deepspeed/zero3.json", "zero3"),
    (FACTORYS, "examples/deepspeed/ds_z2_config.json", "zero2"), (FACTORYS, "ds_z3_offload_config.json", "zero3")])
def test_a_recipe_may_name_a_file_that_its_trainer_ships(tmp_path: Path, recipe: dict[str, Any], name: str,
                                                         framework: str) -> None:
    found = imported(tmp_path, recipe, name)
    found.expect_complete()
    assert found.values["framework"] == framework
    told = [one for one in found.left if one.key == "deepspeed"]
    assert [one.kind for one in told] == ["not modelled"]
    assert "the trainer's own file of that name" in told[0].why


@pytest.mark.parametrize(("recipe", "name"), [
    (AXOLOTLS, "zero3.json"), (AXOLOTLS, "mine/zero3.json"), (AXOLOTLS, "deepspeed_configs/zero4.json"),
    (FACTORYS, "examples/deepspeed/zero3.json")])
def test_another_name_or_folder_is_asked_for(tmp_path: Path, recipe: dict[str, Any], name: str) -> None:
    found = imported(tmp_path, recipe, name)
    assert any("name it" in one.message for one in (*found.refused, *found.wrong))


def test_a_file_that_is_given_goes_before_the_trainers(tmp_path: Path) -> None:
    found = imported(tmp_path, AXOLOTLS, "deepspeed_configs/zero3.json", ZERO)
    found.expect_complete()
    assert found.values["framework"] == "zero1"
    assert not any(one.key == "deepspeed" and one.kind == "not modelled" for one in found.left)
