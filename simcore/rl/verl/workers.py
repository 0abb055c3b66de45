"""verl's workers over FSDP 1 and 2 and over Megatron: what they refuse, what they assume, and how weights are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.placement.strategy import DTENSOR, FLAT, MEGATRON
from simcore.results.report import Assumption
from simcore.rl.step.phases import GrpoStep
from simcore.rl.step.policy import Critic, Policy
from simcore.rl.step.refit import Gathered, gathered, gathering_ns
from simcore.rl.step.trainer import Step, Trainer, check_reference
from simcore.rl.verl.adapters import Adapted, adapted, are_units, check_adapters, sent_adapters
from simcore.rl.verl.fsdp2 import check_fsdp2, referred
from simcore.rl.verl.mbridge import exported
from simcore.rl.verl.megatron import Moves, beside_engine, megatron_step
from simcore.rl.verl.megatron_critic import critic_bytes
from simcore.rl.verl.step import Offloads, summoned, verl_step
from simcore.rl.verl.streams import EXPORTS, STREAMS, WHOLE
from simcore.simulation.simulation import Simulation
from simcore.timing.routes import Routes
from simcore.vllm.protocol import InferenceEngine

__all__ = ["LOSSES", "VERL", "made_of_logits"]

_SERVED: Final = "fsdp1 and fsdp2, over transformers' layers, and megatron"
_MIB: Final = 2**20
LOSSES: Final = {"flash": 0, "flash_entropy": 0, "flash_eager": 3, "flash_entropy_eager": 3, "flash_padded": 3,
                  "fused_linear": 0}
"""Losses of verl's actor, with the tensors in fp32 that a pass makes of logits: [Note: in place] in `forward.py`."""
_PADDED: Final = "flash_padded"
_COPIED: Final = 0.5
"""A copy of logits in 16 bits, in tensors of fp32."""


def made_of_logits(scenario: Scenario, *, own: bool) -> float:
    """Tensors in fp32 of the logits' size that a pass makes of logits in place; 0 for what is compiled.

    `own`: of the policy's passes, which have an entropy; a reference policy's have none. Of padded rows the answers'
    part alone is scored, and copied in the compute dtype where there are several.
    """
    loss, length, rl = scenario.training.loss, scenario.training.seq_len, scenario.rl
    if loss != _PADDED or rl is None:
        return LOSSES.get(loss, 0) if own else 0
    made = LOSSES[loss] if own else _COPIED if rl.logprob_batch_size > 1 else 0
    return made * (length - rl.prompt_tokens) / length


