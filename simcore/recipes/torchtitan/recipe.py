"""Reads a job configuration of torchtitan, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.recipes.answers import Answers
from simcore.recipes.draft import Draft
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported
from simcore.recipes.machine import read_machine
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.rows import read_rows
from simcore.recipes.torchtitan.files import read_files
from simcore.recipes.torchtitan.model import read_model, read_products
from simcore.recipes.torchtitan.parallelism import read_parallelism
from simcore.recipes.torchtitan.step import (
    is_compiled,
    read_batches,
    read_checkpointing,
    read_compile,
    read_formats,
    read_optimizer,
)
from simcore.recipes.torchtitan.without_effect import BLOCKS, SWITCHES, WITHOUT_EFFECT
from simcore.recipes.torchtitan.written import WRITER

__all__ = ["FORMAT"]

_NAME: Final = "torchtitan"
_NEW: Final = "model_spec"
"""Block of the model in what releases after 0.2.2 save, whose configuration is Python."""
_OWN_CODE: Final = ("job.custom_config_module", "experimental.custom_import", "experimental.custom_args_module")


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is None:
        return False
    model = document.data.get("model", document.data.get(_NEW))
    return isinstance(model, dict) and "flavor" in model and isinstance(document.data.get("training"), dict)


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    reader = Reader(files[0].document)
    draft = Draft(_NAME, files[0].path, answers)
    for further in files[1:]:
        draft.fail(further.path, "a job configuration of torchtitan is one file")
    draft.infer("name", Path(files[0].path).stem, "the file's name")
    draft.infer("framework", "fsdp2", "torchtitan shards by FSDP2")
    draft.infer("implementation", _NAME, "its own layers")
    _read_blocks(reader, draft)
    return draft.imported([reader], loose=loose)


def _read_blocks(reader: Reader, draft: Draft) -> None:
    if reader.has(_NEW):
        flavor = reader.take(f"{_NEW}.flavor")
        draft.refuse(flavor, "the configuration of a release after 0.2.2, which is the one that is simulated",
                     always=True)
        draft.idle(reader.matching("*"), "of a configuration that is refused")
        return
    read_machine(draft, None)
    sizes = read_model(reader, draft)
    if sizes is None:
        draft.idle(reader.matching("*"), "of a model that is refused")
        return
    for key in _OWN_CODE:
        own = reader.text(key)
        if own is not None and own.value:
            draft.refuse(own, f"code of one's own, {own.value}")
        else:
            draft.idle(own, "none")
    mode = reader.text("comm.mode")
    if mode is not None and mode.value != "default":
        draft.refuse(mode, f"a trial run by {mode.value}")
    else:
        draft.idle(mode, "the default")
    _read_kernels(reader, draft)
    read_parallelism(reader, draft, sizes, compiled=is_compiled(reader))
    read_batches(reader, draft)
    read_formats(reader, draft, fp8=read_products(reader, draft))
    read_checkpointing(reader, draft)
    read_compile(reader, draft)
    read_optimizer(reader, draft)
    read_files(reader, draft)
    read_rows(reader, draft, (*SWITCHES, *WITHOUT_EFFECT))
    draft.idle([one for block in BLOCKS if reader.look(block) == {} and (one := reader.take(block)) is not None],
               "an empty table")


def _read_kernels(reader: Reader, draft: Draft) -> None:
    for key in ("debug.deterministic", "training.deterministic"):
        chosen = reader.flag(key)
        if chosen is not None and chosen.value:
            draft.unmodelled(chosen, "deterministic kernels are not told apart from others")
        else:
            draft.idle(chosen, "the default")


FORMAT: Final = Format(_NAME, "torchtitan's job configuration (TOML, or as it saves it)", _recognises, _read, WRITER)
