"""The model as a graph: layers in order, their edges, and for each kind of layer its tensors.

Comes in: a preset's name or a Hugging Face `config.json`, and whose code runs. Goes out: `ModelGraph`.
Layers that are alike share one `LayerKind`; everything expensive is done once per kind.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from simcore.errors import InputError, NotYet, Problem
from simcore.inputs.bounds import KINDS, LAYERS
from simcore.inputs.document import read_document
from simcore.models.blocks import Head, LayerKind, Mtp
from simcore.models.config import Architecture, Config
from simcore.models.tensor import TensorSpec

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Layer", "ModelGraph", "architecture_of", "build", "known_presets", "layer_kinds", "model_config"]

FAMILIES = {
    "bamba": "bamba", "deepseek_v2": "deepseek", "deepseek_v3": "deepseek", "gemma2": "gemma",
    "gemma3_text": "gemma", "gpt2": "gpt2", "gpt_oss": "gpt_oss",
    "granitemoehybrid": "granitemoehybrid", "llama": "llama", "mamba2": "mamba2", "mistral": "mistral",
    "mixtral": "mixtral", "mpt": "mpt", "nemotron-nas": "nemotron_nas", "nemotron_h": "nemotron_h", "phi3": "phi3",
    "qwen2": "qwen", "qwen2_moe": "qwen", "qwen3": "qwen", "qwen3_moe": "qwen", "zamba2": "zamba2",
}
"""A configuration's `model_type` -> the file of `simcore/models` that reads it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer or part: where it stands in the chain, its kind's number, and its module path."""

    index: int
    kind: int
    path: str


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """Layers in running order; `tensors[k]` are those of `kinds[k]`."""

    architecture: Architecture
    implementation: str
    kinds: tuple[LayerKind, ...]
    tensors: tuple[tuple[TensorSpec, ...], ...]
    layers: tuple[Layer, ...]

    @cached_property
    def network(self) -> nx.DiGraph[int]:
        """Layers as nodes (with their kind), data flow and tied weights as edges."""
        import networkx as nx

        graph: nx.DiGraph[int] = nx.DiGraph()
        for layer in self.layers:
            graph.add_node(layer.index, kind=self.kinds[layer.kind].name, path=layer.path)
        graph.add_edges_from(((a.index, b.index) for a, b in pairwise(self.layers)), carries="hidden_states")
        if self.architecture.tied:
            graph.add_edge(self.layers[0].index, self.layers[-2].index, carries="tied weight")
        return graph

    def running_order(self) -> tuple[int, ...]:
        """Layer numbers in an order that respects every edge (lexicographic, so it is the only one)."""
        import networkx as nx

        return tuple(nx.lexicographical_topological_sort(self.network))

    @cached_property
    def num_blocks(self) -> int:
        """Layers without the parts around them."""
        return sum(1 for layer in self.layers if self.kinds[layer.kind].block is None)

    @cached_property
    def used_twice(self) -> frozenset[str]:
        """Weights of the model that multi-token prediction uses where they are."""
        return frozenset(spec.name for kind, specs in zip(self.kinds, self.tensors, strict=True)
                         for spec in specs if spec.tied and isinstance(kind.block, Mtp))

    def count(self, component: str | None = None, *, trainable: bool = False) -> int:
        """Parameters of the whole model, by component or in all."""
        per_kind = [sum(t.numel * t.copies for t in specs if t.is_owned
                        and (component is None or t.component == component) and (t.trainable or not trainable))
                    for specs in self.tensors]
        return sum(per_kind[layer.kind] for layer in self.layers)

    def components(self) -> tuple[str, ...]:
        """Components that hold parameters, in order of first appearance."""
        seen = {t.component: None for layer in self.layers[:] for t in self.tensors[layer.kind] if t.is_owned}
        return tuple(seen)

    def with_tensors(self, change: Callable[[LayerKind, tuple[TensorSpec, ...]], tuple[TensorSpec, ...]]) -> ModelGraph:
        """The same graph with each kind's tensors changed (adapters added, weights frozen)."""
        changed = tuple(change(k, specs) for k, specs in zip(self.kinds, self.tensors, strict=True))
        return replace(self, tensors=changed)


@lru_cache(maxsize=1)
def known_presets() -> tuple[str, ...]:
    """Names of the built-in models."""
    folder = resources.files("simcore.models").joinpath("presets")
    return tuple(sorted(p.name.removesuffix(".json") for p in folder.iterdir() if p.name.endswith(".json")))


@lru_cache(maxsize=64)
def _preset(name: str) -> Mapping[str, Any]:
    file = resources.files("simcore.models").joinpath("presets", f"{name}.json")
    fields: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return fields


