"""The model as a graph: a network of layers, what is read from its edges, and for each kind of layer its tensors.

Comes in: a preset's name or a Hugging Face `config.json`, and whose code runs. Goes out: `ModelGraph`.
Layers that are alike share one `LayerKind`; everything expensive is done once per kind.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

from simcore.errors import InputError, NotYet, Problem
from simcore.inputs.bounds import KINDS, LAYERS
from simcore.inputs.document import Document, read_document
from simcore.inputs.file_cache import FileCache
from simcore.models.blocks import Head, LayerKind, Moe, Mtp
from simcore.models.config import QUANTIZED, TEXT_ALONE, Architecture, Config, without_images
from simcore.models.names import fields_of, find, how_to_go_on, known_presets
from simcore.models.network import BORROWED, DATA, Edge, Network, borrowed, connect, edges, renumbered, running_order
from simcore.models.registry import family_of, known_families, known_type
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import VisionPart

__all__ = ["Layer", "ModelGraph", "architecture_of", "assembled", "build", "has_biased_values", "known_presets",
           "layer_kinds", "model_config", "value_heads"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, or one part around the layers (embedding, final norm, head, loss).

    `index`: its place in running order, from 0; `kind`: index of its kind in `ModelGraph.kinds`; `path`: module path.
    """

    index: int
    kind: int
    path: str


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A model under one implementation: its layers, what passes between them, and their tensors, unsplit.

    `kinds`: layers that are alike share one; `tensors[k]` are those of `kinds[k]`. `network`: a node for each layer's
    module path, with the number of its kind, and edges. Properties below are read from it, once a graph, and name
    layers and kinds by their numbers.
    """

    architecture: Architecture
    implementation: str
    kinds: tuple[LayerKind, ...]
    tensors: tuple[tuple[TensorSpec, ...], ...]
    network: Network

    # ---- order --------------------------------------------------------------------------------------------------
    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers and parts around them, in the order in which data reaches them."""
        nodes = self.network.nodes
        return tuple(Layer(index, nodes[path]["kind"], path)
                     for index, path in enumerate(running_order(self.network)))

    @cached_property
    def head(self) -> int:
        """Index of the output projection in `layers`."""
        return next(layer.index for layer in self.layers if isinstance(self.kinds[layer.kind].block, Head))

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """Indices (in `layers`) of the layers proper: no embedding, norm, head, loss or multi-token prediction."""
        return tuple(layer.index for layer in self.layers if self.kinds[layer.kind].block is None)

    def experts_of(self, layer: int) -> Moe | None:
        """Block of experts of a layer, None without."""
        branches = self.kinds[self.layers[layer].kind].branches
        return next((branch.block for branch in branches if isinstance(branch.block, Moe)), None)

    @cached_property
    def num_tower_parts(self) -> int:
        """Number of parts of a vision tower, between the embedding and the first layer; 0 for a model without one."""
        return sum(isinstance(self.kinds[layer.kind].block, VisionPart) for layer in self.layers)

    @property
    def num_blocks(self) -> int:
        """Number of layers without the parts around them (`blocks`)."""
        return len(self.blocks)

    @cached_property
    def branches(self) -> tuple[int, ...]:
        """Indices (in `layers`) of the modules of multi-token prediction, in order; empty without such."""
        flow = {second for _, second in self.ends(Edge.FLOW)}
        return tuple(sorted({second for _, second in self.ends(Edge.BRANCH)} - flow))

    # ---- edges --------------------------------------------------------------------------------------------------
    @cached_property
    def _ends(self) -> dict[Edge, tuple[tuple[int, int], ...]]:
        number = {layer.path: layer.index for layer in self.layers}
        found: dict[Edge, list[tuple[int, int]]] = {kind: [] for kind in Edge}
        for first, second, kind, _ in edges(self.network):
            found[kind].append((number[first], number[second]))
        return {kind: tuple(sorted(ends, key=itemgetter(1, 0))) for kind, ends in found.items()}

    def ends(self, kind: Edge) -> tuple[tuple[int, int], ...]:
        """(first layer, second layer) of each edge of a kind, as indices, sorted by second, then first layer."""
        return self._ends[kind]

    def leads(self, kind: Edge, layer: int) -> bool:
        """True if an edge of that kind ends at the layer with index `layer`."""
        return any(second == layer for _, second in self.ends(kind))

    @cached_property
    def passing(self) -> tuple[int, ...]:
        """For each layer, the number of layers (itself included) whose outputs are needed behind it.

        That many tensors are sent if the pipeline is cut there.
        """
        last: dict[int, int] = {}
        for first, second in (ends for kind in DATA for ends in self.ends(kind)):
            last[first] = max(second, last.get(first, 0))
        return self._spanning(last.items())

    @cached_property
    def cuts(self) -> frozenset[int]:
        """Indices of the layers behind which a pipeline can be cut.

        No residual edge and no shared block spans the border there.
        """
        spanning = self._spanning((*self.ends(Edge.RESIDUAL), *self.ends(Edge.SHARED)))
        return frozenset(layer for layer, count in enumerate(spanning[:-1]) if not count)

    def _spanning(self, spans: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """For each layer, the number of spans over the border behind it."""
        change = [0] * len(self.layers)
        for first, second in spans:
            change[first] += 1
            change[second] -= 1
        return tuple(accumulate(change))

    # ---- weights ------------------------------------------------------------------------------------------------
    @cached_property
    def has_tied_head(self) -> bool:
        """True if the output projection uses the embedding's weight."""
        return self.leads(Edge.TIED, self.head)

    @cached_property
    def tied_kinds(self) -> frozenset[int]:
        """Indices of the kinds of the embedding and of the head that uses its weight; empty without such."""
        return frozenset(self.layers[layer].kind for ends in self.ends(Edge.TIED) if ends[1] == self.head
                         for layer in ends)

    @cached_property
    def used_twice(self) -> frozenset[str]:
        """Names of tensors in modules of multi-token prediction whose storage is the embedding's or the head's."""
        found = {name for _, second, kind, weights in edges(self.network)
                 if kind == Edge.TIED and second != self.layers[self.head].path for _, name in weights}
        return frozenset(found).union(*(_adapters_of_others(specs) for kind, specs in
                                        zip(self.kinds, self.tensors, strict=True) if isinstance(kind.block, Mtp)))

    @cached_property
    def owners(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Owner of each tensor whose storage another layer owns, by that tensor.

        Key and value are (index of the layer, index of its tensor).
        """
        return {user: owner for kind in BORROWED for owner, user in self._pairs(kind)}

    @cached_property
    def copied(self) -> frozenset[tuple[int, int]]:
        """Tensors that several pipeline stages hold copies of, as (index of the layer, index of its tensor)."""
        return frozenset(one for pair in self._pairs(Edge.COPY) for one in pair)

    @cached_property
    def originals(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Tensor that another stage's is a copy of, by the copy; both as in `copied`."""
        return {copy: first for first, copy in self._pairs(Edge.COPY)}

    def _pairs(self, wanted: Edge) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """(owner, user) of each weight, both as (layer, number of the tensor)."""
        number = {layer.path: layer.index for layer in self.layers}
        for first, second, kind, weights in edges(self.network):
            if kind == wanted:
                yield from ((self._tensor(number[first], own), self._tensor(number[second], name))
                            for own, name in weights)

    def _tensor(self, layer: int, name: str) -> tuple[int, int]:
        names = [spec.name for spec in self.tensors[self.layers[layer].kind]]
        return layer, names.index(name)

    def count(self, component: str | None = None, *, trainable: bool = False) -> int:
        """Number of parameters (elements) of the whole model, tied ones once, copies (`Edge.COPY`) each.

        `component`: only those of one component, None for all. `trainable`: True for only those with a gradient.
        """
        per_kind = [sum(t.numel * t.copies for t in specs if t.is_owned
                        and (component is None or t.component == component) and (t.trainable or not trainable))
                    for specs in self.tensors]
        return sum(per_kind[layer.kind] for layer in self.layers)

    # ---- changed graphs -----------------------------------------------------------------------------------------
    def with_tensors(self, change: Callable[[LayerKind, tuple[TensorSpec, ...]], tuple[TensorSpec, ...]]) -> ModelGraph:
        """Copy of the graph whose tensors are `change(kind, tensors)` for each kind of layer.

        Adapters are added and weights frozen in this way.
        """
        changed = tuple(change(k, specs) for k, specs in zip(self.kinds, self.tensors, strict=True))
        return replace(self, tensors=changed)

    def with_kinds(self, kinds: Sequence[LayerKind], tensors: Sequence[tuple[TensorSpec, ...]],
                   numbers: Sequence[int]) -> ModelGraph:
        """Copy of the graph with the same layers and edges, but other kinds of layers and tensors of these.

        `numbers`: index of each layer's kind in `kinds`, in running order.
        """
        of_path = {layer.path: number for layer, number in zip(self.layers, numbers, strict=True)}
        return replace(self, kinds=tuple(kinds), tensors=tuple(tensors), network=renumbered(self.network, of_path))

    def with_network(self, network: Network) -> ModelGraph:
        """Copy of the graph with the same layers under other edges, which decide what weights each layer owns.

        Layers of one kind that own different weights become separate kinds. Kinds are numbered in running order.
        """
        kinds: list[LayerKind] = []
        tensors: list[tuple[TensorSpec, ...]] = []
        known: dict[tuple[int, frozenset[str]], int] = {}
        numbers: dict[str, int] = {}
        for path in running_order(network):
            kind, names = network.nodes[path]["kind"], borrowed(network, path)
            if (kind, names) not in known:
                known[kind, names] = len(kinds)
                kinds.append(self.kinds[kind])
                tensors.append(tuple(replace(spec, tied=spec.name in names) for spec in self.tensors[kind]))
            numbers[path] = known[kind, names]
        return replace(self, kinds=tuple(kinds), tensors=tuple(tensors), network=renumbered(network, numbers))


def _adapters_of_others(specs: Sequence[TensorSpec]) -> frozenset[str]:
    return frozenset(spec.name for spec in specs if spec.tied and spec.module == "adapter")


_document: FileCache[Document] = FileCache(lambda path: (read_document(path), ()))
"""Parsed `config.json` files of users: advice and searches read one hundreds of times."""


def model_config(reference: str, overrides: Mapping[str, Any] | None, where: str) -> Mapping[str, Any]:
    """Fields of the configuration named `reference`: a preset by any of its names, or the path of a `config.json`.

    `overrides`: fields that get another value. InputError, with place `where`, if there is no such model, or for a
    field that is neither in the configuration nor one of the few that may be left out; at its line of the file for an
    unknown `model_type`.
    """
    if reference in known_presets():
        fields = dict(fields_of(reference))
    elif (named := find(reference)) is not None:
        fields = {**fields_of(named.preset), **named.changed}
    elif reference.endswith(".json"):
        document = replace(_document(Path(reference)), path=reference)
        fields = dict(document.data)
        if "model_type" not in (overrides or {}):
            _check_family(Config(fields, document.where(("model_type",))))
    else:
        raise InputError(Problem(where, how_to_go_on(reference)))
    for key, value in (overrides or {}).items():
        if key not in fields and key not in (*_OPTIONAL_FIELDS, *_further_fields(fields)):
            raise InputError(Problem(where, f"model override {key!r}: the configuration has no such field"))
        fields[key] = value
    return fields


_OPTIONAL_FIELDS = ("num_hidden_layers", "tie_word_embeddings", "head_dim", "chunk_size", "layers_block_type",
                    "layer_types", "mtp_num_layers", QUANTIZED)


def _further_fields(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of fields that a family reads, but that its shipped configurations leave out."""
    family = known_type(str(fields.get("model_type")))
    return family_of(family).further_fields if family in known_families() else ()


def build(fields: Mapping[str, Any], implementation: str, where: str = "model") -> ModelGraph:
    """Graph of the model with the configuration `fields` under an implementation, such as "hf".

    InputError for an unknown family or values that are not modelled, NotYet for what this implementation does not have;
    `where`: the place they name.
    """
    key = json.dumps(fields, sort_keys=True, default=str)
    try:
        return _build(key, implementation)
    except (InputError, NotYet) as error:
        raise type(error)(Problem(where, problem.message) for problem in error.problems) from None


@lru_cache(maxsize=64)
def _build(key: str, implementation: str) -> ModelGraph:
    config = Config(json.loads(key), "model")
    architecture = _untied(config, _architecture(config), implementation)
    operators = importlib.import_module(f"simcore.operators.{implementation}.implementation")
    if architecture.has_tower and not operators.IMPLEMENTATION.builds_towers:
        raise NotYet(Problem("model", f"not yet: the vision tower of {architecture.family} in the layers of "
                             f"{implementation} (served: those of hf)"))
    _check_mtp(config, architecture, operators.tensors)
    count = len(dict.fromkeys(kind for _, kind in architecture.parts))
    if count > KINDS:
        raise config.fail("num_hidden_layers", f"expected at most {KINDS} layers that differ, got {count:,}")
    return assembled(architecture, implementation)


def value_heads(implementation: str) -> tuple[str, ...]:
    """Families that an implementation has with a value head."""
    found: tuple[str, ...] = importlib.import_module(
        f"simcore.operators.{implementation}.implementation").IMPLEMENTATION.value_heads
    return found


def has_biased_values(implementation: str) -> bool:
    """True if the value head of an implementation has a bias."""
    found: bool = importlib.import_module(
        f"simcore.operators.{implementation}.implementation").IMPLEMENTATION.biased_values
    return found


def assembled(architecture: Architecture, implementation: str) -> ModelGraph:
    """Graph of an architecture's parts under an implementation; NotYet for parts that it does not have."""
    operators = importlib.import_module(f"simcore.operators.{implementation}.implementation")
    kinds = tuple(dict.fromkeys(kind for _, kind in architecture.parts))
    tensors = {kind: tuple(operators.tensors(kind)) for kind in kinds}
    tensors[kinds[0]] += tuple(replace(spec, name=f"{path}.{spec.name}", trainable=False, rests=True)
                               for path, kind in architecture.resting for spec in operators.tensors(kind))
    network = connect(architecture.parts, tensors, predicts_last=operators.IMPLEMENTATION.predicts_last)
    return ModelGraph(architecture, implementation, kinds, tuple(tensors.values()), network).with_network(network)


def _untied(config: Config, found: Architecture, implementation: str) -> Architecture:
    """A tied head gets a weight of its own where the code that runs gives it one (`ModelFamily.untied`)."""
    source = family_of(_check_family(config)).untied.get(implementation)
    if not found.tied or source is None:
        return found
    parts = tuple((at, replace(kind, block=replace(kind.block, tied=False)) if isinstance(kind.block, Head) else kind)
                  for at, kind in found.parts)
    told = ("model.tie_word_embeddings", "is ignored: the head has a weight of its own, which is trained", source)
    return replace(found, parts=parts, tied=False, ignored=(*found.ignored, told))


def architecture_of(fields: Mapping[str, Any], where: str = "model") -> Architecture:
    """Architecture of a configuration, with its layers in running order, the same under every implementation.

    InputError, with place `where`, for an unknown family or values that are not modelled.
    """
    return _architecture(Config(fields, where))


def layer_kinds(fields: Mapping[str, Any], where: str = "model") -> tuple[LayerKind, ...]:
    """Distinct kinds of layers of a configuration, in the order in which they first run.

    They are the same under every implementation. InputError, with place `where`, for an unknown family or values that
    are not modelled.
    """
    return tuple(dict.fromkeys(kind for _, kind in architecture_of(fields, where).parts))


def _architecture(config: Config) -> Architecture:
    found = family_of(_check_family(config)).architecture(config)
    found = without_images(found) if config.fields.get(TEXT_ALONE) is True else found
    num_layers = sum(kind.block is None for _, kind in found.parts)
    if num_layers > LAYERS:
        raise config.fail("num_hidden_layers", f"expected at most {LAYERS:,} layers, got {num_layers:,}")
    return replace(found, assumed=str(config.fields.get("assumed", "")))


def _check_family(config: Config) -> str:
    family = config.fields.get("model_type")
    if not isinstance(family, str) or known_type(family) not in known_families():
        raise config.fail("model_type", f"expected one of {', '.join(known_families())}, got {family!r}")
    return known_type(family)


def _check_mtp(config: Config, architecture: Architecture, tensors: Callable[[LayerKind], Any]) -> None:
    """Multi-token prediction is asked for only where the family and the implementation build it."""
    wanted = config.integer("mtp_num_layers", default=0, least=0)
    tensors(architecture.parts[0][1])  # a family that the implementation lacks is refused as such
    if wanted and not any(isinstance(kind.block, Mtp) for _, kind in architecture.parts):
        raise config.fail("mtp_num_layers", f"multi-token prediction of {architecture.family} is not modelled yet")
    if any(isinstance(kind.block, Mtp) and not tensors(kind) for _, kind in architecture.parts):
        raise config.fail("mtp_num_layers", "this implementation builds no modules of multi-token prediction")
