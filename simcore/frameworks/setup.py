"""From a scenario to a job: which framework, which model, which mesh; what can be refused early is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.adapted import with_adapters
from simcore.frameworks.adapter import FrameworkAdapter
from simcore.frameworks.images import check_images, freezes_tower_alone, with_image_sides, with_text_model
from simcore.frameworks.registry import asked_adapter
from simcore.frameworks.scored_tokens import check_scored
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Imbalance, Quantization
from simcore.models.blocks import Attention, Embedding, Moe
from simcore.models.config import quantization_of
from simcore.models.frozen import with_frozen
from simcore.models.graph import ModelGraph, build, model_config
from simcore.models.network import with_copies
from simcore.models.registry import code_type
from simcore.models.saved import with_reference
from simcore.models.value_head import with_value_head
from simcore.operators.registry import IMPLEMENTATIONS, implementation_of
from simcore.pipeline.schedule import SCHEDULES
from simcore.placement.framework import Framework
from simcore.placement.job import Defaults, Job, topology_of
from simcore.placement.mesh import Mesh
from simcore.placement.plan import check_even
from simcore.recording.layer import REFERENCED, REWARDS
from simcore.units import format_bytes

__all__ = ["configuration", "prepare"]

SERVED_FORMATS = ("auto", "none", "fp32", "bf16", "fp16")
IN_BLOCKS = {("optimizer", "moments"): ("int8", "int4")}
"""Served with its scales, by the frameworks that say so."""


def prepare(scenario: Scenario) -> tuple[Job, Framework]:
    """Returns the scenario as a job (with model graph and mesh), and its framework's table.

    Raises InputError for a wrong scenario, IllegalLayout for one that the framework refuses, NotYet for one that
    rankscope does not model.
    """
    _refuse_unserved(scenario)
    adapter = asked_adapter(scenario)
    base = _graph(scenario, adapter)
    whole = scenario.training.method == "full" or base.implementation in adapter.unadapted
    graph, unmatched = (base, ()) if whole else with_adapters(base, scenario, adapter)
    sizes = scenario.mesh
    etp = adapter.default_etp(sizes) if sizes.etp is None else sizes.etp
    mesh = Mesh(sizes.pp, sizes.dp_replicate, sizes.dp_shard, sizes.cp, sizes.tp, sizes.ep, etp)
    if mesh.pp > 1 and adapter.copies_tied_head:
        graph = _with_copies(graph)
    graph = _with_frozen(graph, scenario, adapter)
    if scenario.training.method == "full" and scenario.training.loss in REFERENCED:
        graph = with_reference(graph)
    job, defaults = _in_format(Job(scenario, graph, mesh, unmatched, adapter.casts_parameters), adapter)
    graph = job.graph
    _check_routing(job)
    _check_experts(job)
    _check_rotation(job)
    _check_positions(job)
    _check_base(job, adapter)
    _check_logprobs(job, adapter)
    _check_teacher(job)
    check_scored(job)
    try:
        check_images(job, adapter)
        _check_host(job)
        framework = adapter.table(job, defaults)
    except NotYet as error:
        raise with_text_model(error, job) from None
    check_even(graph, mesh, framework, f"{framework.name}: this cut must be even ({framework.version})")
    return job, framework


def _check_routing(job: Job) -> None:
    """Tokens are routed where there are experts, each goes to an expert once, and ranks' loads differ where they share.

    A factor is of the fullest of `ep` ranks, which has at most what all of them send.
    """
    routing, where, ep = job.scenario.training.routing, job.scenario.where("training", "routing"), job.mesh.ep
    if isinstance(routing, str):
        return
    if not job.has_experts:
        raise InputError(Problem(where, "a model without experts routes no tokens"))
    if not isinstance(routing, Imbalance):
        return
    most = max(branch.block.num_experts / branch.block.top_k for kind in job.graph.kinds for branch in kind.branches
               if isinstance(branch.block, Moe))
    if routing.imbalance > most:
        raise InputError(Problem(where, f"imbalance: expected at most {most:g}, got {routing.imbalance:g}: a token "
                                 "goes to an expert once, so the fullest has no more than all tokens"))
    if routing.imbalance > ep and not implementation_of(job.graph.implementation).follows_fullest_expert:
        told = (f"expected at most {ep} (mesh.ep), got {routing.imbalance:g}: the fullest of {ep} ranks has no more "
                "than all of them send" if ep > 1 else "changes nothing where each rank has all experts (mesh.ep: 1), "
                "and so gets all of its own tokens")
        raise InputError(Problem(where, f"imbalance: {told}"))


def _check_experts(job: Job) -> None:
    """Raises InputError for settings of experts in a model that has none, or that are stored as all else is."""
    training, where = job.scenario.training, job.scenario.where
    own, adapted = training.precision.experts != "auto", training.lora.expert_adapters not in ("auto", "none")
    if adapted and training.method != "full" and not job.has_experts:
        raise InputError(Problem(where("training", "lora", "expert_adapters"), "expert_adapters: changes nothing in a "
                                 "model without experts"))
    if own and (job.mesh.ep == 1 or not job.has_experts):
        raise InputError(Problem(where("training", "precision", "experts"), "experts: changes nothing where no experts "
                                 "are stored apart from all else (mesh.ep: 1)"))


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


def _check_base(job: Job, adapter: FrameworkAdapter) -> None:
    """Weights in 4 bits are for qlora, and for frameworks that say so; others may say why they refuse."""
    training, at = job.scenario.training, "training.method"
    if training.method != "qlora":
        if training.quantization != Quantization():
            where = job.scenario.where("training", "quantization")
            raise InputError(Problem(where, f"quantization: changes nothing with method {training.method}"))
        return
    if adapter.qlora_refusal is not None:
        raise job.illegal(at, *adapter.qlora_refusal)
    if not adapter.serves_qlora:
        raise job.not_yet(at, f"qlora under {job.scenario.framework}")


def _check_logprobs(job: Job, adapter: FrameworkAdapter) -> None:
    """A training step alone has log-probabilities in chunks only as the loss of NeMo RL's Megatron workers."""
    key, scenario = "training.logprob_chunk_size", job.scenario
    if scenario.training.logprob_chunk_size is not None and scenario.workload == "train" and not adapter.chunks_loss:
        raise job.illegal(key, f"no loss of a training step under {scenario.framework} is made in chunks (that of NeMo "
                          "RL's Megatron workers is, and passes of grpo and dpo)", "NeMo RL 7ea279ab models/automodel/"
                          "train.py LossPostProcessor: prepare_loss_input is given no chunk_size")


