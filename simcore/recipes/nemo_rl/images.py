"""Images of the samples that a recipe of NeMo RL trains a model with a vision tower on, and the engine's limits.

Samples of three data sets have one image each (NeMo RL 7ea279ab `data/datasets/response_datasets/clevr.py`:39,
`geometry3k.py`:29, `refcoco.py`:147); of others images are asked, as is the size, which no key of a recipe says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.errors import Problem
from simcore.models.blocks import LayerKind
from simcore.models.radio_blocks import RadioPatches
from simcore.models.vision.towers import tower_of
from simcore.models.vision_blocks import AnySize, GridPatches
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_images"]

_ONE_IMAGE: Final = ("clevr-cogent", "geometry3k", "refcoco")
_VIDEOS: Final = ("daily-omni",)
"""Data sets whose samples have a video and its sound (`data/datasets/response_datasets/daily_omni.py`:127)."""
_SOURCE: Final = "NeMo RL 7ea279ab data/datasets/response_datasets"
_ROTATED: Final = "Bridge 067f987d models/gpt_provider.py:230, utils/fusions.py:85: mrope switches it off"
_OF_IMAGES: Final = "vlm_hf_data_processor"
_KWARGS: Final = "policy.generation.vllm_kwargs"
_SKIPS: Final = f"{_KWARGS}.skip_mm_profiling"
_COUNTS: Final = (f"{_KWARGS}.limit_mm_per_prompt.*", "policy.generation.vllm_cfg.limit_mm_per_prompt.*")
_LIMITS: Final = (f"{_KWARGS}.language_model_only", f"{_KWARGS}.mm_encoder_tp_mode", f"{_KWARGS}.mm_processor_kwargs.*")
_MEGATRON: Final = "policy.megatron_cfg"
_FREEZES: Final = "policy.dtensor_cfg.automodel_kwargs.freeze_config"
_FROZEN: Final = {"freeze_vision_model": "vision_model", "freeze_vision_projection": "vision_projector",
                  "freeze_sound_encoder": "sound_encoder", "freeze_sound_projection": "sound_projection"}
"""Switches of Nemotron Omni's provider, with the modules that they freeze."""


def read_images(reader: Reader, draft: Draft) -> None:
    """Writes, or asks for, images of a sequence and their size; refuses text alone. Nothing for other models."""
    given = draft.values.get("model", draft.answers.settings.get("model", ""))
    parts = tower_of(str(given.get("config", "") if isinstance(given, dict) else given))
    sees = reader.flag("policy.is_vlm")
    if sees is not None and sees.value and not parts:
        draft.refuse(sees, "images for a model of which no tower is known")
    else:
        draft.idle(sees, "the processor of images, which a model with a tower has")
    if not parts:
        return
    _read_rotation(reader, draft, parts)
    _read_limits(reader, draft, parts)
    _read_frozen(reader, draft, parts)
    _refuse_frozen(reader, draft)
    name = reader.text("data.train.dataset_name") or reader.text("data.dataset_name")
    if name is not None and name.value in _VIDEOS:
        draft.refuse(name, "samples with a video and its sound")
        return
    is_known = name is not None and name.value in _ONE_IMAGE
    if not is_known and reader.look("data.default.processor") != _OF_IMAGES and not reader.look("policy.is_vlm"):
        draft.refused.append(Problem(reader.document.path, "not yet: a model with a vision tower that is given text "
                                     "alone (no processor of images: data.default.processor)"))
        draft.idle(name, "which samples are read")
        return
    if name is not None and is_known:
        draft.infer("training.images", 1, f"{name.value}: a sample has one image", name, source=_SOURCE)
    else:
        draft.ask("training.images", "--set training.images=N", "images in each sequence", name)
    if any(isinstance(kind.block, AnySize) for _, kind in parts):
        draft.ask("training.image_height", "--set training.image_height=N", "pixels of an image from top to bottom, of "
                  "a square unless training.image_width is set too")


def _read_rotation(reader: Reader, draft: Draft, parts: Sequence[tuple[str, LayerKind]]) -> None:
    """Writes the rotation of Qwen 2.5 VL under Megatron, which its provider does not fuse whatever the recipe says."""
    if reader.look("policy.megatron_cfg.enabled") is not True or not any(
            isinstance(kind.block, GridPatches) for _, kind in parts):
        return
    fused = reader.flag("policy.megatron_cfg.apply_rope_fusion")
    if fused is not None:
        draft.infer("framework_options.apply_rope_fusion", False, "positions by time, row and column are not fused",  # noqa: FBT003
                    fused, source=_ROTATED)


def _read_limits(reader: Reader, draft: Draft, parts: Sequence[tuple[str, LayerKind]]) -> None:
    """Writes whether vLLM's profile run encodes images; refuses limits that it would read, and other ways to encode."""
    skips = reader.flag(_SKIPS)
    is_skipped = skips is not None and skips.value
    if is_skipped:
        draft.put("generation.profiles_images", skips, value=False)
    else:
        draft.idle(skips, "the default")
    counts = list(reader.matching(*_COUNTS))
    images = [one for one in counts if one.path[-1] == "image" and isinstance(one.value, int) and one.value > 0]
    unread = counts if is_skipped else images if _has_videos(parts) else []
    draft.idle(unread, "images of a prompt, of which the profile run encodes none")
    for taken in (*(one for one in counts if one not in unread), *reader.matching(*_LIMITS)):
        draft.refuse(taken, "an engine with other limits of images than vLLM's defaults")


def _has_videos(parts: Sequence[tuple[str, LayerKind]]) -> bool:
    """True if the profile run encodes videos: they are as large as images, and last by name (0.25.1).

    `multimodal/encoder_budget.py` get_modality_with_max_tokens.
    """
    return any(isinstance(kind.block, GridPatches | RadioPatches) for _, kind in parts)


def _refuse_frozen(reader: Reader, draft: Draft) -> None:
    """Refuses a frozen tower of workers of DTensor: a block without the switch freezes it.

    Automodel 0.7.0 components/utils/model_utils.py apply_parameter_freezing.
    """
    if reader.look("policy.megatron_cfg.enabled") is True or not reader.names(_FREEZES):
        return
    tower, what = reader.flag(f"{_FREEZES}.freeze_vision_tower"), "a vision tower that is frozen by workers of DTensor"
    if tower is None:
        draft.refused.append(Problem(reader.document.path, f"not yet: {_FREEZES}: {what}"))
    elif tower.value:
        draft.refuse(tower, what)
    else:
        draft.idle(tower, "the tower is trained")


def _read_frozen(reader: Reader, draft: Draft, parts: Sequence[tuple[str, LayerKind]]) -> None:
    """Writes modules without gradients of workers of Megatron (7ea279ab `models/megatron/community_import.py`:30)."""
    reads_by_radio = any(isinstance(kind.block, RadioPatches) for _, kind in parts)
    flags = {name: reader.flag(f"{_MEGATRON}.{name}") for name in _FROZEN}
    asked = {name: flag for name, flag in flags.items() if flag is not None and flag.value}
    draft.idle([flag for name, flag in flags.items() if flag is not None and name not in asked], "the default")
    draft.unmodelled(reader.matching(f"{_MEGATRON}.radio_*"), "which of the learned positions patches get")
    if asked and reads_by_radio:
        draft.infer("training.frozen", [_FROZEN[name] for name in asked], "modules that the switches freeze",
                    *asked.values(), source="NeMo RL 7ea279ab models/megatron/community_import.py:30")
    else:
        for flag in asked.values():
            draft.refuse(flag, "frozen parts of another tower than Nemotron Omni's")
