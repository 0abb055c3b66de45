"""Parts of a model with a vision tower that a recipe of Megatron-Bridge freezes.

Megatron-Bridge 067f987d `models/qwen_vl/modelling_qwen3_vl/model.py:513` (Qwen3VLModel.freeze): the vision model is
frozen whole, and its mergers are made trainable again unless the projection is frozen too. Recipes say all three; what
they leave out is false, but with experts: their providers freeze both models (`qwen3_vl_provider.py:272`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from simcore.models.blocks import Head, LayerKind, Loss
from simcore.models.graph import architecture_of
from simcore.models.placed_blocks import DeepMerger, PlacedPatches
from simcore.models.vision_blocks import TowerEnd, VisionPart
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["leave_frozen", "read_frozen"]

_SOURCE: Final = "Bridge 067f987d models/qwen_vl/modelling_qwen3_vl/model.py:513"
_KEYS: Final = ("freeze_language_model", "freeze_vision_model", "freeze_vision_projection")
_FROZEN_BY_PROVIDER: Final = ("qwen3_vl_moe",)
"""Families whose provider freezes both models where nothing is said."""


def read_frozen(reader: Reader, draft: Draft, fields: Mapping[str, Any],
                parts: Sequence[tuple[str, LayerKind]]) -> None:
    """Writes names of modules without gradients for the switches of the provider of a model.

    `fields`: its configuration; `parts`: of its tower.
    """
    flags = [reader.flag(f"model.{key}") for key in _KEYS]
    language, vision, projection = _values(fields, flags)
    modules = [*(_language(fields) if language else ()), *_of_tower(parts, vision=vision, projection=projection)]
    if modules:
        draft.infer("training.frozen", modules, "modules that the switches freeze", *flags, source=_SOURCE)
    else:
        draft.idle([one for one in flags if one], "nothing is frozen, as without it")


def leave_frozen(reader: Reader, draft: Draft) -> None:
    """Refuses a frozen language model where no tower is known that is trained beside it."""
    language = reader.flag(f"model.{_KEYS[0]}")
    if language is not None and language.value:
        draft.refuse(language, "a frozen language model beside other towers")
    else:
        draft.idle(language, "off, as without it")


def _values(fields: Mapping[str, Any], flags: Sequence[Taken[bool] | None]) -> tuple[bool, bool, bool]:
    whole = fields.get("model_type") in _FROZEN_BY_PROVIDER
    language, vision, projection = (one.value if one else whole and number < 2 for number, one in enumerate(flags))
    return language, vision, projection


def _language(fields: Mapping[str, Any]) -> list[str]:
    """Outermost modules of all parts but the tower's; a tied head is the embedding."""
    found = architecture_of(fields)
    paths = [path for path, kind in found.parts
             if not isinstance(kind.block, VisionPart | Loss) and not (found.tied and isinstance(kind.block, Head))]
    return list(dict.fromkeys(".".join(path.split(".")[:2]) for path in paths))


def _of_tower(parts: Sequence[tuple[str, LayerKind]], *, vision: bool, projection: bool) -> list[str]:
    """Modules of the tower; its parts stand for their lists, but for one whose path is the whole tower's."""
    ends = [path for path, kind in parts if isinstance(kind.block, DeepMerger | TowerEnd)]
    inner = [path for path, kind in parts if not isinstance(kind.block, DeepMerger | TowerEnd | PlacedPatches)]
    first = [f"{path}.{name}" for path, kind in parts if isinstance(kind.block, PlacedPatches)
             for name in ("patch_embed", "pos_embed")]
    return [*((*first, *_lists(inner)) if vision else ()), *(_lists(ends) if projection else ())]


def _lists(paths: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(path.rpartition(".")[0] if path[-1].isdigit() else path for path in paths))
