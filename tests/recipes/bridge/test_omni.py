"""Nemotron Omni in recipes of Megatron-Bridge: which towers are built, and which are frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.looked_into import value
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

SFT = "nemotron_omni_cord_v2_sft_4gpu_h100_bf16_config"
LONG = "nemotron_omni_cord_v2_long_context_sft_8gpu_h100_bf16_config"
LORA = "nemotron_omni_cord_v2_peft_4gpu_h100_bf16_config"
VIDEOS = "nemotron_omni_valor32k_sft_4gpu_h100_bf16_config"
TILES = "nemotron_nano_v2_vl_12b_sft_4gpu_h100_bf16_config"


def imported(folder: Path, text: str) -> Imported:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return import_recipe([str(folder / "run.sh")], Answers.of_options(8, 4096, "dgx-h100"))


def test_towers_are_built_and_frozen_as_switches_say(tmp_path: Path) -> None:
    """Images alone need no tower of sound, whose switches then freeze nothing; each has one image, of any size."""
    silent = {"has_sound": False, "video_temporal_patch_size": 1}
    cases: tuple[tuple[str, dict[str, Any] | None, list[str]], ...] = (
        (SFT, silent, ["vision_model"]), (LONG, silent, ["vision_model"]),
        (LORA, silent, ["vision_model", "vision_projector"]),
        (f"{SFT} model.has_sound=true", {"video_temporal_patch_size": 1}, ["vision_model", "sound_encoder"]),
        (f"{SFT} model.freeze_language_model=true", silent, ["language_model", "vision_model"]),
        (f"{SFT} model.has_sound=true model.temporal_patch_dim=2 model.freeze_sound_projection=true", None,
         ["vision_model", "sound_encoder", "sound_projection"]))
    for launch, overrides, frozen in cases:
        found = imported(tmp_path, launch)
        assert value(found, "model.overrides") == overrides, launch
        assert value(found, "training.frozen") == frozen, launch
        assert value(found, "training.images") == 1
        assert [question.key for question in found.questions] == ["training.image_height"]
        assert not found.refused, launch


def test_other_towers_and_inputs_are_refused_by_name(tmp_path: Path) -> None:
    for launch, words in ((f"{VIDEOS} dataset.task_encoder.max_audio_duration=90", "90 seconds of sound in a sample"),
                          (f"{SFT} model.separate_video_embedder=false model.temporal_patch_dim=2",
                           "one product for patches of images and of videos")):
        assert any(words in problem.message for problem in imported(tmp_path, launch).refused), launch
    text = imported(tmp_path, "llama3_8b_sft_2gpu_h100_bf16_config model.freeze_sound_encoder=true")
    assert any("towers beside text" in problem.message for problem in text.refused)


def test_videos_are_pairs_of_frames_and_sound_is_told_as_left_out(tmp_path: Path) -> None:
    for launch, frozen in ((VIDEOS, ["vision_model", "sound_encoder"]), (VIDEOS.replace("sft", "peft"), [
            "vision_model", "vision_projector", "sound_encoder", "sound_projection"])):
        found = imported(tmp_path, launch)
        assert value(found, "model") == "nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16"
        assert value(found, "training.frozen") == frozen
        assert [question.key for question in found.questions] == ["training.images", "training.image_height"]
        assert "which have 8 frames at most each" in found.questions[0].text
        assert any("at most 10 s of sound" in left.why for left in found.left)
        assert not found.refused


def test_tiles_are_asked_and_adapters_of_vlm_lora_freeze_all_else(tmp_path: Path) -> None:
    """A sequence's tiles, of one size, for the image of a sample of CORD v2; parts that stay trained are refused."""
    for launch in (TILES, TILES.replace("sft_4gpu", "peft_2gpu")):
        found = imported(tmp_path, launch)
        assert value(found, "model") == "nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16"
        assert [question.key for question in found.questions] == ["training.images"]
        assert "tiles of 512 x 512 pixels" in found.questions[0].text
        assert not found.refused, launch
    assert value(found, "training.method") == "lora"
    assert value(found, "training.lora.target_modules") == ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    frozen = imported(tmp_path, f"{TILES} model.freeze_vision_model=true model.freeze_vision_projection=true")
    assert value(frozen, "training.frozen") == ["vision_model", "vision_projector"]
    for launch, words in ((f"{TILES.replace('sft_4gpu', 'peft_2gpu')} +peft.freeze_vision_model=false",
                           "adapters beside a vision_model that is trained itself"),
                          (f"{LORA} peft._target_=megatron.bridge.peft.lora.VLMLoRA", "adapters of the kind VLMLoRA")):
        assert any(words in problem.message for problem in imported(tmp_path, launch).refused), launch
