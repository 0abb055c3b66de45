"""From a scenario to a job: which framework, which model, which mesh; what can be refused early is refused."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem, RankscopeError
from simcore.frameworks.unknown import why_no_framework
from simcore.inputs.scenario import ModelFile, Scenario
from simcore.inputs.training import Imbalance, Quantization
from simcore.models.blocks import Attention, Embedding, LayerKind, Moe, Mtp
from simcore.models.frozen import with_frozen
from simcore.models.graph import ModelGraph, build, model_config
from simcore.models.lora import LoraChoice
from simcore.models.tensor import TensorSpec
from simcore.pipeline.schedule import SCHEDULES
from simcore.placement.framework import Framework
from simcore.placement.job import Job, topology_of
from simcore.placement.mesh import Mesh
from simcore.placement.plan import check_even
from simcore.units import format_bytes

__all__ = ["configuration", "framework_file", "framework_module", "known_frameworks", "prepare"]

IMPLEMENTATIONS = ("automodel", "hf", "hub", "kempnerforge", "llmfoundry", "megatron", "torchtitan")
SERVED_FORMATS = ("auto", "none", "fp32", "bf16", "fp16")
IN_BLOCKS = {("optimizer", "moments"): "int8"}
"""Served with its scales, by the frameworks that say so."""


_MODULES: Final = {
    "automodel": "automodel.table", "ddp": "ddp.table", "fsdp1": "fsdp1.table", "fsdp2": "fsdp2.table",
    "megatron": "megatron.table", "megatron_fsdp": "megatron_fsdp.table",
    "zero1": "deepspeed.zero1", "zero2": "deepspeed.zero2", "zero3": "deepspeed.zero3",
}  # fmt: skip
"""The module of each framework, loaded when a scenario asks for it."""


def known_frameworks() -> tuple[str, ...]:
    """Names that a scenario may give its framework, in alphabetical order."""
    return tuple(sorted(_MODULES))


def framework_module(name: str) -> ModuleType:
    """The module with the table of a known framework."""
    return importlib.import_module(f"simcore.frameworks.{_MODULES[name]}")


def framework_file(name: str) -> str:
    """The file of that module, from the root of the repository."""
    return f"simcore/frameworks/{_MODULES[name].replace('.', '/')}.py"


def prepare(scenario: Scenario) -> tuple[Job, Framework]:
    """The job and its framework's table. Raises InputError, IllegalLayout or NotYet."""
    _refuse_unserved(scenario)
    module = _asked_module(scenario)
    base = _graph(scenario, module)
    graph, unmatched = (base, ()) if scenario.training.method == "full" else _with_adapters(base, scenario, module)
    sizes = scenario.mesh
    etp = sizes.etp if sizes.etp is not None else module.default_etp(sizes) if hasattr(module, "default_etp") else 1
    mesh = Mesh(sizes.pp, sizes.dp_replicate, sizes.dp_shard, sizes.cp, sizes.tp, sizes.ep, etp)
    if mesh.pp > 1 and hasattr(module, "COPIES_TIED_HEAD"):
        graph = _with_copies(_untied(graph) if graph.architecture.tied else graph)
    graph = _with_frozen(graph, scenario, module)
    job = _in_format(Job(scenario, graph, mesh, unmatched_targets=unmatched,
                         casts_parameters=hasattr(module, "CASTS_PARAMETERS")), module)
    graph = job.graph
    _check_routing(job)
    _check_rotation(job)
    _check_positions(job)
    _check_base(job, module)
    _check_host(job)
    framework: Framework = module.table(job)
    check_even(graph, mesh, framework, f"{framework.name}: this cut must be even ({framework.version})")
    return job, framework


def _check_routing(job: Job) -> None:
    """Tokens are routed where there are experts, and each goes to an expert once."""
    routing, where = job.scenario.training.routing, job.scenario.where("training", "routing")
    if isinstance(routing, str):
        return
    if not job.has_experts:
        raise InputError(Problem(where, "a model without experts routes no tokens"))
    if isinstance(routing, Imbalance):
        most = max(branch.block.num_experts / branch.block.top_k for kind in job.graph.kinds for branch in kind.branches
                   if isinstance(branch.block, Moe))
        if routing.imbalance > most:
            raise InputError(Problem(where, f"imbalance: expected at most {most:g}, got {routing.imbalance:g}: a token "
                                     "goes to an expert once, so the fullest has no more than all tokens"))


def _check_rotation(job: Job) -> None:
    """Rotary positions turn dimensions in pairs."""
    mixers = (branch.block for kind in job.graph.kinds for branch in kind.branches)
    for mixer in (mixer for mixer in mixers if isinstance(mixer, Attention) and mixer.rotary):
        if (mixer.rotated or mixer.head_dim) % 2:
            raise InputError(Problem(job.scenario.where("model"), f"head_dim: expected an even number, got "
                                     f"{mixer.head_dim}: RoPE requires an even rotary dimension (transformers 5.23 "
                                     "modeling_rope_utils.py, validate_rope)"))


