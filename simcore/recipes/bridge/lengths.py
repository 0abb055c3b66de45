"""Length of a sequence in a launch by name: that of the data set, or of the model, as the launcher aligns them.

Megatron-Bridge 067f987d scripts/training/recipe_runner.py:430 (sync_offline_packing_alignment) and :471
(sync_model_dataset_sequence_length): the data set's length becomes the model's and that of offline packs.
scripts/performance/utils/overrides.py:524: mock samples get the model's length. training/config.py:1642: both are
equal.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.recipes.bridge.options import Launcher
from simcore.recipes.imported import Left

__all__ = ["aligned", "data_owns"]

_MODEL: Final = "model.seq_length"
_DATA: Final = ("dataset.seq_length", "dataset.sequence_length")
_PACK: Final = "dataset.offline_packing_specs.packed_sequence_size"
_PACKS: Final = "dataset.enable_offline_packing"


def aligned(document: Document, launcher: Launcher, given: frozenset[str], *,
            benchmark: bool) -> tuple[Document, list[Left]]:
    """The document with one length, and keys that say another. `given`: keys that the launch itself gives.

    Without a launcher a benchmark is read as its own launcher starts it, unless the length of its data is given; of
    another recipe a model's length that contradicts the data's is an InputError.
    """
    data = next((key for key in _DATA if _value(document, key) is not None), None)
    if data is None:
        return document, []
    if not data_owns(launcher, given, benchmark=benchmark):
        if _value(document, _MODEL) is None:
            return document, []
        return _with(document, _MODEL, (data,), "benchmarks' launcher gives its mock samples the model's length "
                                                "(scripts/performance/utils/overrides.py:524)")
    own, length = _value(document, _MODEL), _value(document, data)
    if not launcher and _MODEL in given and own not in (None, length):
        there = document.where(tuple(data.split(".")))
        raise InputError(Problem(document.where(tuple(_MODEL.split("."))),
                                 f"{_MODEL} {own} contradicts {data} {length} ({there}): the data set owns the length: "
                                 f"give {data}"))
    packs = (_PACK,) if _value(document, _PACKS) else ()
    found, left = _with(document, data, (_MODEL, *packs), f"the launcher takes {data} in its place "
                                                          "(scripts/training/recipe_runner.py:430, :471)")
    return found, [one for one in left if one.key in given]


def data_owns(launcher: Launcher, given: frozenset[str], *, benchmark: bool) -> bool:
    """True if the data set's length becomes the model's, False if it is the other way round."""
    return launcher != "performance" and (bool(launcher) or not benchmark or bool(given & {*_DATA}))


def _with(document: Document, key: str, others: tuple[str, ...], why: str) -> tuple[Document, list[Left]]:
    """The document with a key's value in other keys too; lists those that had another."""
    value, place, left = _value(document, key), document.where(tuple(key.split("."))), list[Left]()
    for other in others:
        before = _value(document, other)
        if before is None or before == value:
            continue
        left.append(Left("no effect", document.where(tuple(other.split("."))), other, str(before), why))
        document = document.with_value(tuple(other.split(".")), value, place)
    return document, left


def _value(document: Document, key: str) -> Any:
    found: Any = document.data
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
