"""The model with the adapters that a scenario asks for: the framework's own matcher says which modules get one.

[Note: a pattern of PEFT]
PEFT 0.21.2 `tuners/tuners_utils.py`, check_target_module_exists: where `target_modules` is a text, the whole name of a
module, as `named_modules` has it (`model.language_model.layers.3.self_attn.q_proj`), must match it (re.fullmatch);
where it is a list, a name must end with one of it. Layers of one kind with other adapters become separate kinds.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from simcore.errors import IllegalLayout, InputError, NotYet, Problem, RankscopeError
from simcore.frameworks.adapter import FrameworkAdapter, LoraChoice
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import LayerKind
from simcore.models.graph import ModelGraph
from simcore.models.saved import SAVED, with_saved_modules
from simcore.models.tensor import TensorSpec

__all__ = ["NOTHING_ADAPTED", "with_adapters"]

NOTHING_ADAPTED = "the base is frozen: without an adapter no parameter is trained"
"""Rule that adapters without a single module break."""
_AT = "training.lora"


def with_adapters(graph: ModelGraph, scenario: Scenario,
                  adapter: FrameworkAdapter) -> tuple[ModelGraph, tuple[str, ...]]:
    """(the model with the adapters that a scenario asks for, the targets that hit nothing).

    Raises IllegalLayout if nothing is hit; what the framework's matcher raises has the scenario's place.
    """
    lora = scenario.training.lora
    pattern = lora.target_modules if isinstance(lora.target_modules, str) and lora.target_modules != "auto" else ""
    targets = () if isinstance(lora.target_modules, str) else tuple(lora.target_modules)
    choice = LoraChoice(lora.rank, targets, tuple(lora.exclude_modules), lora.expert_adapters,
                        scenario.framework_version, lora.use_dora, graph.implementation,
                        moe_rank_scaling=scenario.framework_options.get("moe_rank_scaling") is True)
    try:
        adapted = _by_pattern(graph, choice, adapter, pattern) if pattern else _adapted(graph, choice, adapter)
    except RankscopeError as error:  # matchers know no file
        at = scenario.where("training", "lora")
        raise type(error)([replace(p, where=at) if p.where == "training.lora" else p for p in error.problems]) from None
    if not _has_adapters(adapted):
        raise IllegalLayout(Problem(scenario.where("training", "lora", "target_modules"), "no module of the model is "
                                    f"matched by target_modules {pattern or ', '.join(targets) or 'auto'}"
                                    f"{_way_out(graph, choice, adapter)}", NOTHING_ADAPTED))
    adapted = _with_saved(adapted, scenario, adapter)
    unmatched = (t for t in targets if not _has_adapters(_adapted(graph, replace(choice, target_modules=(t,)),
                                                                  adapter)))
    return adapted, tuple(unmatched)


def _with_saved(graph: ModelGraph, scenario: Scenario, adapter: FrameworkAdapter) -> ModelGraph:
    """The model with copies of what `training.lora.modules_to_save` names."""
    names, where = tuple(scenario.training.lora.modules_to_save), scenario.where("training", "lora", "modules_to_save")
    if not names:
        return graph
    if graph.implementation not in adapter.saves_modules:
        raise NotYet(Problem(where, f"not yet: modules that train beside adapters under {scenario.framework} with the "
                             f"layers of {graph.implementation} (served: ddp with those of hf)"))
    if other := [name for name in names if name not in SAVED]:
        raise NotYet(Problem(where, f"not yet: {other[0]} that trains beside adapters (served: {', '.join(SAVED)})"))
    return with_saved_modules(graph, tuple(dict.fromkeys(names)))


def _way_out(graph: ModelGraph, choice: LoraChoice, adapter: FrameworkAdapter) -> str:
    """Patterns of the same names where those match something, else the names of the model's linears."""
    wild = tuple(f"*{target}" for target in choice.target_modules if "*" not in target)
    if wild and _has_adapters(_adapted(graph, replace(choice, target_modules=wild), adapter)):
        return (f": {', '.join(map(repr, wild))} {'are' if len(wild) > 1 else 'is'}, since a target is compared with "
                "the whole path of a module")
    names = dict.fromkeys(spec.path.rpartition(".")[2] for specs in graph.tensors for spec in specs
                          if spec.module == "linear" and spec.path)
    return f": its modules are {', '.join(list(names)[:8])}" if names else ""


def _has_adapters(graph: ModelGraph) -> bool:
    return any(t.module == "adapter" for specs in graph.tensors for t in specs)


@lru_cache(maxsize=64)
def _adapted(graph: ModelGraph, choice: LoraChoice, adapter: FrameworkAdapter) -> ModelGraph:
    def change(kind: LayerKind, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return (*(_frozen(t) for t in specs), *adapter.lora_tensors(kind, specs, choice))

    return graph.with_tensors(change)


def _frozen(spec: TensorSpec) -> TensorSpec:
    return replace(spec, trainable=False)

@lru_cache(maxsize=64)
def _by_pattern(graph: ModelGraph, choice: LoraChoice, adapter: FrameworkAdapter, pattern: str) -> ModelGraph:
    """The model with adapters of the modules whose whole names match, see [Note: a pattern of PEFT]."""
    if not adapter.takes_pattern:
        raise NotYet(Problem(_AT, "not yet: target_modules as one text under another matcher than PEFT's (it takes a "
                             "list)"))
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise InputError(Problem(_AT, f"target_modules: expected a regular expression, got {pattern!r}: {error}")
                         ) from None
    kinds, tensors, numbers = list(graph.kinds), list(graph.tensors), dict[tuple[int, tuple[str, ...]], int]()
    seen, layers = set[int](), list[int]()
    for layer in graph.layers:
        specs, kind = graph.tensors[layer.kind], graph.kinds[layer.kind]
        names = {spec.path: spec.path if spec.rests else f"{layer.path}.{spec.path}" for spec in specs
                 if not spec.is_buffer}  # what rests has its whole name already
        hit = tuple(name for name, whole in names.items() if matches(whole.strip(".")))
        if (key := (layer.kind, hit)) not in numbers:
            made = _with_hits(kind, specs, replace(choice, target_modules=hit or ("-",), is_exact=True), adapter)
            numbers[key] = len(kinds) if layer.kind in seen else layer.kind
            if layer.kind in seen:
                kinds.append(kind)
                tensors.append(made)
            tensors[numbers[key]] = made
            seen.add(layer.kind)
        layers.append(numbers[key])
    return graph.with_kinds(kinds, tensors, layers)


def _with_hits(kind: LayerKind, specs: tuple[TensorSpec, ...], choice: LoraChoice,
               adapter: FrameworkAdapter) -> tuple[TensorSpec, ...]:
    """Tensors of a kind of layer with adapters of the modules that `choice` names; all others are frozen."""
    frozen = tuple(_frozen(spec) for spec in specs)
    for spec in specs:
        is_linear = spec.module == "linear" or spec.component == "lm_head"
        if spec.path in choice.target_modules and not is_linear and len(spec.shape) > 1:
            raise NotYet(Problem(_AT, f"not yet: an adapter of {spec.path or spec.name}, which is no linear layer"))
    return (*frozen, *adapter.lora_tensors(kind, specs, choice))
