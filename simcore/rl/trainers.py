"""Trainers whose workers run a step of reinforcement learning: what each refuses, and its order of phases.

NeMo RL trains policies over DTensors and Megatron (`phases.py`), verl over FSDP 1 (`verl.py`) and over Megatron
(`verl_megatron.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.results.report import Assumption
from simcore.rl.journal import Journal
from simcore.rl.mbridge import exported
from simcore.rl.phases import GrpoStep, grpo_step
from simcore.rl.policy import MODULES, Critic, Policy
from simcore.rl.ppo import ppo_step
from simcore.rl.refit import Gathered, gathered, gathering_ns
from simcore.rl.streams import EXPORTS, STREAMS, WHOLE
from simcore.rl.verl import Offloads, summoned, verl_step
from simcore.rl.verl_megatron import Moves, beside_engine, megatron_step
from simcore.simulation.simulation import Simulation
from simcore.timing.routes import Routes
from simcore.vllm.protocol import InferenceEngine

__all__ = ["TRAINERS", "Step", "Trainer", "check_worker", "made_of_logits", "trainer_of"]

Step = Callable[[Policy, GrpoStep], Journal]
"""Memory and time of a step on one class of ranks."""
_VERLS: Final = "flat"
"""The worker of verl over FSDP."""
_SERVED: Final = "fsdp1, over transformers' layers, and megatron"
_MIB: Final = 2**20
_LOSSES: Final = {"flash": 0, "flash_entropy": 0, "flash_eager": 3, "flash_entropy_eager": 3}
"""Losses of verl's actor, with the tensors in fp32 that a pass makes of logits: [Note: in place] in `forward.py`."""
_LORA_RANK: Final = 16
"""The key's default."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """Trainer whose workers run a step.

    `served`: frameworks in words; `serves`: True for a strategy's worker that it has. `keys`: those of the block `rl`
    that it alone reads. `check`: raises for what it refuses or is not described. `step`: the step of a scenario, from
    the simulation of its forward passes and the plan of one rank; `sent`: gathering of all weights, from the plans of
    all stages. `told`: its assumptions. `in_place`: [Note: in place] in `forward.py`; `critic_apart`: a critic has
    processes of its own; `use`: how vLLM is started. `engines`: those that it generates with; `occupied`: bytes on a
    GPU beside one when it starts, of a policy and its critic.
    """

    served: str
    serves: Callable[[str], bool]
    keys: tuple[str, ...]
    check: Callable[[Scenario, str], None]
    step: Callable[[Scenario, Simulation, Plan], Step]
    sent: Callable[[Scenario, Sequence[Plan], Routes], Gathered]
    told: Callable[[Rl, InferenceEngine, GrpoStep], Iterable[Assumption]]
    in_place: bool
    critic_apart: bool
    use: Literal["server", "library"]
    engines: tuple[str, ...]
    occupied: Callable[[Rl, Policy, Critic | None], int]


def trainer_of(scenario: Scenario, worker: str = "") -> Trainer:
    """Trainer that the scenario asks for; NeMo RL without a block `rl`.

    `worker`: of the strategy, by which one of its kinds of workers is chosen.
    """
    found = TRAINERS[scenario.rl.trainer if scenario.rl is not None else _DEFAULT]
    return next((one for one in found if one.serves(worker)), found[0])


def check_worker(scenario: Scenario, simulation: Simulation) -> None:
    """NotYet for frameworks that the trainer's workers do not use; IllegalLayout for what the workers refuse."""
    worker = simulation.framework.strategy.rl_worker
    trainer = trainer_of(scenario, worker)
    if not trainer.serves(worker):
        raise NotYet(Problem(scenario.where("framework"), f"not yet: {scenario.workload} under {scenario.framework} "
                             f"(served: {trainer.served})"))
    if scenario.generation is not None and scenario.generation.engine not in trainer.engines:
        raise NotYet(Problem(scenario.where("generation", "engine"), f"not yet: {scenario.generation.engine} beside "
                             f"this trainer (served: {', '.join(trainer.engines)})"))
    _check_keys(scenario, trainer)
    trainer.check(scenario, worker)
    _check_training(scenario, simulation)


