"""Batch of a benchmark that is started on another number of GPUs than its name says: samples a rank stay.

Megatron-Bridge 067f987d `scripts/training/run_recipe.py`, _apply_benchmark_weak_scaling, and `scripts/common/
benchmark_parallelism.py`: the global batch is multiplied by the data-parallel ranks over those of the recipe as it is,
unless an override gives it. The recipe's own degrees must divide the GPUs of its name. Recipes of the library have no
such rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.inputs.document import Document
from simcore.recipes.answers import Answer
from simcore.recipes.bridge.named import is_benchmark, present_name, recipes
from simcore.recipes.bridge.options import UNNAMED, Launcher
from simcore.recipes.bridge.parallel import gpus_of
from simcore.recipes.draft import Draft

__all__ = ["scaled"]

_BATCH: Final = "train.global_batch_size"
_DENSE: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_STAGES: Final = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
_GATHERS: Final = "overlap_param_gather_with_optimizer_step"
_UNSOUND: Final = ("fp8mx", "nvfp4")
"""Formats in which such gathers are not set: they make norms of gradients that are no numbers."""
_EXPERT: Final = ("expert_tensor_parallel_size", "expert_model_parallel_size", "pipeline_model_parallel_size")


def scaled(draft: Draft, document: Document, name: str, gpus: Answer | None, *, given: bool,
           launcher: Launcher = UNNAMED) -> Document:
    """The recipe's document with the batch for `gpus`; `given`: an override says the batch.

    Other degrees than the recipe's change the data-parallel ranks on its own GPUs too; the performance launcher scales
    only a recipe of other GPUs (scripts/performance/run_script.py:91), whose gathers it sets, too.

    Refuses in `draft` what upstream's launcher refuses.
    """
    own = gpus_of(present_name(name), "") if is_benchmark(name) else None
    if own is None or gpus is None or (own.value == gpus.value and (given or launcher.rebuilds)):
        return document
    base, model = recipes()[name], document.data.get("model")
    values = {key: base.get(f"model.{key}") for key in (*_DENSE, *_EXPERT)}
    before, after = _ranks(values, own.value), _ranks(model if isinstance(model, dict) else {}, gpus.value)
    if launcher.rebuilds:
        document = _gathering(document, name, after or 0)
    if given or (before is None and own.value == gpus.value):
        return document  # of the recipe's own GPUs the framework refuses the degrees
    if before is None:
        draft.fail(gpus.where, f"Bridge's launcher starts {name} on no number of GPUs: its own degrees do not divide "
                               f"the {own.value} of its name (scripts/common/benchmark_parallelism.py:89, :107)")
        return document
    batch = base.get(_BATCH)
    if after is None or after == before or not isinstance(batch, int):
        return document
    if batch * after % before:
        draft.fail(gpus.where, f"Weak scaling GBS {batch} from DP {before} to DP {after} does not produce an integer "
                               f"global batch size: give {_BATCH} (scripts/common/benchmark_parallelism.py:140)")
        return document
    return document.with_value(tuple(_BATCH.split(".")), batch * after // before,
                               f"{gpus.where} (a benchmark of batch {batch} on {own.value} GPUs)")


def _gathering(document: Document, name: str, ranks: int) -> Document:
    """The document with the optimizer's gathers as the performance launcher sets them on other GPUs.

    scripts/performance/utils/overrides.py:684 (set_post_overrides). `ranks`: data-parallel ones.
    """
    model, overlap = document.data.get("model"), document.data.get("comm_overlap")
    stages, chunks = (model.get(key) or 1 for key in _STAGES) if isinstance(model, dict) else (1, 1)
    optimizer = document.data.get("optimizer")
    is_muon = isinstance(optimizer, dict) and optimizer.get("optimizer") == "dist_muon"
    if min(ranks, stages, chunks) < 2 or is_muon or any(f"_{kind}_" in name for kind in _UNSOUND):
        return document
    place = f"{document.path}: Bridge's launcher (scripts/performance/utils/overrides.py:687)"
    blocks = ("optimizer", "comm_overlap") if isinstance(overlap, dict) else ("optimizer",)
    return document.with_values(((block, _GATHERS), True, place) for block in blocks)


def _ranks(degrees: Mapping[str, Any], gpus: int) -> int | None:
    """Data-parallel ranks; None if degrees of layers or of experts do not divide the GPUs."""
    dense, expert = 1, 1
    for key in _DENSE:
        dense *= degrees.get(key) or 1
    for key in _EXPERT:
        size = degrees.get(key)
        expert *= (degrees.get(_DENSE[0]) if size is None and key == _EXPERT[0] else size) or 1
    return None if gpus % dense or gpus % expert else gpus // dense
