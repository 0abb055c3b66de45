"""Models that read images in a LLaMA-Factory recipe: images of a sequence, and parts that are frozen.

[Note: forbidden modules]
ff6d4d12 `model/model_utils/visual.py`: of a model with images the tower and what projects its tokens are frozen unless
`freeze_vision_tower` and `freeze_multi_modal_projector` say otherwise (get_forbidden_modules), and get no adapters
(`misc.py`, find_all_linear_modules; patch_target_modules): adapters then are those of the language model.
A batch without an image is given one of 64 x 64 pixels (`data/collator.py`, MultiModalDataCollatorForSeq2Seq).

[Note: layers of a frozen tower]
`model/model_utils/checkpointing.py`, get_custom_gradient_checkpointing_func: a layer without a trained parameter is not
checkpointed. Beside PEFT, which asks for gradients of a tower's front where the model has checkpoints (PEFT 0.21.2
peft_model.py _prepare_model_for_gradient_checkpointing), a tower whose front can take one is kept whole.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import LayerKind
from simcore.models.placed_blocks import PlacedPatches
from simcore.models.vision.towers import tower_of
from simcore.models.vision_blocks import AnySize
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["adapted_names", "read_images"]

_SOURCE: Final = "LLaMA-Factory ff6d4d12 model/model_utils/visual.py get_forbidden_modules"
_FREEZING: Final = ("freeze_vision_tower", "freeze_multi_modal_projector")
_LANGUAGE: Final = "freeze_language_model"
_Parts = tuple[tuple[str, LayerKind], ...]


def read_images(reader: Reader, draft: Draft, method: str) -> None:
    """Asks for the images of a sequence, and writes what is frozen; of a model without a tower nothing is read.

    `method`: full, lora, or qlora.
    """
    parts = tower_of(draft.named_model)
    switches = [reader.flag(name) for name in (*_FREEZING, _LANGUAGE)]
    given = reader.matching("image_max_pixels", "image_min_pixels")
    sized = [one for one in given if one.value is not None]
    draft.idle([one for one in given if one.value is None], "null: no bound is said")
    if not parts:
        draft.idle([one for one in switches if one], "read of models with images alone (model/model_utils/visual.py "
                                                     "get_forbidden_modules)")
        draft.idle(sized, "about images and sound")
        return
    draft.ask("training.images", "--set training.images=N", "images in each sequence; a batch without any gets one of "
              "64 x 64 pixels")
    if any(isinstance(kind.block, AnySize) for _, kind in parts):
        bounds = ", ".join(f"{one.key} {one.value:,}" for one in sized)
        draft.use(*sized, why="bounds of the size of an image, which is asked")
        draft.ask("training.image_height", "--set training.image_height=N", "pixels of an image from top to bottom, of "
                  "a square unless training.image_width is set too" + (f" ({bounds} in all)" if bounds else ""))
    else:
        draft.idle(sized, "all images have one size, the model's")
    recomputes = (reader.look("disable_gradient_checkpointing") is not True
                  or reader.look("gradient_checkpointing") is True)
    if recomputes and not any(isinstance(kind.block, PlacedPatches) for _, kind in parts):
        draft.default("framework_options.checkpoint_frozen_layers", value=False, release="LLaMA-Factory ff6d4d12",
                      source="model/model_utils/checkpointing.py get_custom_gradient_checkpointing_func")
    _read_frozen(reader, draft, parts, method)


def _read_frozen(reader: Reader, draft: Draft, parts: _Parts, method: str) -> None:
    """Names of modules without gradients, see [Note: forbidden modules]."""
    tower, end, language = (reader.flag(name) for name in (*_FREEZING, _LANGUAGE))
    if language is not None and language.value:
        draft.refuse(language, "a language model that is frozen")
    else:
        draft.idle(language, "the default")
    for one, what in ((tower, "a vision tower that is trained"), (end, "a projector that is trained")):
        if one is not None and not one.value:
            draft.refuse(one, what)
        else:
            draft.use(one, why="the default")
    if method == "full":
        modules = list(dict.fromkeys(".".join(path.split(".")[:2]) for path, _ in parts))
        draft.default("training.frozen", modules, "LLaMA-Factory ff6d4d12", _SOURCE)


def adapted_names(draft: Draft, names: tuple[str, ...]) -> str:
    """Pattern of whole names of the linears `names` of the language model; "" for a model without a tower."""
    return rf"model\.language_model\..*\.({'|'.join(names)})" if tower_of(draft.named_model) else ""