def _check_keys(scenario: Scenario, trainer: Trainer) -> None:
    """InputError for keys of another trainer that are set."""
    if scenario.rl is None:
        return
    usual = Rl(prompts=1, generations=1)
    others = (name for one in TRAINERS.values() if trainer not in one for kind in one for name in kind.keys
              if name not in trainer.keys)
    for name in others:
        if getattr(scenario.rl, name) != getattr(usual, name):
            raise InputError(Problem(scenario.where("rl", name), f"{name}: changes nothing with trainer: "
                                     f"{scenario.rl.trainer}"))


def made_of_logits(scenario: Scenario) -> int:
    """Tensors in fp32 of the logits' size that a pass of the policy makes of logits in place; 0 for compiled ones."""
    return _LOSSES.get(scenario.training.loss, 0)


# ---- verl ------------------------------------------------------------------------------------------------------------
def _verl_step(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    assert scenario.rl is not None
    assert scenario.generation is not None
    stream = STREAMS[scenario.generation.engine](scenario.rl.refit_bucket * _MIB, plan)
    offloads = Offloads(scenario.rl.param_offload, scenario.rl.optimizer_offload, stream,
                        passing.job.scenario.num_microbatches)
    return partial(verl_step, topology=passing.topology, settings=(offloads, summoned(plan)))


def _beside_verl(rl: Rl, policy: Policy, critic: Critic | None) -> int:
    """Bytes of actor and critic when the engine starts, after `init_model` (ray_trainer.py init_workers): no states."""
    models = [(policy, rl.param_offload), *([(critic.model, critic.offloads_params)] if critic is not None else [])]
    return sum(sum(model.outside.values()) + (0 if away else sum(model.params.values())) for model, away in models)


def _sent_by_verl(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    """The state dict gathers each unit, then every tensor is gathered."""
    weights = gathered(plans, routes)
    _check_bucket(scenario, weights.largest)
    calls = summoned(plans[0]).calls
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
    yield Assumption(what="refit", value="the state dict is gathered, then every tensor once more", kind="derived",
                     source=f"{source} rollout_mode; torch 2.13 fsdp/_state_dict_utils.py")
    if rl.reference != "none":
        yield Assumption(what="reference policy", value="copies from the host hide behind its passes", kind="assumed",
                         source=f"{source} _build_model_optimizer: CPUOffload; torch 2.13 fsdp/_runtime_utils.py: a "
                         "stream for itself")
    if rl.critic is not None:
        yield Assumption(what="rl.critic", value="every token of a sequence has a value in the loss; the MFU counts "
                         "the policy's training alone", kind="assumed", source="verl b178a3cd workers/critic/"
                         "dp_critic.py: answers alone have one")


def _check_verl(scenario: Scenario, worker: str) -> None:
    _check_reference(scenario, "the reference policy lies on the host", "verl b178a3cd workers/fsdp_workers.py "
                     "_build_model_optimizer: CPUOffload(offload_params=True) for another role than the actor's")
    _check_engine(scenario)
    training = scenario.training
    for name, wrong, message in (
            ("method", training.method != "full", f"adapters of verl's {worker} parameters"),
            ("logprob_chunk_size", training.logprob_chunk_size is not None, "log-probabilities in chunks of verl"),
            ("loss", training.loss not in _LOSSES, f"verl's step with another loss than {', '.join(_LOSSES)}")):
        if wrong:
            raise NotYet(Problem(scenario.where("training", name), f"not yet: {message}"))


def _check_engine(scenario: Scenario) -> None:
    """Refuses engines that verl does not start, or that are not described beside its workers."""
    generation = scenario.generation
    assert generation is not None
    for name, wrong, message in (
            ("colocated", not generation.colocated, "verl's engine on GPUs of its own"),
            ("kv_dtype", generation.kv_dtype == "fp8", "a cache of verl's engine in fp8"),
            ("quantization", generation.quantization != "auto", "an engine of verl in few bits"),
            ("max_loras", generation.max_loras > 0, "adapters in verl's engine"),
            ("max_lora_rank", generation.max_lora_rank != _LORA_RANK, "adapters in verl's engine"),
            ("engines", generation.engines > 1, "verl's engines on GPUs of their own")):
        if wrong:
            raise NotYet(Problem(scenario.where("generation", name), f"not yet: {message}"))
    if generation.sleep_level == 1:
        raise IllegalLayout(Problem(scenario.where("generation", "sleep_level"), "sleep_level: 1: expected 2, or 0 "
                                    "(rollout.free_cache_engine: false)", "verl b178a3cd "
                                    "workers/rollout/vllm_rollout/vllm_async_server.py sleep"))


# ---- verl over Megatron ----------------------------------------------------------------------------------------------
def _stages(simulation: Simulation) -> list[Plan]:
    """Plan of one class of ranks of each pipeline stage."""
    return list({plan.stage: plan for plan in reversed(simulation.plans)}.values())[::-1]


def _megatron_step(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    assert scenario.rl is not None
    assert scenario.generation is not None
    stream = EXPORTS[scenario.generation.engine](scenario.rl.refit_bucket * _MIB, _stages(passing))
    moves = Moves(scenario.rl.param_offload, scenario.rl.optimizer_offload, stream,
                  refers_on_device=scenario.rl.reference == "device")
    return partial(megatron_step, topology=passing.topology, moves=moves)


def _beside_megatron(rl: Rl, policy: Policy, critic: Critic | None) -> int:
    return beside_engine(policy, params=rl.param_offload, optimizer=rl.optimizer_offload,
                         refers_on_device=rl.reference == "device")


def _sent_by_megatron(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    weights = exported(plans, routes)
    _check_bucket(scenario, weights.largest)
    return weights


def _told_of_megatron(rl: Rl, engine: InferenceEngine, step: GrpoStep) -> Iterator[Assumption]:
    """Assumptions about verl's workers over Megatron."""
    source = "verl b178a3cd workers/megatron_workers.py"
    yield Assumption(what="refit", value="parameters are exported by mbridge, one after the other", kind="derived",
                     source=f"{source} rollout_mode; mbridge 0.15.1 core/bridge.py:297")
    if rl.reference != "none":
        yield Assumption(what="reference policy", value="its passes take the memory of the policy's, which makes "
                         "entropies too", kind="assumed", source=f"{source} compute_ref_log_prob")


def _check_megatron(scenario: Scenario, worker: str) -> None:
    _check_engine(scenario)
    training = scenario.training
    for name, wrong, message in (
            ("method", training.method != "full", "adapters of verl's workers over Megatron"),
            ("logprob_chunk_size", training.logprob_chunk_size is not None, "log-probabilities in chunks of verl")):
        if wrong:
            raise NotYet(Problem(scenario.where("training", name), f"not yet: {message}"))


# ---- NeMo RL ---------------------------------------------------------------------------------------------------------
def _nemo_rl_step(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    assert scenario.rl is not None
    if scenario.rl.critic is not None:
        return partial(ppo_step, topology=passing.topology, epochs=scenario.rl.epochs)
    return partial(grpo_step, topology=passing.topology)


def _sent_by_nemo_rl(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    return gathered(plans, routes)


def _told_of_nemo_rl(rl: Rl, engine: InferenceEngine, step: GrpoStep) -> list[Assumption]:
    """Assumptions on NeMo RL's refit, and on what it never does."""
    rows = [
        Assumption(what="refit", value=f"gathers alone {step.gathered.ns / 1e9:.3g} s", kind="assumed", source="one "
                   "tensor after the other, NeMo RL 7ea279ab dtensor_params_generator; packing by bytes")]
    if rl.generated_prompts is not None:
        told = f"{rl.generated_prompts:,} prompts are answered once, and {rl.prompts:,} of them are trained on"
        rows.append(Assumption(what="rl.generated_prompts", value=told, kind="assumed", source="NeMo RL 7ea279ab "
                               "algorithms/grpo.py:1699 dynamic_sampling: batches are drawn until enough prompts have "
                               "rewards that differ, here one is enough"))
    if rl.asynchronous:
        rows.append(Assumption(what="rl.asynchronous", value="a step takes as long as the slower of generation and "
                                "the policy's passes and steps, and weights are sent after both", kind="assumed",
                                source="NeMo RL 7ea279ab algorithms/grpo.py async_grpo_train; engines decode one "
                                "step's sequences, and none of them is cut off or thrown away"))
    if engine.generation.colocated and engine.generation.sleep_level != 1:
        rows.append(Assumption(what="generation.sleep_level", value=str(engine.generation.sleep_level), kind="assumed",
                                source="NeMo RL 7ea279ab vllm_worker.py:1309 always sleeps at level 1"))
    return rows


def _check_nemo_rl(scenario: Scenario, worker: str) -> None:
    _check_reference(scenario, "the reference policy lies on the host and is swapped in", "NeMo RL 7ea279ab "
                     "models/automodel/setup.py setup_reference_model_state: a pinned copy in host memory")
    workload = scenario.workload
    if scenario.generation is not None and scenario.generation.kv_dtype == "fp8" and worker == "dtensor":
        at = scenario.where("generation", "kv_dtype")
        raise IllegalLayout(Problem(at, f"kv_dtype: fp8 under {scenario.framework}", "NeMo RL 7ea279ab "
                                    "dtensor_policy_worker_v2.py stream_weights_via_ipc_zmq: FP8 kvcache is not "
                                    "currently supported for DTensor path"))
    generation = scenario.generation
    if generation is not None and generation.kv_dtype == "fp8" and generation.quantization != "fp8":
        raise IllegalLayout(Problem(scenario.where("generation", "kv_dtype"), "kv_dtype: fp8 without quantization: fp8",
                                    "NeMo RL 7ea279ab algorithms/grpo.py:1325: FP8 KV cache can only be used together "
                                    "with FP8 model weights"))
    mesh = scenario.mesh
    if scenario.training.logprob_chunk_size is not None and worker == "dtensor" and mesh.tp * mesh.cp > 1:
        raise NotYet(Problem(scenario.where("training", "logprob_chunk_size"), "not yet: log-probabilities in chunks "
                             f"of DTensors, with tp {mesh.tp} and cp {mesh.cp}"))
    if scenario.rl is not None:
        _check_chunks(scenario, scenario.rl)
        _check_states(scenario, scenario.rl)
    if scenario.rl is not None and scenario.rl.epochs > 1 and scenario.rl.critic is None:
        raise IllegalLayout(Problem(scenario.where("rl", "epochs"), f"epochs: {scenario.rl.epochs} without a critic: "
                                    "GRPO trains once on its sequences", "NeMo RL 7ea279ab algorithms/grpo.py "
                                    "grpo_train: one call of policy.train; ppo.py has ppo_epochs"))
    if scenario.mesh.pp > 1 and worker == "dtensor":
        raise NotYet(Problem(scenario.where("mesh", "pp"), f"not yet: {workload} with pipeline stages of Automodel"))


def _check_states(scenario: Scenario, rl: Rl) -> None:
    """Refuses optimizer states that leave for log-probabilities where they left before, or where none are made."""
    generation, at = scenario.generation, scenario.where("rl", "optimizer_offload")
    assert generation is not None
    if not rl.optimizer_offload:
        return
    passes = scenario.workload == "grpo" and (not rl.on_policy_ratio or rl.reference != "none")
    if generation.colocated or rl.critic is not None or not passes:
        raise InputError(Problem(at, "optimizer_offload: changes nothing where states leave before weights are sent, "
                                 "or where the policy makes no log-probabilities"))
    if rl.chunks > 1:
        raise NotYet(Problem(at, "not yet: states that leave before the first part of a step alone"))


def _check_chunks(scenario: Scenario, rl: Rl) -> None:
    """Refuses parts of a step where no single controller runs it."""
    generation, batch = scenario.generation, scenario.training.global_batch_size
    assert generation is not None
    if rl.chunks > 1 and generation.colocated:
        raise NotYet(Problem(scenario.where("rl", "chunks"), "not yet: parts of a step with an engine on the GPUs that "
                             "train"))
    for wrong, message, source in (
            (rl.critic is not None or scenario.workload != "grpo", "but for GRPO", "single_controller.py"),
            (batch not in (None, rl.prompts * rl.generations), "with several optimizer steps",
             "single_controller_utils/config.py: one RL step maps to exactly one optimizer.step")):
        if rl.chunks > 1 and wrong:
            raise IllegalLayout(Problem(scenario.where("rl", "chunks"), f"chunks: {rl.chunks} {message}",
                                        f"NeMo RL 7ea279ab algorithms/{source}"))
    if rl.chunks > rl.prompts:
        raise InputError(Problem(scenario.where("rl", "chunks"), f"chunks: expected at most the {rl.prompts:,} prompts "
                                 f"of a step, got {rl.chunks:,}"))


# ---- both ------------------------------------------------------------------------------------------------------------
def _check_reference(scenario: Scenario, told: str, rule: str) -> None:
    if scenario.rl is not None and scenario.rl.reference == "device":
        raise IllegalLayout(Problem(scenario.where("rl", "reference"), f"reference: device: {told}", rule))


def _check_training(scenario: Scenario, simulation: Simulation) -> None:
    workload = scenario.workload
    if scenario.training.method == "qlora":
        at = scenario.where("training", "method")
        raise NotYet(Problem(at, f"not yet: {workload} over a base in few bits (NeMo RL 7ea279ab has no setting for "
                             "one, and the engine is sent weights of 16 bits)"))
    if simulation.framework.schedule.num_chunks > 1:
        at = scenario.where("training", "pipeline", "virtual_stages")
        raise NotYet(Problem(at, f"not yet: {workload} with virtual stages"))
    if not isinstance(scenario.training.lengths, str):
        raise NotYet(Problem(scenario.where("training", "lengths"), f"not yet: {workload} with drawn lengths"))
    if simulation.framework.offload is not None:
        at = scenario.where("training", "offload", "activations")
        raise NotYet(Problem(at, f"not yet: {workload} with what layers or modules save on the host"))


_DEFAULT: Final = "nemo_rl"
TRAINERS: Final[Mapping[str, tuple[Trainer, ...]]] = {
    _DEFAULT: (Trainer(
        "automodel, fsdp2 and megatron, what NeMo RL trains policies with", lambda worker: worker not in ("", _VERLS),
        ("asynchronous", "on_policy_ratio", "refit_buffer", "generated_prompts", "critic", "epochs", "chunks",
         "optimizer_offload"),
        _check_nemo_rl, _nemo_rl_step, _sent_by_nemo_rl, _told_of_nemo_rl, in_place=False, critic_apart=True,
        use="library", engines=("vllm",), occupied=lambda rl, policy, critic: 0),),
    "verl": (Trainer(
        _SERVED, lambda worker: worker == _VERLS,
        ("param_offload", "optimizer_offload", "refit_bucket", "critic", "reward"), _check_verl, _verl_step,
        _sent_by_verl, _told_of_verl, in_place=True, critic_apart=False, use="server", engines=tuple(STREAMS),
        occupied=_beside_verl), Trainer(
        _SERVED, lambda worker: bool(worker) and worker not in MODULES,
        ("param_offload", "optimizer_offload", "refit_bucket"), _check_megatron, _megatron_step, _sent_by_megatron,
        _told_of_megatron, in_place=False, critic_apart=False, use="server", engines=tuple(EXPORTS),
        occupied=_beside_megatron)),
}
"""Trainers by the value of `rl.trainer`, a record for each kind of workers."""
