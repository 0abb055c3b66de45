"""NeMo RL as a trainer, over DTensors and Megatron: what it refuses, what it assumes, and how weights are sent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.registry import asked_adapter
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.plan import Plan
from simcore.placement.strategy import DTENSOR, MEGATRON, RlWorker
from simcore.results.report import Assumption
from simcore.rl.ppo import ppo_step
from simcore.rl.step.phases import GrpoStep, grpo_step
from simcore.rl.step.refit import Gathered, gathered
from simcore.rl.step.trainer import Step, Trainer, check_reference
from simcore.rl.verl.workers import LOSSES
from simcore.simulation.simulation import Simulation
from simcore.timing.routes import Routes
from simcore.vllm.protocol import InferenceEngine

__all__ = ["NEMO_RL"]

_BY_HTTP: Final = ("sglang",)
"""Engines that NeMo RL sends weights by handles in requests."""


def _step(scenario: Scenario, passing: Simulation, plan: Plan) -> Step:
    assert scenario.rl is not None
    if scenario.rl.critic is not None:
        return partial(ppo_step, topology=passing.topology, epochs=scenario.rl.epochs)
    return partial(grpo_step, topology=passing.topology)


def _sent(scenario: Scenario, plans: Sequence[Plan], routes: Routes) -> Gathered:
    return gathered(plans, routes)


def _told(rl: Rl, engine: InferenceEngine, step: GrpoStep) -> list[Assumption]:
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
        decoded = "one step's sequences" if rl.steps_ahead == 1 else f"those of {rl.steps_ahead} steps at once"
        rows.append(Assumption(what="rl.asynchronous", value="a step takes as long as the slower of generation and "
                                "the policy's passes and steps, and weights are sent after both", kind="assumed",
                                source="NeMo RL 7ea279ab algorithms/grpo.py async_grpo_train; engines decode "
                                f"{decoded}, and none of them is cut off or thrown away"))
    if engine.generation.colocated and engine.generation.sleep_level != 1:
        rows.append(Assumption(what="generation.sleep_level", value=str(engine.generation.sleep_level), kind="assumed",
                                source="NeMo RL 7ea279ab vllm_worker.py:1309 always sleeps at level 1"))
    return rows


def _check(scenario: Scenario, simulation: Simulation) -> None:
    worker = simulation.framework.strategy.rl_worker
    check_reference(scenario, "the reference policy lies on the host and is swapped in", "NeMo RL 7ea279ab "
                     "models/automodel/setup.py setup_reference_model_state: a pinned copy in host memory")
    workload = scenario.workload
    if scenario.generation is not None and scenario.generation.kv_dtype == "fp8" and worker == DTENSOR:
        at = scenario.where("generation", "kv_dtype")
        raise IllegalLayout(Problem(at, f"kv_dtype: fp8 under {scenario.framework}", "NeMo RL 7ea279ab "
                                    "dtensor_policy_worker_v2.py stream_weights_via_ipc_zmq: FP8 kvcache is not "
                                    "currently supported for DTensor path"))
    generation = scenario.generation
    if generation is not None and generation.kv_dtype == "fp8" and generation.quantization != "fp8":
        raise IllegalLayout(Problem(scenario.where("generation", "kv_dtype"), "kv_dtype: fp8 without quantization: fp8",
                                    "NeMo RL 7ea279ab algorithms/grpo.py:1325: FP8 KV cache can only be used together "
                                    "with FP8 model weights"))
    if generation is not None and generation.engine in _BY_HTTP:
        _check_sent_by_http(scenario, worker)
    mesh = scenario.mesh
    if scenario.training.logprob_chunk_size is not None and worker == DTENSOR and mesh.tp * mesh.cp > 1:
        raise NotYet(Problem(scenario.where("training", "logprob_chunk_size"), "not yet: log-probabilities in chunks "
                             f"of DTensors, with tp {mesh.tp} and cp {mesh.cp}"))
    if scenario.training.loss in LOSSES:
        raise NotYet(Problem(scenario.where("training", "loss"), f"not yet: NeMo RL with the loss "
                             f"{scenario.training.loss} of verl's workers"))
    if scenario.rl is not None and scenario.rl.critic is not None and asked_adapter(scenario).verl_wraps:
        raise NotYet(Problem(scenario.where("rl", "critic"), f"critic: not yet: values under {scenario.framework}, "
                             "whose loss is of verl's critic"))
    if scenario.rl is not None:
        _check_chunks(scenario, scenario.rl)
        _check_states(scenario, scenario.rl)
    if scenario.rl is not None and scenario.rl.epochs > 1 and scenario.rl.critic is None:
        raise IllegalLayout(Problem(scenario.where("rl", "epochs"), f"epochs: {scenario.rl.epochs} without a critic: "
                                    "GRPO trains once on its sequences", "NeMo RL 7ea279ab algorithms/grpo.py "
                                    "grpo_train: one call of policy.train; ppo.py has ppo_epochs"))
    if scenario.mesh.pp > 1 and worker == DTENSOR:
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


def _check_sent_by_http(scenario: Scenario, worker: RlWorker) -> None:
    release = "NeMo RL 7ea279ab"
    if worker != DTENSOR:
        raise IllegalLayout(Problem(scenario.where("generation", "engine"), "engine: sglang with a policy of Megatron",
                                    f"{release} models/policy/workers/: stream_weights_via_http is DTensor's alone"))
    if scenario.rl is not None and scenario.rl.asynchronous:
        raise IllegalLayout(Problem(scenario.where("rl", "asynchronous"), "asynchronous: true with sglang",
                                    f"{release} algorithms/grpo.py:4113"))


NEMO_RL: Final = (
    Trainer("automodel, fsdp2 and megatron, what NeMo RL trains policies with", (DTENSOR, MEGATRON),
            ("asynchronous", "steps_ahead", "on_policy_ratio", "refit_buffer", "generated_prompts", "critic", "epochs",
             "chunks", "optimizer_offload"),
            _check, _step, _sent, _told, in_place=False, critic_apart=True, use="library", engines=("vllm", "sglang"),
            occupied=lambda rl, policy, critic: 0, distils=True),)
"""The one record of NeMo RL's workers."""
