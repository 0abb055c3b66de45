"""Models that read images in an Automodel recipe: how many images a sample has, and which parts are frozen.

[Note: freeze_config]
0.7.0 `components/utils/model_utils.py`, apply_parameter_freezing: a block without `freeze_vision_tower` freezes the
tower; its switch matches modules with vision, visual or image_encoder in their name, that of the language model those
with language, text or llm.
A projector such as Gemma 3's `multi_modal_projector` has none of these words and is trained; Qwen's merger is a module
of `visual`, that of Nemotron Omni `vision_projector`. `freeze_audio_tower` matches audio, speech and sound.
`freeze_embeddings` is read by nothing in main of 2026-08-22 (36044ad3), whose examples have it, and
refused by 0.7.0 (parse_freeze_config).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.models.blocks import LayerKind
from simcore.models.pooled_blocks import PooledPatches
from simcore.models.vision.towers import tower_of
from simcore.models.vision_blocks import sizes_vary
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Row, read_rows

__all__ = ["VLM_RECIPE", "read_images"]

VLM_RECIPE: Final = "FinetuneRecipeForVLM"
"""Class of recipes whose samples have images."""
_WITH_TOWER: Final = "ForImageTextToText"
"""Part of the name of the class that loads a model with its tower."""
_DATASETS: Final = "components/datasets/vlm/datasets.py"
_ONE_IMAGE: Final = ("make_rdr_dataset", "make_cord_v2_dataset", "make_medpix_dataset",
                     "make_shopify_product_catalogue_dataset")
"""Makers of data sets each sample of which has one image (`components/datasets/vlm/datasets.py`)."""
_FREEZING: Final = "components/utils/model_utils.py apply_parameter_freezing"
_TOWER, _LANGUAGE = "freeze_config.freeze_vision_tower", "freeze_config.freeze_language_model"
_EXCLUDED: Final = "training.lora.exclude_modules"
_AUDIO: Final = "freeze_config.freeze_audio_tower"
_OF_FREEZING: Final[tuple[Row, ...]] = (
    Idle(("freeze_config.freeze_embeddings",), "nothing reads it (main 2026-08-22 components/utils/model_utils.py); "
         "0.7.0 refuses the file for it (parse_freeze_config)"),
    Idle(("freeze_config.freeze_audio_tower",), "the model has no such part"),
    Idle(("freeze_config.freeze_video_embedder",), "the model has no such part, or it is frozen with the tower"),
)
_ROWS: Final[tuple[Row, ...]] = (
    *_OF_FREEZING,
    Idle(("processor._target_", "processor.pretrained_model_name_or_path", "processor.trust_remote_code",
          "processor.use_fast", "processor.revision"), "which processor reads an image"),
    Idle(("processor.padding_side", "processor.video_processor", "processor.video_processor.*"), "sequences are as "
         "long as asked, and images no videos"),
)
_OF_PACKS: Final[tuple[Row, ...]] = (
    Idle(("packed_sequence.attn_implementation",), "deprecated and ignored (0.7.0 recipes/_typed_config.py:445)"),
    Idle(("packed_sequence.*", "dataset.max_length"), "which samples come into a pack"),
    Idle(("dataloader.collate_fn", "dataloader.collate_fn.*"), "nothing reads it: the packer's own collater takes its "
         "place (0.7.0 components/datasets/vlm/loader.py:287)"),
)
_SQUARE: Final = 48
"""Patches of a side of Gemma 4's largest square image, 3 a token."""
_PIXELS: Final = ("processor.min_pixels", "processor.max_pixels")


def read_images(reader: Reader, draft: Draft) -> None:
    """Writes the number of images of a sequence, or asks for it, and what the recipe freezes of the model."""
    kind = reader.text("recipe._target_" if reader.is_mapping("recipe") else "recipe")
    sees = kind.value.endswith(VLM_RECIPE) if kind is not None else _is_older(reader, draft)
    name = draft.values.get("model", draft.answers.settings.get("model", ""))
    parts = tower_of(name.get("config", "") if isinstance(name, dict) else str(name))
    if not sees:
        if parts and kind is not None:
            _rest(reader, draft, kind, parts)
        return
    draft.use(kind, why="samples have images")
    _read_number(reader, draft, packs=_read_packs(reader, draft))
    _read_sides(reader, draft, any_size=any(sizes_vary(kind.block) for _, kind in parts))
    for patches in (kind.block for _, kind in parts if isinstance(kind.block, PooledPatches)):
        draft.infer("training.image_height", _SQUARE * patches.patch, "images are taken as square, which the processor "
                    "makes as large as 280 tokens allow: 256", source="transformers 5.23 models/gemma4/"
                    "image_processing_gemma4.py get_aspect_ratio_preserving_size")
    _read_frozen(reader, draft, parts)
    read_rows(reader, draft, _ROWS)


def _is_older(reader: Reader, draft: Draft) -> bool:
    """True for a recipe without a class, as releases up to 0.3 have them, whose model is loaded with its tower.

    The command said it there: `automodel finetune vlm` (0.3.0 `_cli/app.py`).
    """
    sees = _WITH_TOWER in str(reader.look("model._target_"))
    if sees:
        draft.release_default("recipe", VLM_RECIPE, "the command `automodel finetune vlm`, by the class of the model",
                              "0.3.0 _cli/app.py")
    return sees


