"""Changes that Bridge's launchers make to a recipe after it is built: data and their length, optimizer, mapping.

Megatron-Bridge 067f987d scripts/training/run_recipe.py:372 (_apply_benchmark_runtime_defaults) and :396
(_apply_benchmark_dataset_defaults), scripts/performance/run_script.py:149 and utils/overrides.py: Adam in bf16 is the
precision-aware one, and fine-tuning of texts reads mock samples, which are no packs.
scripts/training/recipe_runner.py:430 (sync_offline_packing_alignment) and :471 (sync_model_dataset_sequence_length):
the data set's length becomes the model's and that of offline packs. utils/overrides.py:524: mock samples get the
model's length. training/config.py:1642: both are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.block import shorten
from simcore.inputs.document import Document
from simcore.recipes.bridge.options import PERFORMANCE, UNNAMED, Launcher
from simcore.recipes.imported import Left

__all__ = ["aligned", "changed", "data_owns", "launched", "reads_mock_samples", "without_data"]

_MODEL: Final = "model.seq_length"
_DATA: Final = ("dataset.seq_length", "dataset.sequence_length")
_PACK: Final = "dataset.offline_packing_specs.packed_sequence_size"
_PACKS: Final = "dataset.enable_offline_packing"
_BENCHMARK: Final = re.compile(r"_(?P<task>pretrain|sft|peft)_[1-9][0-9]*gpu_[a-z0-9]+_"
                               r"(?P<precision>bf16|fp8cs|fp8ds|fp8mx|fp8sc|nvfp4)(?:_[a-z0-9_]+)?_config$")
"""Names of benchmarks (scripts/training/recipe_metadata.py, BENCHMARK_RECIPE_PATTERN)."""
_OTHER_STEPS: Final = ("qwen3_vl_", "qwen35_vl_", "wan_", "kimi_k25_vl_")
"""Beginnings of names of benchmarks that train no texts."""
_PRECISE: Final = "optimizer.use_precision_aware_optimizer"
_MAPPING: Final = "dist.use_tp_pp_dp_mapping"
_LOSSES: Final = "rerun_state_machine.check_for_nan_in_loss"
_TOKENS: Final = "model.calculate_per_token_loss"
_AVERAGES: Final = "ddp.average_in_collective"
_REGISTERED: Final = ("env_vars.NCCL_NVLS_ENABLE", "env_vars.NCCL_CTA_POLICY")
_PP: Final = "model.pipeline_model_parallel_size"
_CP: Final = "model.context_parallel_size"
_RUN: Final = "scripts/training/run_recipe.py"
_SCRIPTS: Final = "scripts/performance/"


def reads_mock_samples(name: str, launcher: Launcher = UNNAMED) -> bool:
    """True for a benchmark over texts whose data set the launcher replaces; the performance launcher does it always."""
    found = _BENCHMARK.search(name)
    is_text = found is not None and not name.startswith(_OTHER_STEPS)
    return is_text and (launcher.rebuilds or (found is not None and found["task"] != "pretrain"))


def launched(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a benchmark's recipe as `run_recipe.py` leaves them without overrides."""
    found = dict(values)
    if reads_mock_samples(name):
        found = {key: value for key, value in found.items() if not key.startswith("dataset.")}
        found[_DATA[0]] = values.get(_MODEL, 4096)
    if _is_precise(name, values.get("optimizer.optimizer")):
        found[_PRECISE] = True
    return found


def without_data(overrides: Sequence[tuple[str, Any, str]]) -> tuple[list[tuple[str, Any, str]], list[Left]]:
    """Overrides (key, value, place) without those of the data set that the performance launcher replaces after them.

    A length stays, which `aligned` tells of.
    """
    lost = [one for one in overrides if one[0].startswith("dataset.") and one[0] not in _DATA]
    return [one for one in overrides if one not in lost], [
        Left("no effect", where, key, shorten(value), f"mock samples replace the data set ({PERFORMANCE.mocks_at})")
        for key, value, where in lost]


def changed(document: Document, name: str, launcher: Launcher, given: frozenset[str], *,
            benchmark: bool) -> tuple[Document, list[Left]]:
    """The document as the launcher leaves it after the overrides, and values that it replaces. `given`: their keys."""
    left = list[Left]()
    for key, value, source in _changes(document, name, launcher, given, benchmark=benchmark):
        before, path = document.value(key), tuple(key.split("."))
        if before == value:
            continue
        if before is not None:
            left.append(Left("no effect", document.where(path), key, shorten(before), f"Bridge's launcher sets "
                                                                                      f"{shorten(value)} ({source})"))
        document = document.with_value(path, value, f"{document.path}: Bridge's launcher ({source})")
    return document, left