def model_config(reference: str, overrides: Mapping[str, Any] | None, where: str) -> Mapping[str, Any]:
    """The configuration that a scenario's `model` names: a preset, or the path of a `config.json`.

    InputError where there is none, a key is not known, or, at its line, where the file's `model_type` is not.
    """
    if reference in known_presets():
        fields = dict(_preset(reference))
    elif reference.endswith(".json"):
        document = read_document(reference)
        fields = dict(document.data)
        if "model_type" not in (overrides or {}):
            _check_family(Config(fields, document.where(("model_type",))))
    else:
        raise InputError(Problem(where, _unknown(reference)))
    for key, value in (overrides or {}).items():
        if key not in fields and key not in (*_OPTIONAL_FIELDS, *_further_fields(fields)):
            raise InputError(Problem(where, f"model override {key!r}: the configuration has no such field"))
        fields[key] = value
    return fields


_OPTIONAL_FIELDS = ("num_hidden_layers", "tie_word_embeddings", "head_dim", "chunk_size", "layers_block_type",
                    "layer_types", "mtp_num_layers")


def _further_fields(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What a family reads besides what its shipped configurations say."""
    family = FAMILIES.get(str(fields.get("model_type")))
    module = importlib.import_module(f"simcore.models.families.{family}") if family else None
    found: tuple[str, ...] = getattr(module, "FURTHER_FIELDS", ())
    return found


def _unknown(reference: str) -> str:
    import difflib

    close = difflib.get_close_matches(reference, known_presets(), n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""  # first: the list is long, and long messages are cut
    return f"unknown model {reference!r}{hint}: expected a path to a config.json or one of {', '.join(known_presets())}"


def build(fields: Mapping[str, Any], implementation: str, where: str = "model") -> ModelGraph:
    """The graph of a configuration under an implementation.

    InputError for a family that is not known, NotYet for one that the implementation's layers are not described of.
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
    _check_mtp(config, architecture, operators.tensors)
    kinds = tuple(dict.fromkeys(kind for _, kind in architecture.parts))
    if len(kinds) > KINDS:
        raise config.fail("num_hidden_layers", f"expected at most {KINDS} layers that differ, got {len(kinds):,}")
    number = {kind: i for i, kind in enumerate(kinds)}
    layers = tuple(Layer(i, number[kind], path) for i, (path, kind) in enumerate(architecture.parts))
    tensors = tuple(_tied(architecture, kind, tuple(operators.tensors(kind))) for kind in kinds)
    return ModelGraph(architecture, implementation, kinds, tensors, layers)


def _untied(config: Config, found: Architecture, implementation: str) -> Architecture:
    """A tied head gets a weight of its own where the code that runs gives it one (`UNTIED` of a family)."""
    module = importlib.import_module(f"simcore.models.families.{FAMILIES[_check_family(config)]}")
    source = getattr(module, "UNTIED", {}).get(implementation)
    if not found.tied or source is None:
        return found
    parts = tuple((at, replace(kind, block=replace(kind.block, tied=False)) if isinstance(kind.block, Head) else kind)
                  for at, kind in found.parts)
    told = ("model.tie_word_embeddings", "is ignored: the head has a weight of its own, which is trained", source)
    return replace(found, parts=parts, tied=False, ignored=(*found.ignored, told))


def architecture_of(fields: Mapping[str, Any], where: str = "model") -> Architecture:
    """Layers of a configuration in running order, whoever's code runs them; InputError for an unknown family."""
    return _architecture(Config(fields, where))


def layer_kinds(fields: Mapping[str, Any], where: str = "model") -> tuple[LayerKind, ...]:
    """Kinds of layers of a configuration, whoever's code runs them; InputError for a family that is not known."""
    return tuple(dict.fromkeys(kind for _, kind in architecture_of(fields, where).parts))


def _architecture(config: Config) -> Architecture:
    family = _check_family(config)
    found: Architecture = importlib.import_module(f"simcore.models.families.{FAMILIES[family]}").architecture(config)
    num_layers = sum(kind.block is None for _, kind in found.parts)
    if num_layers > LAYERS:
        raise config.fail("num_hidden_layers", f"expected at most {LAYERS:,} layers, got {num_layers:,}")
    return replace(found, assumed=str(config.fields.get("assumed", "")))


def _check_family(config: Config) -> str:
    family = config.fields.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise config.fail("model_type", f"expected one of {', '.join(FAMILIES)}, got {family!r}")
    return family


def _check_mtp(config: Config, architecture: Architecture, tensors: Callable[[LayerKind], Any]) -> None:
    """Multi-token prediction is asked for only where the family and the implementation build it."""
    wanted = config.integer("mtp_num_layers", default=0, least=0)
    if wanted and not any(isinstance(kind.block, Mtp) for _, kind in architecture.parts):
        raise config.fail("mtp_num_layers", f"multi-token prediction of {architecture.family} is not modelled yet")
    if any(isinstance(kind.block, Mtp) and not tensors(kind) for _, kind in architecture.parts):
        raise config.fail("mtp_num_layers", "this implementation builds no modules of multi-token prediction")


def _tied(architecture: Architecture, kind: LayerKind, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """A tied head owns nothing: its weight is the embedding's."""
    tied = architecture.tied and kind.name == "head"
    return tuple(replace(spec, tied=True) for spec in specs) if tied else specs