def _check_positions(job: Job) -> None:
    """A model with learned positions has so many and no more; llm-foundry's says so itself."""
    seq_len = job.scenario.training.seq_len
    if job.graph.implementation == "llmfoundry":
        return
    for kind in job.graph.kinds:
        if isinstance(kind.block, Embedding) and 0 < kind.block.positions < seq_len:
            told = f"expected at most {kind.block.positions}, the positions that the model has learned, got {seq_len}"
            raise InputError(Problem(job.scenario.where("training", "seq_len"), f"seq_len: {told}"))


def _check_base(job: Job, module: ModuleType) -> None:
    """Weights in 4 bits are for qlora, and for frameworks that say so; others may say why they refuse."""
    training, at = job.scenario.training, "training.method"
    if training.method != "qlora":
        if training.quantization != Quantization():
            where = job.scenario.where("training", "quantization")
            raise InputError(Problem(where, f"quantization: changes nothing with method {training.method}"))
        return
    if hasattr(module, "REFUSES_PACKED"):
        raise job.illegal(at, *module.REFUSES_PACKED)
    if not hasattr(module, "PACKS"):
        raise job.not_yet(at, f"qlora under {job.scenario.framework}")


def _in_format(job: Job, module: ModuleType) -> Job:
    """Linears that compute in 8 or 4 bits have weights of their own kind."""
    if not job.narrow:
        return job
    if job.narrow == "fp4" and job.graph.implementation != "megatron":
        raise job.not_yet("training.precision.compute", f"compute in fp4 in the layers of {job.graph.implementation} "
                          "(served: those of Megatron, by TransformerEngine's NVFP4)")
    if not hasattr(module, "in_fp8"):
        raise job.not_yet("training.precision.compute", f"compute in fp8 under {job.scenario.framework}, by "
                          "torchao's Float8Linear (tensorwise) or by a recipe of TransformerEngine")
    return replace(job, graph=module.in_fp8(job))


@lru_cache(maxsize=64)
def _untied(graph: ModelGraph) -> ModelGraph:
    """The head holds a copy of the embedding's weight, which counts where the embedding does."""
    own = graph.with_tensors(lambda _, specs: tuple(replace(spec, tied=False) for spec in specs))
    return replace(own, architecture=replace(own.architecture, tied=False))