# ---- over FSDP 1 -----------------------------------------------------------------------------------------------------
def _verl_step(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    assert scenario.rl is not None
    assert scenario.generation is not None
    stream = STREAMS[scenario.generation.engine](scenario.rl.refit_bucket * _MIB, plan)
    offloads = Offloads(scenario.rl.param_offload, scenario.rl.optimizer_offload, stream,
                        passing.job.scenario.num_microbatches, _adapted(scenario, plan))
    return partial(verl_step, topology=passing.topology, settings=(offloads, summoned(plan)))


def _adapted(scenario: Scenario, plan: Plan) -> Adapted | None:
    """Sizes of an actor with adapters; None without."""
    assert scenario.rl is not None
    return None if scenario.training.method == "full" else adapted(plan, layered=scenario.rl.layered_summon)


def _beside_verl(rl: Rl, policy: Policy, critic: Critic | None) -> int:
    """Bytes of actor and critic when the engine starts, after `init_model` (ray_trainer.py init_workers): no states."""
    models = [(policy, rl.param_offload), *([(critic.model, critic.offloads_params)] if critic is not None else [])]
    return sum(sum(model.outside.values()) + (0 if away else sum(model.params.values())) for model, away in models)


def _sent_by_verl(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    """The state dict gathers each unit, then every tensor is gathered."""
    assert scenario.rl is not None
    is_adapted = scenario.training.method != "full"
    weights = (sent_adapters(plans[0], routes, layered=scenario.rl.layered_summon) if is_adapted else
               gathered(plans, routes))
    _check_bucket(scenario, weights.largest)
    calls = () if is_adapted else summoned(plans[0]).calls
    return replace(weights, calls=(*calls, *weights.calls), ns=weights.ns + gathering_ns(calls, routes))


def _check_bucket(scenario: Scenario, largest: int) -> None:
    """IllegalLayout for a weight of `largest` bytes that the engine's bucket does not hold."""
    assert scenario.rl is not None
    assert scenario.generation is not None
    if scenario.generation.engine in WHOLE and largest > scenario.rl.refit_bucket * _MIB:
        raise IllegalLayout(Problem(scenario.where("rl", "refit_bucket"), f"refit_bucket: a weight of "
                                    f"{largest / _MIB:,.0f} MiB is too large to fit in the bucket", "verl "
                                    "b178a3cd workers/rollout/vllm_rollout/vllm_rollout.py update_weights"))


def _told_of_verl(rl: Rl, engine: InferenceEngine, step: GrpoStep) -> Iterator[Assumption]:
    """Assumptions about verl's workers."""
    source = "verl b178a3cd workers/fsdp_workers.py"
    adapters = engine.generation.max_loras > 0
    if engine.architecture.has_tower:
        yield Assumption(what="vision tower of the actor", value="its tokens are put into the sequence as transformers "
                         "does it, with a copy of them more", kind="assumed", source="verl b178a3cd "
                         "models/transformers/qwen2_vl.py _get_input_embeds")
    refit = ("all parameters are summoned twice, whole" if adapters and not rl.layered_summon else "layers are summoned"
             if adapters else "the state dict is gathered, then every tensor once more")
    yield Assumption(what="refit", value=refit, kind="derived", source=f"{source} rollout_mode; torch 2.13 "
                     "fsdp/_state_dict_utils.py")
    if adapters and rl.layered_summon and engine.generation.sleep_level:
        yield Assumption(what="rl.layered_summon", value="the engine's base is not sent again after its sleep at level "
                         "2, as upstream does", kind="derived", source="verl b178a3cd workers/rollout/vllm_rollout/"
                         "vllm_async_server.py:569, fsdp_workers.py rollout_mode")
    yield from _told_of_models(rl)


def _told_of_prompts(rl: Rl) -> Iterator[Assumption]:
    """Assumption about prompts of which a step keeps some."""
    if rl.generated_prompts is not None:
        told = f"{rl.generated_prompts:,} prompts are answered once, and {rl.prompts:,} of them are trained on"
        yield Assumption(what="rl.generated_prompts", value=told, kind="assumed", source="verl 2bb42bae^ recipe/dapo/"
                         "dapo_ray_trainer.py fit: batches are drawn until enough prompts have rewards that differ, "
                         "here as few as hold a step")


def _told_of_models(rl: Rl) -> Iterator[Assumption]:
    """Assumptions about a reference policy and a critic over FSDP, and about prompts."""
    yield from _told_of_prompts(rl)
    source = "verl b178a3cd workers/fsdp_workers.py"
    if rl.reference == "host":
        yield Assumption(what="reference policy", value="copies from the host hide behind its passes", kind="assumed",
                         source=f"{source} _build_model_optimizer: CPUOffload; torch 2.13 fsdp/_runtime_utils.py: a "
                         "stream for itself")
    if rl.critic is not None:
        yield Assumption(what="rl.critic", value="every token of a sequence has a value in the loss; the MFU counts "
                         "the policy's training alone", kind="assumed", source="verl b178a3cd workers/critic/"
                         "dp_critic.py: answers alone have one")


def _check_verl(scenario: Scenario, simulation: Simulation) -> None:
    if scenario.training.offload.part("params")[1]:
        raise IllegalLayout(Problem(scenario.where("training", "offload", "params"), "params: an actor on the host, "
                                    "but between its passes (param_offload)", "verl b178a3cd workers/fsdp_workers.py "
                                    "_build_model_optimizer: CPUOffload is forced off for the actor"))
    _check_actor(scenario)


def _check_actor(scenario: Scenario) -> None:
    """Refuses what verl's workers over FSDP do not do, or what is not described of them."""
    if scenario.training.method == "full":
        check_reference(scenario, "the reference policy lies on the host", "verl b178a3cd workers/fsdp_workers.py "
                         "_build_model_optimizer: CPUOffload(offload_params=True) for another role than the actor's")
    _check_engine(scenario)
    training = scenario.training
    for name, wrong, message in (
            ("method", training.method == "qlora", "a base in few bits of verl"),
            ("lora", training.method == "lora" and not are_units(scenario),
             "adapters of verl that are no units of their own"),
            ("logprob_chunk_size", training.logprob_chunk_size is not None, "log-probabilities in chunks of verl"),
            ("loss", training.loss not in LOSSES, f"verl's step with another loss than {', '.join(LOSSES)}")):
        if wrong:
            raise NotYet(Problem(scenario.where("training", name), f"not yet: {message}"))
    check_adapters(scenario)


# ---- over FSDP 2 -----------------------------------------------------------------------------------------------------
def _fsdp2_step(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    assert scenario.rl is not None
    assert scenario.generation is not None
    stream = STREAMS[scenario.generation.engine](scenario.rl.refit_bucket * _MIB, plan)
    offloads = Offloads(scenario.rl.param_offload, scenario.rl.optimizer_offload, stream,
                        passing.job.scenario.num_microbatches)
    state = referred(scenario, passing, plan, made=made_of_logits(scenario, own=False))
    return partial(verl_step, topology=passing.topology, settings=(offloads, state))


def _sent_by_fsdp2(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    weights = gathered(plans, routes)
    _check_bucket(scenario, weights.largest)
    return weights


def _told_of_fsdp2(rl: Rl, engine: InferenceEngine, step: GrpoStep) -> Iterator[Assumption]:
    yield Assumption(what="refit", value="the state dict refers to the ranks' parts, and every tensor is gathered",
                     kind="derived", source="verl b178a3cd workers/fsdp_workers.py rollout_mode; torch 2.13 "
                     "distributed/fsdp/_fully_shard/")
    yield from _told_of_models(rl)


def _check_over_fsdp2(scenario: Scenario, simulation: Simulation) -> None:
    assert scenario.rl is not None
    check_fsdp2(scenario, simulation)
    _check_actor(scenario)
    for name in ("param_offload", "optimizer_offload"):
        if getattr(scenario.rl, name) and scenario.training.offload.part("params")[1]:
            raise InputError(Problem(scenario.where("rl", name), f"{name}: changes nothing with parameters on the host "
                                     "(offload_policy; verl b178a3cd workers/fsdp_workers.py _build_model_optimizer)"))


def _check_engine(scenario: Scenario) -> None:
    """Refuses engines that verl does not start, or that are not described beside its workers."""
    generation = scenario.generation
    assert generation is not None
    if generation.engine not in WHOLE and scenario.rl is not None and scenario.rl.reward is not None:
        raise NotYet(Problem(scenario.where("rl", "reward"), f"not yet: reward: a model beside {generation.engine}, "
                             "whose pool it would take from"))
    for name, wrong, message in (
            ("colocated", not generation.colocated, "verl's engine on GPUs of its own"),
            ("kv_dtype", generation.kv_dtype == "fp8", "a cache of verl's engine in fp8"),
            ("quantization", generation.quantization != "auto", "an engine of verl in few bits"),
            ("engines", generation.engines > 1, "verl's engines on GPUs of their own")):
        if wrong:
            raise NotYet(Problem(scenario.where("generation", name), f"not yet: {message}"))
    if generation.sleep_level == 1:
        raise IllegalLayout(Problem(scenario.where("generation", "sleep_level"), "sleep_level: 1: expected 2, or 0 "
                                    "(rollout.free_cache_engine: false)", "verl b178a3cd "
                                    "workers/rollout/vllm_rollout/vllm_async_server.py sleep"))


# ---- over Megatron ---------------------------------------------------------------------------------------------------
def _megatron_step(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    assert scenario.rl is not None
    assert scenario.generation is not None
    stream = EXPORTS[scenario.generation.engine](scenario.rl.refit_bucket * _MIB, passing.stage_plans)
    moves = Moves(scenario.rl.param_offload, scenario.rl.optimizer_offload, stream,
                  refers_on_device=scenario.rl.reference == "device")
    return partial(megatron_step, topology=passing.topology, moves=moves)


def _beside_megatron(rl: Rl, policy: Policy, critic: Critic | None) -> int:
    actor = beside_engine(policy, params=rl.param_offload, optimizer=rl.optimizer_offload,
                          refers_on_device=rl.reference == "device")
    return actor + (0 if critic is None else critic_bytes(critic))


def _sent_by_megatron(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    weights = exported(plans, routes)
    _check_bucket(scenario, weights.largest)
    return weights


def _told_of_megatron(rl: Rl, engine: InferenceEngine, step: GrpoStep) -> Iterator[Assumption]:
    """Assumptions about verl's workers over Megatron."""
    yield from _told_of_prompts(rl)
    source = "verl b178a3cd workers/megatron_workers.py"
    yield Assumption(what="refit", value="parameters are exported by mbridge, one after the other", kind="derived",
                     source=f"{source} rollout_mode; mbridge 0.15.1 core/bridge.py:297")
    if rl.reference != "none":
        yield Assumption(what="reference policy", value="its passes take the memory of the policy's, which makes "
                         "entropies too", kind="assumed", source=f"{source} compute_ref_log_prob")
    if rl.critic is not None:
        yield Assumption(what="rl.critic", value="laid out and stored as the actor; every token of a sequence has a "
                         "value in the loss; the MFU counts the policy's training alone", kind="assumed", source=
                         f"{source}:1014: groups are made once; workers/critic/megatron_critic.py")


def _check_megatron(scenario: Scenario, simulation: Simulation) -> None:
    _check_engine(scenario)
    training = scenario.training
    for name, wrong, message in (
            ("method", training.method != "full", "adapters of verl's workers over Megatron"),
            ("logprob_chunk_size", training.logprob_chunk_size is not None, "log-probabilities in chunks of verl")):
        if wrong:
            raise NotYet(Problem(scenario.where("training", name), f"not yet: {message}"))
    check_adapters(scenario)


VERL: Final = (
    Trainer(_SERVED, (FLAT,),
            ("param_offload", "optimizer_offload", "refit_bucket", "critic", "reward", "layered_summon",
             "generated_prompts"),
            _check_verl, _verl_step, _sent_by_verl, _told_of_verl, in_place=True, critic_apart=False,
            use="server", engines=tuple(STREAMS), occupied=_beside_verl),
    Trainer(_SERVED, (DTENSOR,),
            ("param_offload", "optimizer_offload", "refit_bucket", "critic", "reward", "generated_prompts"),
            _check_over_fsdp2, _fsdp2_step,
            _sent_by_fsdp2, _told_of_fsdp2, in_place=True, critic_apart=False, use="server", engines=tuple(STREAMS),
            occupied=_beside_verl),
    Trainer(_SERVED, (MEGATRON,),
            ("param_offload", "optimizer_offload", "refit_bucket", "critic", "generated_prompts"),
            _check_megatron, _megatron_step,
            _sent_by_megatron, _told_of_megatron, in_place=False, critic_apart=False, use="server",
            engines=tuple(EXPORTS), occupied=_beside_megatron))
"""A record for each kind of verl's workers."""
