"""Recipes of LLaMA-Factory that do something else than train by next tokens or preferences on transformers' layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["VERSION_1", "is_rewrite", "trains"]

VERSION_1: Final = frozenset({"model_class", "dist_config", "peft_config", "train_dataset", "sample_backend"})
"""Keys of recipes of the rewrite, of which two or more stand beside `model`."""
_STAGES: Final = ("pt", "sft", "dpo", "kto")
_MEGATRON: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
                    "context_parallel_size", "recompute_granularity", "use_distributed_optimizer", "sequence_parallel",
                    "moe_token_dispatcher_type", "moe_grouped_gemm", "virtual_pipeline_model_parallel_size")
_OTHERS: Final = {
    "use_mca": "layers of Megatron (USE_MCA)", "use_megatron_bridge": "layers of Megatron (USE_MEGATRON_BRIDGE)",
    "use_kt": "experts that are computed on the host (KTransformers)",
    "use_hyper_parallel": "HyperParallel", "fp8": "products in 8 bits",
    "fp8_enable_fsdp_float8_all_gather": "products in 8 bits",
}
_TASKS: Final = {"export_dir": "merging and export of a model", "do_predict": "generating answers",
                 "infer_backend": "generating answers"}


def is_rewrite(names: Iterable[str]) -> bool:
    """True for the keys of a recipe of the rewrite."""
    keys = {*names}
    return "model_name_or_path" not in keys and "model" in keys


def trains(reader: Reader, draft: Draft) -> bool:
    """True if the recipe trains in a way that is read; otherwise it is refused by name, with all of its keys."""
    if not _says_train(reader, draft):
        return _end(reader, draft)
    stage = reader.text("stage")
    if stage is not None and stage.value not in _STAGES:
        draft.refuse(stage, f"training by {stage.value}", always=True)
    else:
        draft.use(stage, why="samples and their rows are those of this stage")
    for name, what in _OTHERS.items():
        switch = reader.flag(name)
        if switch is not None and switch.value:
            draft.refuse(switch, what, always=True)
        else:
            draft.idle(switch, "the default")
    megatron = next((name for name in _MEGATRON if reader.has(name)), None)
    if megatron is not None:
        draft.refuse(reader.take(megatron), "layers of Megatron (USE_MCA or USE_MEGATRON_BRIDGE)", always=True)
    return not draft.barred or _end(reader, draft)


def _says_train(reader: Reader, draft: Draft) -> bool:
    switch = reader.flag("do_train")
    if switch is not None and switch.value:
        draft.idle(switch, "it trains")
        return True
    task = next((name for name in _TASKS if reader.has(name)), None)
    if task is not None:
        draft.refuse(reader.take(task), _TASKS[task], always=True)
        draft.use(switch, why="the recipe does not train")
    elif switch is not None:
        draft.refuse(switch, "a recipe that does not train", always=True)
    elif (stage := reader.take("stage")) is not None:
        draft.refuse(stage, "a recipe that does not train: do_train is missing", always=True)
    else:
        draft.fail(draft.path, "not yet: a recipe that does not train: do_train is missing")
    return False


def _end(reader: Reader, draft: Draft) -> bool:
    draft.idle(reader.matching("*"), "of a recipe that is refused")
    return False