@lru_cache(maxsize=64)
def _with_copies(graph: ModelGraph) -> ModelGraph:
    """Multi-token prediction, which is not where the embedding is, holds a copy of it."""
    def change(kind: LayerKind, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        if not isinstance(kind.block, Mtp):
            return specs
        return tuple(replace(spec, tied=False) for spec in specs)

    return graph.with_tensors(change)


def _check_host(job: Job) -> None:
    """Where the host's memory is the device's, what lies on the host lies on the device."""
    topology = topology_of(job.scenario)
    away = [name for name in ("params", "optimizer", "gradients", "activations")
            if job.scenario.training.offload.part(name)[0] == "host"]
    if topology.node.unified is not None and away:
        memory = format_bytes(int(topology.node.host_memory))
        raise job.illegal(f"training.offload.{away[0]}", f"{', '.join(away)} on the host of {topology.device.name}: "
                          f"host and device are the same {memory}, so nothing is gained, and what is used on the "
                          "device is there twice", topology.node.unified)


def _asked_module(scenario: Scenario) -> ModuleType:
    name = scenario.framework
    if name not in known_frameworks():
        why = why_no_framework(name)
        if why is not None:
            raise InputError(Problem(scenario.where("framework"), *why))
        close = difflib.get_close_matches(name, known_frameworks(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        message = f"unknown framework {name!r}: this version has {', '.join(known_frameworks())}{hint}"
        raise InputError(Problem(scenario.where("framework"), message))
    module = framework_module(name)
    if scenario.framework_version not in ("auto", *module.VERSIONS):
        message = f"expected one of {', '.join(module.VERSIONS)}, got {scenario.framework_version!r}"
        raise InputError(Problem(scenario.where("framework_version"), message))
    return module


def _graph(scenario: Scenario, module: ModuleType) -> ModelGraph:
    where, fields = scenario.where("model"), configuration(scenario)
    implementation = scenario.implementation
    if implementation == "auto":
        implementation = module.DEFAULT_IMPLEMENTATION
        if hasattr(module, "implementation_of"):
            implementation = module.implementation_of(str(fields.get("model_type")), scenario.training.method)
    if implementation not in IMPLEMENTATIONS:
        message = f"expected auto or one of {', '.join(IMPLEMENTATIONS)}, got {implementation!r}"
        raise InputError(Problem(scenario.where("implementation"), message))
    if implementation not in module.IMPLEMENTATIONS:
        message = (f"not yet: the layers of {implementation} under {scenario.framework} "
                   f"(served: {', '.join(module.IMPLEMENTATIONS)})")
        raise NotYet(Problem(scenario.where("implementation"), message))
    return build(fields, implementation, where)


def configuration(scenario: Scenario) -> Mapping[str, Any]:
    """Fields of the model that a scenario names: a preset's, or those of a file beside the scenario."""
    reference, overrides = (scenario.model, None) if isinstance(scenario.model, str) else _model_file(scenario.model)
    if reference.endswith(".json") and scenario.folder is not None:
        reference = str(scenario.folder / reference)
    return model_config(reference, overrides, scenario.where("model"))


def _model_file(model: ModelFile) -> tuple[str, dict[str, object]]:
    return model.config, dict(model.overrides)


def _with_adapters(graph: ModelGraph, scenario: Scenario, module: ModuleType) -> tuple[ModelGraph, tuple[str, ...]]:
    """The model with its adapters, and the targets that hit nothing."""
    lora = scenario.training.lora
    targets = () if lora.target_modules == "auto" else tuple(lora.target_modules)
    choice = LoraChoice(lora.rank, targets, tuple(lora.exclude_modules), lora.expert_adapters)
    try:
        adapted = _adapted(graph, choice, module.__name__)
    except RankscopeError as error:  # matchers know no file
        at = scenario.where("training", "lora")
        raise type(error)([replace(p, where=at) if p.where == "training.lora" else p for p in error.problems]) from None
    if not _has_adapters(adapted):
        raise IllegalLayout(Problem(scenario.where("training", "lora"), "no module of the model is matched by "
                                    f"target_modules {', '.join(targets) or 'auto'}",
                                    "PEFT: target modules not found in the base model; no parameters to optimize"))
    unmatched = (t for t in targets if not _has_adapters(_adapted(graph, replace(choice, target_modules=(t,)),
                                                                  module.__name__)))
    return adapted, tuple(unmatched)


def _with_frozen(graph: ModelGraph, scenario: Scenario, module: ModuleType) -> ModelGraph:
    """The model without gradients for what `training.frozen` names."""
    patterns, where = tuple(scenario.training.frozen), scenario.where("training", "frozen")
    if not patterns:
        return graph
    if graph.implementation not in getattr(module, "FREEZES", ()):
        raise NotYet(Problem(where, f"not yet: frozen parameters under {scenario.framework} with the layers of "
                             f"{graph.implementation} (served: fsdp2 with those of hf)"))
    if any(kind.shared for kind in graph.kinds):
        raise NotYet(Problem(where, "not yet: frozen parameters of a model whose layers share some"))
    found, unmatched = with_frozen(graph, patterns)
    if unmatched:
        told = f"frozen: no parameter or module of the model is matched by {', '.join(unmatched)}"
        names = ", ".join(f"{layer.path}.{spec.name}" for layer in found.layers[:2]
                          for spec in found.tensors[layer.kind][:2] if spec.is_owned)
        raise InputError(Problem(where, f"{told}; names are like {names}"))
    if not found.count(trainable=True):
        raise IllegalLayout(Problem(where, "frozen: nothing is left to train",
                                    "torch 2.13 optim/optimizer.py: optimizer got an empty parameter list"))
    return found


def _has_adapters(graph: ModelGraph) -> bool:
    return any(t.module == "adapter" for specs in graph.tensors for t in specs)


@lru_cache(maxsize=64)
def _adapted(graph: ModelGraph, choice: LoraChoice, framework: str) -> ModelGraph:
    adapters = importlib.import_module(framework).adapters

    def change(kind: LayerKind, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return (*(_frozen(t) for t in specs), *adapters(kind, specs, choice))

    return graph.with_tensors(change)


def _frozen(spec: TensorSpec) -> TensorSpec:
    return replace(spec, trainable=False)


def _refuse_unserved(scenario: Scenario) -> None:
    """Blocks that this version does not serve are refused by name, never ignored."""
    training = scenario.training
    unserved = [
        (("training", "pipeline", "schedule"), training.pipeline.schedule not in SCHEDULES,
         f"schedule {training.pipeline.schedule}"),
        (("training", "lora", "dropout"), training.method != "full" and training.lora.dropout > 0, "LoRA dropout"),
        *_unserved_formats(scenario),
    ]
    problems = [Problem(scenario.where(*key), f"not yet: {what} is not modelled in this version")
                for key, refused, what in unserved if refused]
    if problems:
        raise NotYet(problems)


def _unserved_formats(scenario: Scenario) -> list[tuple[tuple[str, ...], bool, str]]:
    """Other formats of 8 bits come with scales, which nothing here counts."""
    training = scenario.training
    precision, optimizer = training.precision, training.optimizer
    formats = {("precision", "params"): precision.params, ("precision", "experts"): precision.experts,
               ("precision", "grad_reduce"): precision.grad_reduce, ("precision", "main_grads"): precision.main_grads,
               ("optimizer", "moments"): optimizer.moments, ("optimizer", "master"): optimizer.master,
               ("lora", "dtype"): training.lora.dtype}
    return [(("training", *key), given not in SERVED_FORMATS, f"{'.'.join(key)} in {given} (a format with scales)")
            for key, given in formats.items() if IN_BLOCKS.get(key) != given]
