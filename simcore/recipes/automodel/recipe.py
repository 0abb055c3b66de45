"""Reads an Automodel recipe block by block; a key ends in the scenario, in a list with its reason, or in an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from simcore.recipes.answers import Answers
from simcore.recipes.automodel.batches import read_batches, read_lengths
from simcore.recipes.automodel.cluster import read_cluster
from simcore.recipes.automodel.distributed import read_distributed
from simcore.recipes.automodel.images import VLM_RECIPE, read_images
from simcore.recipes.automodel.model import read_model
from simcore.recipes.automodel.optimizer import read_loss, read_optimizer
from simcore.recipes.automodel.peft import read_method
from simcore.recipes.automodel.without_effect import OFF_BY_NULL, WITHOUT_EFFECT
from simcore.recipes.automodel.written import WRITER
from simcore.recipes.draft import Draft
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported
from simcore.recipes.machine import Hint, read_machine
from simcore.recipes.reader import Reader
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.rows import read_rows

__all__ = ["FORMAT"]

_NULLS: Final = frozenset({"none", "None"})
"""Words that its loader reads as null (`components/config/loader.py`, translate_value)."""
_RECIPES: Final = ("TrainFinetuneRecipeForNextTokenPrediction", "BenchmarkingRecipeForNextTokenPrediction", VLM_RECIPE)

_BLOCKS: Final = frozenset({"step_scheduler", "distributed", "dist_env", "recipe_args"})
_PEAKS: Final = {989.0: ("dgx-h100", "in bf16"), 312.0: ("dgx-a100", "in bf16"),
                 2500.0: ("gb200-nvl72", "in bf16, as upstream counts it"),
                 5000.0: ("gb200-nvl72", "in fp8, as upstream counts it")}
"""Machines by the peaks in TFLOP/s that upstream's own benchmarks state, with the words of their comments."""


def _recognises(file: RecipeFile) -> bool:
    document = file.mapping()
    if document is None:
        return False
    model = document.data.get("model")
    target = str(model.get("_target_")) if isinstance(model, dict) else ""
    return target.startswith("nemo_automodel.") or ("recipe" in document.data and not _BLOCKS.isdisjoint(document.data))


def _read(files: Sequence[RecipeFile], answers: Answers, loose: bool) -> Imported:  # noqa: FBT001 - Format.read's
    file = files[0]
    reader, draft = Reader(file.document, _NULLS), Draft("automodel", file.path, answers)
    for other in files[1:]:
        draft.fail(other.path, "an Automodel recipe is one file; a config.json is named by --set model=PATH")
    draft.infer("name", Path(file.path).stem, "the file's name")
    if not _read_kind(reader, draft):
        draft.idle(reader.matching("*"), "of a recipe that is refused")
        return draft.imported([reader], loose=loose)
    for block in OFF_BY_NULL:
        if not reader.has(block):
            reader.take(block)  # null says nothing
    draft = read_cluster(reader, draft)
    family = read_model(reader, draft)
    read_machine(draft, _machine_hint(reader))
    read_distributed(reader, draft)
    read_method(reader, draft)
    read_images(reader, draft)
    read_lengths(reader, draft)
    read_batches(reader, draft)
    read_loss(reader, draft, family)
    read_optimizer(reader, draft)
    read_rows(reader, draft, WITHOUT_EFFECT)
    return draft.imported([reader], loose=loose)


def _machine_hint(reader: Reader) -> Hint | None:
    """The machine whose peak a benchmark states, in TFLOP/s."""
    peak = reader.number("benchmark.peak_tflops")
    if peak is None:
        return None
    name, told = _PEAKS.get(peak.value, ("", "in bf16"))
    return Hint(name, f"the GPU with a peak of {peak.value:g} TFLOP/s {told}", peak)


def _read_kind(reader: Reader, draft: Draft) -> bool:
    """False for a class of recipes that is not read; those that are train to predict the next token, by one step."""
    kind = reader.text("recipe._target_" if reader.is_mapping("recipe") else "recipe")
    if kind is not None and kind.value.rpartition(".")[2] not in _RECIPES:
        draft.refuse(kind, f"only {' and '.join(_RECIPES)} are read", always=True)
        return False
    if kind is None and (teacher := reader.matching("teacher_model.*")):
        draft.refuse(teacher[0], "distillation from a teacher", always=True)
        draft.idle(teacher[1:], "of a recipe that is refused")
        return False
    draft.infer("framework", "automodel", "the class of the recipe", kind)
    return True


FORMAT: Final = Format("automodel", "NeMo Automodel YAML", _recognises, _read, WRITER,
                       repeats="0.7.0 components/config/loader.py: yaml.safe_load")
