"""Parameters that a scenario leaves without gradient (`training.frozen`): `requires_grad_(False)` by name.

A pattern is held against the name of each parameter, as the framework has it (`model.layers.3.mlp.up_proj.weight`), and
against the names of the modules that hold it (`model.layers.3`, `model.layers.3.mlp`); `*` stands for anything, dots
too. Where one weight has two names, it has the first: a tied head is the embedding's (torch 2.13
`nn/modules/module.py`, named_parameters: remove_duplicate).
"""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache

from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec

__all__ = ["with_frozen"]


@lru_cache(maxsize=64)
def with_frozen(graph: ModelGraph, patterns: tuple[str, ...]) -> tuple[ModelGraph, tuple[str, ...]]:
    """(model whose parameters that match a pattern have no gradient, patterns that match nothing).

    A pattern is compared with the whole name of a parameter in the model (layer path and all) and with the names of the
    modules around it; `*` stands for any text. What rests has its whole name already. Layers of one kind with different
    frozen tensors become separate kinds, numbered after the others.
    """
    hits = _Hits(patterns)
    kinds, tensors, hit = list(graph.kinds), list(graph.tensors), set[str]()
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    layers = []
    for layer in graph.layers:
        specs = graph.tensors[layer.kind]
        found = {number: hits(spec.name if spec.rests else f"{layer.path}.{spec.name}")
                 for number, spec in enumerate(specs) if spec.is_owned}
        hit.update(*found.values())
        cold = tuple(number for number, by in found.items() if by)
        key = (layer.kind, cold)
        if key not in numbers:
            numbers[key] = layer.kind if not cold else len(kinds)
            if cold:
                kinds.append(graph.kinds[layer.kind])
                tensors.append(_without_gradient(specs, cold))
        layers.append(numbers[key])
    made = graph.with_kinds(kinds, tensors, layers)
    return _with_tied_head(made), tuple(p for p in patterns if p not in hit)


class _Hits:
    """Patterns that are the name of a parameter or of a module around it; each module is looked up once."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.matchers = [(pattern, re.compile(translate(pattern)).match) for pattern in patterns]
        self.known: dict[str, frozenset[str]] = {"": frozenset()}

    def __call__(self, name: str) -> frozenset[str]:
        if name not in self.known:
            own = (pattern for pattern, match in self.matchers if match(name))
            self.known[name] = self(name.rpartition(".")[0]).union(own)
        return self.known[name]


def _without_gradient(specs: tuple[TensorSpec, ...], cold: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    return tuple(replace(spec, trainable=False, frozen=spec.rests) if number in cold else spec
                 for number, spec in enumerate(specs))


def _with_tied_head(graph: ModelGraph) -> ModelGraph:
    """A tied head's weight, and another stage's copy of it, is trained if the embedding's is."""
    same = graph.owners | graph.originals
    cold = {(graph.layers[layer].kind, number) for (layer, number), (owner, its) in same.items()
            if not graph.tensors[graph.layers[owner].kind][its].trainable}
    tensors = [tuple(replace(spec, trainable=spec.trainable and (kind, number) not in cold)
                     for number, spec in enumerate(specs)) for kind, specs in enumerate(graph.tensors)]
    return replace(graph, tensors=tuple(tensors))
