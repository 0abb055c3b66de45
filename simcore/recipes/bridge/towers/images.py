"""Images of the samples that a recipe of Megatron-Bridge trains a model with a vision tower on.

Mock samples have one square image of 256 pixels unless the recipe says otherwise (Megatron-Bridge 067f987d
`data/builders/mock_vlm_sft.py:50`); the collator of Qwen's models asks their processor for images of 200,704 to
1,003,520 pixels (`models/qwen_vl/data/collate_fn.py:43`), which scales them up to 448; Ministral 3's processor makes
sides of 1,540 pixels at most (transformers 5.23 `image_processing_pixtral.py:49`). Samples of CORD v2 have one image
each, of any size, which is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from simcore.models.blocks import LayerKind
from simcore.models.graph import model_config
from simcore.models.names import find
from simcore.models.vision.towers import tower_of
from simcore.models.vision_blocks import AnySize, RowPatches, sizes_vary
from simcore.recipes.bridge.towers.frozen import leave_frozen, read_frozen
from simcore.recipes.bridge.towers.omni import FAMILIES, FAMILY, ask_tiles, leave_sound, read_frozen_parts, read_videos
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_images", "splits_sequences"]

_MOCK: Final = "MockVLMSFTDatasetConfig"
_MADE: Final = "Bridge 067f987d data/builders/mock_vlm_sft.py:50"
_SIZED: Final = "Bridge 067f987d models/qwen_vl/data/collate_fn.py:43, transformers 5.23 qwen2_vl smart_resize"
_RAGGED: Final = ("rows are as long as the longest sample of their batch, unless stages or experts are parallel "
                  "(models/qwen_vl/qwen3_vl_step.py:268): each is counted as a row of training.seq_len")
_RAGGED_OMNI: Final = ("rows are as long as the longest sample of their batch, padded to a multiple "
                       "(models/nemotron_omni/data/collate_fn.py:695, models/nemotron_vl likewise): each is counted as "
                       "a row of training.seq_len")
_LEAST, _MOST = 200_704, 1_003_520
_LONGEST: Final = 1540
_OF_ROWS: Final = "transformers 5.23 models/pixtral/image_processing_pixtral.py:49"
_OF_RADIO: Final = ("at least 1,024 and at most 13,312 patches of 16 x 16 (transformers 5.23 nemotron_h_omni, "
                    "get_patch_grid_size)")
_SIDE: Final = 256
_ONE_IMAGE: Final = ("cord_v2", "rdr", "medpix")
"""Data sets each sample of which has one image (`data/hf_datasets/makers.py`)."""


def read_images(reader: Reader, draft: Draft) -> None:
    """Writes, or asks for, the images of a sequence and their sides, and what is frozen; nothing for other models."""
    name, changed = _model(draft)
    parts = tower_of(name)
    if not parts:
        leave_frozen(reader, draft)
        leave_sound(reader, draft)
        return
    fields = model_config(name, changed, "")
    if fields.get("model_type") in FAMILIES:
        read_frozen_parts(reader, draft, fields)
    else:
        read_frozen(reader, draft, fields, parts)
        leave_sound(reader, draft)
    _refuse_others(reader, draft)
    if reader.look("dataset._target_") == _MOCK:
        _read_mock(reader, draft, parts)
        return
    if not reader.has("dataset.pad_to_max_length"):
        why = _RAGGED_OMNI if fields.get("model_type") in FAMILIES else _RAGGED
        draft.unmodelled_default("dataset.pad_to_max_length", value=False, why=why)
    source = reader.text("dataset.source.dataset_name")
    if read_videos(reader, draft):
        draft.idle(source, "samples are videos")
    elif fields.get("model_type") in FAMILIES[1:]:
        ask_tiles(draft, source)
    elif source is not None and source.value in _ONE_IMAGE:
        draft.infer("training.images", 1, f"{source.value}: a sample has one image", source)
    else:
        draft.ask("training.images", "--set training.images=N", "images in each sequence", source)
    if _unit(parts):
        bounds = (f"at most {_LONGEST:,} (the model's processor)" if _in_rows(parts) else
                  _OF_RADIO if fields.get("model_type") == FAMILY else
                  f"at least {_LEAST:,} and at most {_MOST:,} in all (Bridge's collator)")
        draft.ask("training.image_height", "--set training.image_height=N", "pixels of an image from top to bottom, of "
                  f"a square unless training.image_width is set too; {bounds}")


def splits_sequences(draft: Draft) -> bool:
    """True for Qwen 3 VL with experts, whose provider switches sequence parallelism on with tensor parallelism."""
    name, _ = _model(draft)
    return find(name) is not None and model_config(name, None, "").get("model_type") == "qwen3_vl_moe"


def _model(draft: Draft) -> tuple[str, dict[str, Any]]:
    """Name of the model, and what the recipe changes of its configuration."""
    given = draft.values.get("model", draft.answers.settings.get("model", ""))
    return (str(given.get("config", "")), given.get("overrides", {})) if isinstance(given, dict) else (str(given), {})


def _refuse_others(reader: Reader, draft: Draft) -> None:
    """Refuses captured layers of the tower, another tower, images that cp ranks share, and towers on ranks apart."""
    captured = reader.text("model.vision_cuda_graph_impl")
    if captured is not None and captured.value != "none":
        draft.refuse(captured, "captured layers of a vision tower")
    else:
        draft.idle(captured, "nothing of the tower is captured")
    for key, what in (("use_hf_vision_model", "Hugging Face's tower in the place of Bridge's"),
                      ("vision_dp_when_cp", "images that context parallel ranks share"),
                      ("dist_train.use_dist_train", "a tower on ranks of its own")):
        flag = reader.flag(f"model.{key}")
        if flag is not None and flag.value:
            draft.refuse(flag, what)
        else:
            draft.idle(flag, "off, as without it")


def _read_mock(reader: Reader, draft: Draft, parts: Sequence[tuple[str, LayerKind]]) -> None:
    count, sides = reader.integer("dataset.num_images"), reader.take("dataset.image_size")
    draft.infer("training.images", count.value if count else 1, "dataset.num_images, 1 by default", count,
                source=_MADE)
    unit = _unit(parts)
    if not unit:
        draft.idle(sides, "all images have one size, the model's")
        return
    asked = sides.value if sides is not None and isinstance(sides.value, list | tuple) else (_SIDE, _SIDE)
    width, height = (int(side) for side in asked)
    rows = _in_rows(parts)
    high, wide = (_resized_rows if rows else _resized)(height, width, unit)
    bounds = f"{_LONGEST:,} a side at most" if rows else f"{_LEAST:,} at least and {_MOST:,} at most in all"
    source = _OF_ROWS if rows else _SIZED
    draft.infer("training.image_height", high, f"{height} pixels, resized to {bounds}, in multiples of {unit}", sides,
                source=source)
    if wide != high:
        draft.infer("training.image_width", wide, f"{width} pixels, resized in the same way", sides, source=source)


def _unit(parts: Sequence[tuple[str, LayerKind]]) -> int:
    """Pixels of the side of a square of patches that becomes a token; 0 for a model with images of one size."""
    found = next((kind.block for _, kind in parts if isinstance(kind.block, AnySize) and sizes_vary(kind.block)), None)
    return 2 * found.patch if found else 0


def _in_rows(parts: Sequence[tuple[str, LayerKind]]) -> bool:
    """True for Pixtral's tower, whose processor bounds sides, not pixels."""
    return any(isinstance(kind.block, RowPatches) for _, kind in parts)


def _resized_rows(height: int, width: int, unit: int) -> tuple[int, int]:
    """`get_resize_output_image_size`: sides that are too long are scaled down, then both go up to a multiple."""
    scale = max(1, height / _LONGEST, width / _LONGEST)
    high, wide = (-(-math.floor(side / scale) // unit) * unit for side in (height, width))
    return high, wide


def _resized(height: int, width: int, unit: int) -> tuple[int, int]:
    """`smart_resize`: both sides in multiples of `unit`, all pixels within the collator's bounds."""
    high, wide = (round(side / unit) * unit for side in (height, width))
    if high * wide > _MOST:
        scale = math.sqrt(height * width / _MOST)
        high, wide = (max(unit, math.floor(side / scale / unit) * unit) for side in (height, width))
    elif high * wide < _LEAST:
        scale = math.sqrt(_LEAST / (height * width))
        high, wide = (math.ceil(side * scale / unit) * unit for side in (height, width))
    return high, wide
