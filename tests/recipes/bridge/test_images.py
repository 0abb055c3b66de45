"""Images and frozen parts of models with a vision tower in recipes of Megatron-Bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.looked_into import value
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

TOWER = ["model.visual.patch_embed", "model.visual.pos_embed", "model.visual.blocks"]
PROJECTION = ["model.visual.deepstack_merger_list", "model.visual.merger"]
LANGUAGE = ["model.language_model", "lm_head"]
MOCK, TUNED = "qwen3_vl_8b_pretrain_4gpu_h100_bf16_mock_config", "qwen3_vl_8b_sft_2gpu_h100_bf16_config"


def imported(folder: Path, text: str) -> Imported:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return import_recipe([str(folder / "run.sh")], Answers.of_options(8, 4096, "dgx-h100"))


def test_mock_images_are_as_large_as_the_collator_asks(tmp_path: Path) -> None:
    """By `smart_resize`: 256 pixels are too few; of 1296 x 864 a little less is left; 800 x 640 stays."""
    for launch, sides in ((MOCK, (448, None)), (f"{MOCK} 'dataset.image_size=[864,1296]'", (1216, 800)),
                          (f"{MOCK} 'dataset.image_size=[640,800]' dataset.num_images=2", (800, 640))):
        found = imported(tmp_path, launch)
        found.expect_complete()
        assert (value(found, "training.image_height"), value(found, "training.image_width")) == sides, launch
        assert value(found, "training.images") == 1 + ("num_images" in launch)


def test_sides_of_images_of_a_data_set_are_asked(tmp_path: Path) -> None:
    found = imported(tmp_path, TUNED)
    assert [question.key for question in found.questions] == ["training.image_height"]
    assert value(found, "training.images") == 1
    assert "at least 200,704 and at most 1,003,520" in found.questions[0].text
    streamed = imported(tmp_path, "qwen3_vl_8b_peft_1gpu_h100_bf16_energon_config")
    assert [question.key for question in streamed.questions] == ["training.images", "training.image_height"]


@pytest.mark.parametrize(("launch", "frozen"), [
    (MOCK, [*LANGUAGE, *TOWER]), (TUNED, None),
    (f"{TUNED} model.freeze_vision_model=true", TOWER),
    (f"{TUNED} model.freeze_vision_model=true model.freeze_vision_projection=true", [*TOWER, *PROJECTION]),
    (f"{TUNED} model.freeze_vision_projection=true", PROJECTION),
])
def test_switches_freeze_modules(tmp_path: Path, launch: str, frozen: Any) -> None:
    assert value(imported(tmp_path, launch), "training.frozen") == frozen


def test_what_converters_and_providers_add(tmp_path: Path) -> None:
    """A module of multi-token prediction, which is part of the language model; sequence parallelism beside experts."""
    found = imported(tmp_path, "qwen35_vl_9b_pretrain_4gpu_h100_bf16_mock_config")
    assert value(found, "model.overrides.mtp_num_layers") == 1
    assert value(found, "training.frozen") == [*LANGUAGE[:1], "mtp.layers", *LANGUAGE[1:], *TOWER]
    tied = imported(tmp_path, "qwen35_vl_2b_sft_1gpu_h100_bf16_config model.freeze_language_model=true")
    assert value(tied, "training.frozen") == [LANGUAGE[0], "mtp.layers"]
    split = imported(tmp_path, "qwen3_vl_235b_a22b_sft_32gpu_h100_bf16_config")
    assert value(split, "training.sequence_parallel") is True


@pytest.mark.parametrize(("override", "told"), [
    ("model.vision_cuda_graph_impl=transformer_engine", "captured layers of a vision tower"),
    ("model.vision_dp_when_cp=true", "images that context parallel ranks share"),
    ("model.use_hf_vision_model=true", "Hugging Face's tower")])
def test_other_towers_are_refused_by_name(tmp_path: Path, override: str, told: str) -> None:
    assert any(told in problem.message for problem in imported(tmp_path, f"{MOCK} {override}").refused)
    off = imported(tmp_path, f"{MOCK} {override.partition('=')[0]}={'none' if 'impl' in override else 'false'}")
    off.expect_complete()


def test_a_text_model_is_not_frozen(tmp_path: Path) -> None:
    found = imported(tmp_path, "llama3_8b_sft_2gpu_h100_bf16_config model.freeze_language_model=true")
    assert any("a frozen language model beside other towers" in problem.message for problem in found.refused)


def test_ministral_is_built_as_bridge_does(tmp_path: Path) -> None:
    """In 16 bits though its weights are published in fp8, a head of its own unless text_config says otherwise."""
    small, large = (imported(tmp_path, f"run ministral3_{name}_config") for name in (
        "3b_sft_1gpu_h100_bf16", "8b_sft_2gpu_h100_bf16"))
    assert value(small, "model") == "mistralai/Ministral-3-3B-Instruct-2512-BF16"
    assert value(large, "model") == {"config": "mistralai/Ministral-3-8B-Instruct-2512-BF16",
                                     "overrides": {"tie_word_embeddings": False}}
    for found in (small, large):
        assert value(found, "framework_options.apply_rope_fusion") is False
        (question,) = found.questions
        assert "at most 1,540" in question.text
    mock = "run ministral3_3b_sft_1gpu_h100_bf16_config dataset._target_=MockVLMSFTDatasetConfig"
    for sides, expected in (("", (280, None)), (" 'dataset.image_size=[3080,1500]'", (756, 1540))):
        found = imported(tmp_path, mock + sides)
        assert (value(found, "training.image_height"), value(found, "training.image_width")) == expected, sides
