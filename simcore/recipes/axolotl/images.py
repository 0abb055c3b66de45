"""Models that read images in an axolotl recipe: a processor is loaded, and each sample brings images.

The recipe says of neither how many images a sample has nor how large they are: both are asked, but for a model whose
images have one size. `image_size` resizes an image before the model's processor does.
"""

from __future__ import annotations

from typing import Final

from simcore.errors import Problem
from simcore.models.blocks import LayerKind
from simcore.models.class_blocks import ScaledPatches
from simcore.models.vision.towers import tower_of
from simcore.models.vision_blocks import AnySize
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader

__all__ = ["read_images"]

_FREEZING: Final = "utils/freeze.py freeze_mm_modules"
_KBIT: Final = ("PEFT 0.21.2 utils/other.py prepare_model_for_kbit_training; 067b021c loaders/model.py "
                "_convert_embedding_modules_dtype casts norms and embeddings of tokens back")
_LOADED: Final = ("067b021c utils/config/__init__.py normalize_config: is_multimodal by the model's type; "
                  "loaders/model.py _set_auto_model_loader: AutoModelForImageTextToText")
_TILES: Final = ("tiles of images in each sequence: one picture is up to 12 and a thumbnail (transformers 5.23 "
                 "models/internvl/processing_internvl.py: crop_to_patches)")
_OPTION: Final = "prepare_model_for_kbit_training"
_OF_STAGE_3: Final = "zero_hpz_partition_size"
_STRATEGY: Final = "processing_strategies.py: an image is resized and padded before the model's processor takes it"


def read_images(reader: Reader, draft: Draft, shards: Shards) -> None:
    """Asks for the images of a sequence where the recipe loads a processor; refuses models whose tower is not known.

    Without a processor a model with a tower is given text alone, and loads its tower all the same. `shards`: of the
    model.
    """
    parts, processor = tower_of(draft.named_model), reader.text("processor_type")
    _read_frozen(reader, draft, parts)
    if parts and draft.values.get("training", {}).get("method") == "qlora":
        _read_packed(reader, draft, shards)
    if processor is None:
        if parts:
            draft.infer("training.images", 0, "no processor is set: samples are text, beside a tower that rests",
                        source=_LOADED)
        return
    if not parts:
        draft.refuse(processor, "a model with images or sound")
        return
    draft.use(processor, why="samples have images")
    tiles = any(isinstance(kind.block, ScaledPatches) for _, kind in parts)
    draft.ask("training.images", "--set training.images=N", _TILES if tiles else "images in each sequence", processor)
    sized = reader.matching("image_size", "image_resize_algorithm")
    if any(isinstance(kind.block, AnySize) for _, kind in parts):
        draft.use(*sized, why=f"the size of images is asked ({_STRATEGY})")
        draft.ask("training.image_height", "--set training.image_height=N", "pixels of an image from top to bottom, of "
                  "a square unless training.image_width is set too")
    else:
        draft.idle(sized, "all images have one size, the model's")


def _read_packed(reader: Reader, draft: Draft, shards: Shards) -> None:
    """Writes that patches, positions and biases of a tower beside a packed base stay in fp32.

    Refused under ZeRO's stages 1 and 2; with shards of parameters axolotl leaves PEFT's preparation out.
    """
    if shards is Shards.NONE and draft.has_option(_OPTION):
        draft.infer(f"framework_options.{_OPTION}", "cast_back", "a packed base behind a vision tower", source=_KBIT)
    elif shards is Shards.ZERO and not draft.has_option(_OF_STAGE_3):
        draft.refused.append(Problem(reader.document.path, "not yet: a packed base behind a vision tower, whose "
                                     f"patches, positions and biases stay in fp32, under ZeRO ({_KBIT})"))


def _read_frozen(reader: Reader, draft: Draft, parts: tuple[tuple[str, LayerKind], ...]) -> None:
    """Names of the modules of a tower that `freeze_mm_modules` freezes; beside adapters all of them are frozen."""
    frozen = reader.flag("freeze_mm_modules")
    adapts = draft.values.get("training", {}).get("method", "full") != "full"
    if frozen is None or not frozen.value or adapts or not parts:
        draft.idle(frozen, "nothing of a tower is trained")
        return
    modules = list(dict.fromkeys(".".join(path.split(".")[:2]) for path, _ in parts))
    draft.infer("training.frozen", modules, "the modules of the tower", frozen, source=_FREEZING)