def _check_teacher(job: Job) -> None:
    """A student's loss reads what its teacher gives, and nothing else reads a teacher."""
    scenario = job.scenario
    if scenario.training.loss == "top_k" and scenario.teacher is None:
        raise InputError(Problem(scenario.where("training", "loss"), "loss: top_k is of a student: missing the block "
                                 "teacher"))
    if scenario.teacher is not None and scenario.training.loss != "top_k" and scenario.workload != "distillation":
        raise InputError(Problem(scenario.where("teacher"), "teacher: changes nothing but in the workload "
                                 "distillation"))


def _in_format(job: Job, adapter: FrameworkAdapter) -> tuple[Job, Defaults]:
    """Linears that compute in 8 or 4 bits have weights of another kind; with the defaults that were chosen for them."""
    if not job.narrow:
        return job, ()
    if job.narrow == "fp4" and job.graph.implementation != "megatron":
        raise job.not_yet("training.precision.compute", f"compute in fp4 in the layers of {job.graph.implementation} "
                          "(served: those of Megatron, by TransformerEngine's NVFP4)")
    graph, defaults = adapter.in_low_precision(job)
    return replace(job, graph=graph), defaults


@lru_cache(maxsize=64)
def _with_copies(graph: ModelGraph) -> ModelGraph:
    """The model on stages: head and multi-token prediction, which are not where the embedding is, hold copies of it."""
    return graph.with_network(with_copies(graph.network))


def _check_host(job: Job) -> None:
    """Raises IllegalLayout for offload to the host where host and device share one memory."""
    away = [name for name in ("params", "optimizer", "gradients", "activations")
            if job.scenario.training.offload.part(name)[0] == "host"]
    topology = topology_of(job.scenario) if away else None
    if topology is not None and topology.node.unified is not None:
        memory = format_bytes(int(topology.node.host_memory))
        raise job.illegal(f"training.offload.{away[0]}", f"{', '.join(away)} on the host of {topology.device.name}: "
                          f"host and device are the same {memory}, so nothing is gained, and what is used on the "
                          "device is there twice", topology.node.unified)


