"""Hugging Face's `config.json` by itself: it says the model, and all of the training is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.recipes.alone.open_keys import ask_for_length
from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.format import Format
from simcore.recipes.huggingface.companions import companions_of
from simcore.recipes.imported import Imported
from simcore.recipes.machine import read_machine
from simcore.recipes.model_file import is_of_model
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["FORMAT"]


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    path = Path(file.path)
    reader, draft = Reader(file.document), Draft("config", file.path, answers)
    kind = str(reader.look("model_type"))
    draft.infer("name", path.stem if path.stem != "config" else path.parent.name or kind, "the file's name")
    draft.infer("model", path.name, "the configuration of the model", *reader.matching("*"))
    companions_of(files[1:], draft, takes=())
    draft.ask("framework", "--set framework=NAME, such as fsdp2 or ddp (`rankscope frameworks`)", "framework")
    draft.ask("training.method", "--set training.method=full, lora or qlora", "method")
    read_machine(draft, None)
    ask_for_length(draft, "tokens of a sequence")
    _read_ranks(draft)
    return draft.imported([reader], loose=loose)


def _read_ranks(draft: Draft) -> None:
    """All GPUs on the data-parallel axis, unless `--set` says a mesh: copies under DDP, else shards."""
    if any(key == "mesh" or key.startswith("mesh.") for key in draft.answers.settings):
        return
    if draft.answers.gpus is None:
        draft.ask("mesh.dp_shard", "--gpus N (or --set mesh.AXIS=N)", "number of GPUs")
    else:
        axis = "dp_replicate" if draft.has_option("bucket_cap_mb") else "dp_shard"
        draft.answered(f"mesh.{axis}", draft.answers.gpus)


FORMAT: Final = Format("config", "Hugging Face config.json", is_of_model, _read)
