"""Images of the sequences of a recipe of verl whose model has a vision tower, and a tower that is not trained.

verl b178a3cd: no key says how many images a prompt has, or how large they are (`utils/dataset/rl_dataset.py` reads them
from the data, `data.image_key`).
"""

from __future__ import annotations

from typing import Final

from simcore.models.vision.towers import tower_of
from simcore.models.vision_blocks import AnySize
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.verl.actor import ACTOR, RELEASE, WORKERS
from simcore.recipes.verl.sharding import is_second

__all__ = ["read_images"]

_MODULE: Final = "model.visual"
"""Tower of Qwen's models (verl b178a3cd `workers/fsdp_workers.py`:127 get_vl_model_vision_tower)."""


def read_images(reader: Reader, draft: Draft, *, by_megatron: bool) -> None:
    """Asks for images of a sequence and their size, and writes whether the tower is frozen; nothing for other models.

    With a frozen tower FSDP keeps parameters by themselves (`workers/fsdp_workers.py`:474: use_orig_params).
    `by_megatron`: no worker of it reads the key.
    """
    given = draft.values.get("model", draft.answers.settings.get("model", ""))
    parts = tower_of(str(given.get("config", "") if isinstance(given, dict) else given))
    freezes = reader.flag(f"{ACTOR}.freeze_vision_tower")
    if not parts:
        draft.idle(freezes, "there is no vision tower")
        return
    if freezes is None or not freezes.value or by_megatron:
        draft.idle(freezes, "workers of Megatron do not read it" if by_megatron else "the default: the tower is "
                   "trained")
    elif all(path.startswith(f"{_MODULE}.") for path, _ in parts):
        draft.infer("training.frozen", [_MODULE], "the vision tower", freezes, source=f"{RELEASE} {WORKERS}")
        if not is_second(reader):
            draft.infer("framework_options.use_orig_params", True, "parameters with and without gradients in one "  # noqa: FBT003
                        "unit", freezes, source=f"{RELEASE} {WORKERS}:474")
    else:
        draft.refuse(freezes, "a frozen tower of another name than model.visual")
    draft.ask("training.images", "--set training.images=N", "images in each sequence", reader.take("data.image_key"))
    if any(isinstance(kind.block, AnySize) for _, kind in parts):
        draft.ask("training.image_height", "--set training.image_height=N", "pixels of an image from top to bottom, of "
                  "a square unless training.image_width is set too")