def _graph(scenario: Scenario, adapter: FrameworkAdapter) -> ModelGraph:
    where, fields = scenario.where("model"), with_image_sides(configuration(scenario), scenario)
    _check_weights(fields, where)
    implementation = scenario.implementation
    if implementation == "auto":
        implementation = adapter.implementation_of(code_type(fields), scenario.training.method)
    if implementation not in IMPLEMENTATIONS:
        message = f"expected auto or one of {', '.join(IMPLEMENTATIONS)}, got {implementation!r}"
        raise InputError(Problem(scenario.where("implementation"), message))
    if implementation not in adapter.implementations:
        message = (f"not yet: the layers of {implementation} under {scenario.framework} "
                   f"(served: {', '.join(adapter.implementations)})")
        raise NotYet(Problem(scenario.where("implementation"), message))
    try:
        graph = build(fields, implementation, where)
    except (InputError, NotYet) as error:
        raise type(error)([replace(one, where=_place(scenario, one)) for one in error.problems]) from None
    return _with_value_head(graph, scenario) if scenario.training.loss in ("values", REWARDS) else graph


def _with_value_head(graph: ModelGraph, scenario: Scenario) -> ModelGraph:
    """The model that the loss `values` trains; errors are placed at the scenario's loss."""
    try:
        return with_value_head(graph, of_sequences=scenario.training.loss == REWARDS)
    except (InputError, NotYet) as error:
        where = scenario.where("training", "loss")
        raise type(error)([replace(one, where=where) for one in error.problems]) from None


def _place(scenario: Scenario, problem: Problem) -> str:
    """Place of the field that a problem of the configuration names, where the scenario overrides it; else its own."""
    fields = () if isinstance(scenario.model, str) else scenario.model.overrides
    named = next((one for one in fields if problem.message.startswith(f"model configuration: {one}: ")), None)
    return problem.where if named is None else scenario.where("model", "overrides", named)


def _check_weights(fields: Mapping[str, Any], where: str) -> None:
    """NotYet for a checkpoint whose weights are quantised: what is loaded and trained then is the library's choice.

    transformers 5.23 `quantizers/auto.py` has a quantizer for each quant_method: some make weights whole again, others
    train adapters beside them.
    """
    found = quantization_of(fields, where)
    if found is not None:
        raise NotYet(Problem(where, f"model configuration: not yet: training from weights that are quantised "
                             f"(quantization_config, {found.get('quant_method', 'no quant_method')}); take the "
                             "configuration of the 16 bits, with training.method: qlora for a frozen base in few bits"))


def configuration(scenario: Scenario) -> Mapping[str, Any]:
    """Returns the configuration fields of the model that a scenario names: name -> value, as in a config.json.

    They are those of a shipped preset, or of a file in the scenario's folder, with the scenario's overrides.
    """
    reference = scenario.model_name
    overrides = None if isinstance(scenario.model, str) else dict(scenario.model.overrides)
    if reference.endswith(".json") and scenario.folder is not None:
        reference = str(scenario.folder / reference)
    return model_config(reference, overrides, scenario.where("model"))


def _with_frozen(graph: ModelGraph, scenario: Scenario, adapter: FrameworkAdapter) -> ModelGraph:
    """The model without gradients for what `training.frozen` names."""
    patterns, where = tuple(scenario.training.frozen), scenario.where("training", "frozen")
    if not patterns:
        return graph
    if graph.implementation not in adapter.freezes and not (
            adapter.replays_towers and freezes_tower_alone(with_frozen(graph, patterns)[0])):
        raise NotYet(Problem(where, f"not yet: frozen parameters under {scenario.framework} with the layers of "
                             f"{graph.implementation} (served: fsdp2 with those of hf)"))
    if any(kind.shared for kind in graph.kinds):
        raise NotYet(Problem(where, "not yet: frozen parameters of a model whose layers share some"))
    if graph.architecture.resting and not adapter.freezes_at_rest:
        raise NotYet(Problem(where, "not yet: frozen parameters of a model with a vision tower that is given text "
                             "alone"))
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


def _refuse_unserved(scenario: Scenario) -> None:
    """Blocks that this version does not serve are refused by name, never ignored."""
    training = scenario.training
    unserved = [
        (("training", "pipeline", "schedule"), training.pipeline.schedule not in SCHEDULES,
         f"schedule {training.pipeline.schedule}"),
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
            for key, given in formats.items() if given not in IN_BLOCKS.get(key, ())]
