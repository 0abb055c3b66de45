"""Copies of parts of a model that lie beside it: originals of modules that train beside adapters, a reference model.

Modules that train as a whole beside adapters (`training.lora.modules_to_save`) have a copy of each, and its original.

PEFT 0.21.2 `utils/other.py`, ModulesToSaveWrapper: the module is copied, the copy trains and is what runs, the original
stays beside it without a gradient. A head that shares the embedding's weight shares it no more: copies are apart, and
the weight that both had is the original of both, or still the weight of the one that is not copied
(`ensure_weight_tying` is off by default).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from simcore.models.blocks import Embedding, Head, LayerKind
from simcore.models.graph import ModelGraph
from simcore.models.network import untied
from simcore.models.tensor import TensorSpec

__all__ = ["ORIGINAL", "REFERENCE", "SAVED", "with_reference", "with_saved_modules"]

SAVED = {"embed_tokens": Embedding, "lm_head": Head}
"""Names of modules that are served, each with the part of a model that it is."""
REFERENCE = "reference."
"""Beginning of the names of a reference model's parameters."""
_WEIGHT, ORIGINAL = "weight", "original_module.weight"


@lru_cache(maxsize=64)
def with_saved_modules(graph: ModelGraph, names: tuple[str, ...]) -> ModelGraph:
    """Copy of `graph` in which the modules `names` (keys of `SAVED`) train; the rest is as it was."""
    is_tied = graph.has_tied_head
    found = graph.with_network(untied(graph.network)) if is_tied else graph
    keeps = [name for name in names if not is_tied or (len(names) == len(SAVED) and SAVED[name] is Embedding)]
    return found.with_tensors(lambda kind, specs: _copied(kind, specs, names, keeps))


def _copied(kind: LayerKind, specs: tuple[TensorSpec, ...], names: Collection[str],
            keeps: Collection[str]) -> tuple[TensorSpec, ...]:
    """Tensors of a part: its weight trains if it is one of `names`, beside its original if it is one of `keeps`."""
    name = next((name for name in names if isinstance(kind.block, SAVED[name])), "")
    if not name:
        return specs
    weight = next(spec for spec in specs if spec.name == _WEIGHT)
    own = tuple(replace(spec, trainable=not spec.is_buffer) if spec.module != "adapter" else spec for spec in specs)
    return (*own, *[replace(weight, name=ORIGINAL, trainable=False)] * (name in keeps))


@lru_cache(maxsize=64)
def with_reference(graph: ModelGraph) -> ModelGraph:
    """Copy of `graph` with the parameters of a reference model, the model before it was trained, beside its own."""
    return graph.with_tensors(lambda kind, specs: (*specs, *(
        replace(spec, name=f"{REFERENCE}{spec.name}", component="reference", trainable=False)
        for spec in specs if spec.is_owned)))
