"""Images of the samples that a recipe of NeMo RL trains a model with a vision tower on, and the engine's limits.

Samples of three data sets have one image each (NeMo RL 7ea279ab `data/datasets/response_datasets/clevr.py`:39,
`geometry3k.py`:29, `refcoco.py`:147); of others images are asked, as is the size, which no key of a recipe says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.errors import Problem
from simcore.models.blocks import LayerKind
from simcore.models.towers import tower_of
from simcore.models.vision_blocks import AnySize, GridPatches
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_images"]

_ONE_IMAGE: Final = ("clevr-cogent", "geometry3k", "refcoco")
_SOURCE: Final = "NeMo RL 7ea279ab data/datasets/response_datasets"
_ROTATED: Final = "Bridge 067f987d models/gpt_provider.py:230, utils/fusions.py:85: mrope switches it off"
_OF_IMAGES: Final = "vlm_hf_data_processor"
_KWARGS: Final = "policy.generation.vllm_kwargs"
_LIMITS: Final = (f"{_KWARGS}.skip_mm_profiling", f"{_KWARGS}.language_model_only", f"{_KWARGS}.limit_mm_per_prompt.*",
                  "policy.generation.vllm_cfg.limit_mm_per_prompt.*", f"{_KWARGS}.mm_encoder_tp_mode",
                  f"{_KWARGS}.mm_processor_kwargs.*")


def read_images(reader: Reader, draft: Draft) -> None:
    """Writes, or asks for, images of a sequence and their size; refuses text alone. Nothing for other models."""
    given = draft.values.get("model", draft.answers.settings.get("model", ""))
    parts = tower_of(str(given.get("config", "") if isinstance(given, dict) else given))
    if not parts:
        return
    _read_rotation(reader, draft, parts)
    for taken in reader.matching(*_LIMITS):
        draft.refuse(taken, "an engine with other limits of images than vLLM's defaults")
    name = reader.text("data.train.dataset_name") or reader.text("data.dataset_name")
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