Change = tuple[str, Any, str]
"""Dotted key, value, and the place in Bridge's sources that sets it."""


def _changes(document: Document, name: str, launcher: Launcher, given: frozenset[str], *,
             benchmark: bool) -> Iterator[Change]:
    by_performance, tuned = launcher.rebuilds, not re.search(r"_pretrain(?:_|$)", name)
    is_given = bool(given & {"optimizer", _PRECISE})
    if (by_performance or (benchmark and not is_given)) and _is_precise(name, document.value("optimizer.optimizer")):
        yield _PRECISE, True, f"{_SCRIPTS}run_script.py:151" if by_performance else f"{_RUN}:393"
    stages, slices = document.value(_PP) or 1, document.value(_CP) or 1
    if by_performance:
        if "_peft_" in name and stages > 1 and not document.value("ddp.use_megatron_fsdp"):
            yield _MAPPING, True, f"{_SCRIPTS}utils/overrides.py:637"
        if document.value("model.cuda_graph_impl") == "full_iteration":
            yield _LOSSES, False, f"{_SCRIPTS}utils/overrides.py:158"
        return
    if document.value("ddp.nccl_ub"):
        for variable in _REGISTERED:
            if document.value(variable) is None:
                yield variable, 1, "scripts/training/recipe_runner.py:310"
    if tuned and slices > 1 and str(document.value("dataset._target_")).endswith("SFTDatasetConfig"):
        yield _TOKENS, True, "scripts/training/recipe_runner.py:368"
        yield _AVERAGES, False, "scripts/training/recipe_runner.py:369"


def _is_precise(name: str, optimizer: Any) -> bool:
    """True for a benchmark in bf16 by Adam."""
    found = _BENCHMARK.search(name)
    return found is not None and found["precision"] == "bf16" and optimizer == "adam"


def aligned(document: Document, launcher: Launcher, given: frozenset[str], *,
            benchmark: bool) -> tuple[Document, list[Left]]:
    """The document with one length, and keys that say another. `given`: keys that the launch itself gives.

    Without a launcher a benchmark is read as its own launcher starts it, unless the length of its data is given; of
    another recipe a model's length that contradicts the data's is an InputError.
    """
    data = next((key for key in _DATA if document.value(key) is not None), None)
    if data is None:
        return document, []
    if not data_owns(launcher, given, benchmark=benchmark):
        if document.value(_MODEL) is None:
            return document, []
        return _with(document, _MODEL, (data,), "benchmarks' launcher gives its mock samples the model's length "
                                                "(scripts/performance/utils/overrides.py:524)")
    own, length = document.value(_MODEL), document.value(data)
    if not launcher.is_named and _MODEL in given and own not in (None, length):
        there = document.where(tuple(data.split(".")))
        raise InputError(Problem(document.where(tuple(_MODEL.split("."))),
                                 f"{_MODEL} {own} contradicts {data} {length} ({there}): the data set owns the length: "
                                 f"give {data}"))
    packs = (_PACK,) if document.value(_PACKS) else ()
    found, left = _with(document, data, (_MODEL, *packs), f"the launcher takes {data} in its place "
                                                          "(scripts/training/recipe_runner.py:430, :471)")
    return found, [one for one in left if one.key in given]


def data_owns(launcher: Launcher, given: frozenset[str], *, benchmark: bool) -> bool:
    """True if the data set's length becomes the model's, False if it is the other way round."""
    return not launcher.rebuilds and (launcher.is_named or not benchmark or bool(given & {*_DATA}))


def _with(document: Document, key: str, others: tuple[str, ...], why: str) -> tuple[Document, list[Left]]:
    """The document with a key's value in other keys too; lists those that had another."""
    value, place, left = document.value(key), document.where(tuple(key.split("."))), list[Left]()
    for other in others:
        before = document.value(other)
        if before is None or before == value:
            continue
        left.append(Left("no effect", document.where(tuple(other.split("."))), other, str(before), why))
        document = document.with_value(tuple(other.split(".")), value, place)
    return document, left