def _read_packs(reader: Reader, draft: Draft) -> bool:
    """True for packs, whose length it writes: samples are one row with all their images.

    0.7.0 datasets/vlm/neat_packing_vlm.py.
    """
    packs = reader.integer("packed_sequence.pack_size")
    if packs is None or packs.value <= 0:
        draft.idle(packs, "packing is off")
        return False
    draft.put("training.lengths", packs, "packed")
    if draft.answers.seq_len is not None:
        draft.answered("training.seq_len", draft.answers.seq_len)
    else:
        draft.put("training.seq_len", packs)
    padded = reader.integer("packed_sequence.collate_max_length")
    if padded is not None and padded.value != packs.value:
        draft.refuse(padded, "packs that are padded to another length than theirs")
    draft.idle(padded, "packs are as long")
    written = reader.text("packed_sequence.packing_format")
    if written is not None and written.value == "thd":
        draft.refuse(written, "packs in the format of Transformer Engine (thd)")
    draft.idle(written, "the default")
    read_rows(reader, draft, _OF_PACKS)
    return True


def _rest(reader: Reader, draft: Draft, kind: Taken[str], parts: Sequence[tuple[str, LayerKind]]) -> None:
    """Writes that no sequence has an image, and what the recipe freezes: a tower that rests all the same."""
    draft.infer("training.images", 0, "the recipe's samples are text: the vision tower, which is built, does not run",
                kind, source="0.7.0 _transformers/model_init.py:241 _resolve_custom_model_cls_for_config: the class is "
                "that of the configuration's architectures")
    _read_frozen(reader, draft, parts)
    read_rows(reader, draft, _OF_FREEZING)


def _read_sides(reader: Reader, draft: Draft, *, any_size: bool) -> None:
    """Asks for the height of images where the model takes `any_size`, which the pixels of the processor bound."""
    bounds = [reader.integer(key) for key in _PIXELS]
    if not any_size:
        draft.idle([one for one in bounds if one is not None], "all images have one size, the model's")
        return
    limits = zip(("at least", "at most"), bounds, strict=True)
    told = " and ".join(f"{word} {one.value:,}" for word, one in limits if one)
    draft.use(*bounds, why="bounds of the size of an image, which is asked")
    draft.ask("training.image_height", "--set training.image_height=N", "pixels of an image from top to bottom, of a "
              "square unless training.image_width is set too" + (f"; {told} in all" if told else ""))


def _read_number(reader: Reader, draft: Draft, *, packs: bool) -> None:
    target = reader.text("dataset._target_")
    made = target.value.rpartition(".")[2] if target else ""
    if packs:
        draft.ask("training.images", "--set training.images=N", "images in each pack, those of all its samples", target)
    elif made in _ONE_IMAGE:
        draft.infer("training.images", 1, f"{made}: a sample has one image", target, source=_DATASETS)
    else:
        draft.ask("training.images", "--set training.images=N", "images in each sequence", target)


_WORDS: Final = ("vision", "visual", "image_encoder")
_OF_SOUND: Final = ("audio", "speech", "sound")


def _read_frozen(reader: Reader, draft: Draft, parts: Sequence[tuple[str, LayerKind]]) -> None:
    """Names of modules without gradients, see [Note: freeze_config]; without the block nothing is frozen."""
    tower, language = reader.flag(_TOWER), reader.flag(_LANGUAGE)
    frozen, by = list[str](), list[Taken[bool]]()
    if reader.names("freeze_config") and (tower is None or tower.value):
        frozen += _named(parts, _WORDS) or ["model.vision_tower"]
        by += [tower] if tower else []
    else:
        draft.idle(tower, "the tower is trained")
    if _named(parts, _OF_SOUND):
        audio = reader.flag(_AUDIO)
        if audio is not None and audio.value:
            frozen += _named(parts, _OF_SOUND)
            by.append(audio)
        else:
            draft.idle(audio, "the default")
    if language is not None and language.value:
        frozen.append("model.language_model")
        by.append(language)
    else:
        draft.idle(language, "the default")
    if frozen:
        draft.infer("training.frozen", frozen, "modules whose names the switches match", *by, source=_FREEZING)
    if "vision_projector" in frozen:
        _leave_projector(draft)


def _leave_projector(draft: Draft) -> None:
    """Leaves adapters of the projector out, which the same switch freezes: their names have its name in them."""
    excluded = draft.values.get("training", {}).get("lora", {}).get("exclude_modules")
    if excluded and not any("projector" in pattern or pattern == "*vision*" for pattern in excluded):
        draft.leave_out(_EXCLUDED)
        draft.infer(_EXCLUDED, [*excluded, "*vision_projector*"], "the recipe's; adapters of vision_projector are "
                    "frozen by their names, and not counted", source=_FREEZING)


def _named(parts: Sequence[tuple[str, LayerKind]], words: Sequence[str]) -> list[str]:
    """Outermost modules of a model's towers whose names have one of the words."""
    modules = dict.fromkeys(_module_of(path) for path, _ in parts)
    return [module for module in modules if any(word in module for word in words)]


def _module_of(path: str) -> str:
    """A module of the model, or of the one that a conditional generation model holds."""
    first, _, rest = path.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == "model" else first
