"""Trainers whose workers run a step of reinforcement learning: what each refuses, and its order of phases.

NeMo RL trains policies over DTensors and Megatron (`phases.py`), verl over FSDP 1 (`verl.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.results.report import Assumption
from simcore.rl.journal import Journal
from simcore.rl.phases import GrpoStep, grpo_step
from simcore.rl.policy import Policy
from simcore.rl.refit import Gathered, gathered, gathering_ns
from simcore.rl.verl import Offloads, Summoned, summoned, verl_step
from simcore.simulation.simulation import Simulation
from simcore.timing.routes import Routes

__all__ = ["Step", "check_worker", "is_verl", "sent_weights", "step_of", "told_of_verl"]

Step = Callable[[Policy, GrpoStep], Journal]
"""Memory and time of a step on one class of ranks."""
_VERLS: Final = "flat"
"""The worker that verl has."""
_SERVED: Final = {"nemo_rl": "automodel, fsdp2 and megatron, what NeMo RL trains policies with",
                  "verl": "fsdp1, over transformers' layers"}
_OF_VERL: Final = ("param_offload", "optimizer_offload", "refit_bucket")
_OF_NEMO: Final = ("asynchronous", "on_policy_ratio", "refit_buffer", "generated_prompts")
_MIB: Final = 2**20
_LORA_RANK: Final = 16
"""The key's default."""


def is_verl(scenario: Scenario) -> bool:
    """True if verl's workers run the step."""
    return scenario.rl is not None and scenario.rl.trainer == "verl"


def step_of(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    """Step of the scenario's trainer. `passing`: simulation of its forward passes; `plan`: that of one rank."""
    if not is_verl(scenario):
        return partial(_nemo_rl_step, passing)
    assert scenario.rl is not None
    offloads = Offloads(scenario.rl.param_offload, scenario.rl.optimizer_offload, scenario.rl.refit_bucket * _MIB,
                        passing.job.scenario.num_microbatches)
    return partial(_verl_step, passing, (offloads, summoned(plan)))


def sent_weights(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    """Gathering of all weights for the engine; verl's state dict gathers each unit before. `plans`: of all stages."""
    weights = gathered(plans, routes)
    if not is_verl(scenario):
        return weights
    assert scenario.rl is not None
    if weights.largest > scenario.rl.refit_bucket * _MIB:
        raise IllegalLayout(Problem(scenario.where("rl", "refit_bucket"), f"refit_bucket: a weight of "
                                    f"{weights.largest / _MIB:,.0f} MiB is too large to fit in the bucket", "verl "
                                    "b178a3cd workers/rollout/vllm_rollout/vllm_rollout.py update_weights"))
    calls = summoned(plans[0]).calls
    return replace(weights, calls=(*calls, *weights.calls), ns=weights.ns + gathering_ns(calls, routes))


def _nemo_rl_step(passing: Simulation, policy: Policy, step: GrpoStep) -> Journal:
    return grpo_step(policy, step, passing.topology)


def _verl_step(passing: Simulation, settings: tuple[Offloads, Summoned], policy: Policy, step: GrpoStep) -> Journal:
    return verl_step(policy, step, passing.topology, settings)


def told_of_verl(rl: Rl) -> Iterator[Assumption]:
    """Assumptions about verl's workers."""
    source = "verl b178a3cd workers/fsdp_workers.py"
    yield Assumption(what="refit", value="the state dict is gathered, then every tensor once more", kind="derived",
                     source=f"{source} rollout_mode; torch 2.13 fsdp/_state_dict_utils.py")
    if rl.reference != "none":
        yield Assumption(what="reference policy", value="copies from the host hide behind its passes", kind="assumed",
                         source=f"{source} _build_model_optimizer: CPUOffload; torch 2.13 fsdp/_runtime_utils.py: a "
                         "stream for itself")


def check_worker(scenario: Scenario, simulation: Simulation) -> None:
    """NotYet for frameworks that the trainer's workers do not use; IllegalLayout for what the workers refuse."""
    trainer = scenario.rl.trainer if scenario.rl is not None else "nemo_rl"
    worker = simulation.framework.strategy.rl_worker
    if not worker or (worker == _VERLS) != is_verl(scenario):
        raise NotYet(Problem(scenario.where("framework"), f"not yet: {scenario.workload} under {scenario.framework} "
                             f"(served: {_SERVED[trainer]})"))
    _check_keys(scenario)
    (_check_verl if is_verl(scenario) else _check_nemo_rl)(scenario, worker)
    _check_training(scenario, simulation)


def _check_keys(scenario: Scenario) -> None:
    """InputError for keys of another trainer that are set."""
    if scenario.rl is None:
        return
    usual = Rl(prompts=1, generations=1)
    for name in _OF_NEMO if is_verl(scenario) else _OF_VERL:
        if getattr(scenario.rl, name) != getattr(usual, name):
            raise InputError(Problem(scenario.where("rl", name), f"{name}: changes nothing with trainer: "
                                     f"{scenario.rl.trainer}"))


def _check_verl(scenario: Scenario, worker: str) -> None:
    generation, training = scenario.generation, scenario.training
    assert scenario.rl is not None
    assert generation is not None
    for path, wrong, message in (
            (("generation", "colocated"), not generation.colocated, "verl's engine on GPUs of its own"),
            (("training", "method"), training.method != "full", f"adapters of verl's {worker} parameters"),
            (("training", "logprob_chunk_size"), training.logprob_chunk_size is not None,
             "log-probabilities in chunks of verl"),
            (("generation", "kv_dtype"), generation.kv_dtype == "fp8", "a cache of verl's engine in fp8"),
            (("generation", "quantization"), generation.quantization != "auto", "an engine of verl in few bits"),
            (("generation", "max_loras"), generation.max_loras > 0, "adapters in verl's engine"),
            (("generation", "max_lora_rank"), generation.max_lora_rank != _LORA_RANK, "adapters in verl's engine"),
            (("generation", "engines"), generation.engines > 1, "verl's engines on GPUs of their own"),
            (("training", "loss"), training.loss != "flash", "verl's step with another loss than flash")):
        if wrong:
            raise NotYet(Problem(scenario.where(*path), f"not yet: {message}"))
    if generation.sleep_level == 1:
        raise IllegalLayout(Problem(scenario.where("generation", "sleep_level"), "sleep_level: 1: expected 2, or 0 "
                                    "(rollout.free_cache_engine: false)", "verl b178a3cd "
                                    "workers/rollout/vllm_rollout/vllm_async_server.py sleep"))


def _check_nemo_rl(scenario: Scenario, worker: str) -> None:
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
    if scenario.mesh.pp > 1 and worker == "dtensor":
        raise NotYet(Problem(scenario.where("mesh", "pp"), f"not yet: {workload} with pipeline stages of Automodel"))


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
