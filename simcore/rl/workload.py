"""The workloads `dpo` and `grpo`: a scenario becomes training steps, forward passes and an engine, phase by phase.

Nothing of the engine that simulates a training step knows of phases: the training step is a scenario of its own, a
forward pass is one with everything frozen (`forward.py`), the engine that generates is `simcore/vllm/`. Here they are
derived from the one scenario, and laid end to end (`laid.py`).
"""

from __future__ import annotations

import math
from typing import Any

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.job import topology_of
from simcore.results.report import Assumption, Report
from simcore.rl.forward import passes
from simcore.rl.journal import Journal
from simcore.rl.phases import GrpoStep, dpo_step, engine_step, grpo_step
from simcore.rl.policy import Policy, policy_of
from simcore.rl.refit import gathered
from simcore.rl.report import Laid, phase_report
from simcore.simulation.simulation import Simulation, placed_simulation
from simcore.simulation.step import Request, training_step
from simcore.vllm.decode import decode_seconds
from simcore.vllm.engine import Engine
from simcore.vllm.workload import assumptions, engine_of, serving

__all__ = ["in_phases", "legal"]

_PAIR = 2
"""Sequences of a preference, chosen and rejected (NeMo RL 7ea279ab `algorithms/dpo.py:602`: batch sizes doubled)."""


def in_phases(scenario: Scenario, *, series: bool) -> Report:
    """One steady step of the scenario's workload. Refusals as of the training step, and of the engine."""
    return {"dpo": _dpo, "grpo": _grpo}[scenario.workload](scenario, Request(series=series))


def legal(scenario: Scenario) -> None:
    """Raises what would refuse the engine or the phases, beside what the training step's own check finds."""
    if scenario.workload == "grpo":
        rl, engine = _asked(scenario)
        _num_steps(scenario, rl.prompts * rl.generations)
        _num_engines(scenario, engine)
    _passes_of(scenario, _training(scenario))


# ---- the scenarios inside --------------------------------------------------------------------------------------------
def _training(scenario: Scenario, **changed: Any) -> Scenario:
    """The same job as a training step alone, with other batch sizes."""
    training = scenario.training.model_copy(update=changed)
    return scenario.model_copy(update={"workload": "train", "rl": None, "generation": None, "training": training})


def _passes_of(scenario: Scenario, passing: Scenario) -> Simulation:
    """Of the forward passes; refused but for what phases are described for."""
    simulation = placed_simulation(passing)
    _check_worker(scenario, simulation)
    return simulation


def _check_worker(scenario: Scenario, simulation: Simulation) -> None:
    """NotYet but for NeMo RL's two kinds of workers, on one stage; IllegalLayout for what its own refuse."""
    workload, worker = scenario.workload, simulation.framework.strategy.rl_worker
    if not worker:
        raise NotYet(Problem(scenario.where("framework"), f"not yet: {workload} under {scenario.framework} (served: "
                             "automodel, fsdp2 and megatron, what NeMo RL trains policies with)"))
    if scenario.generation is not None and scenario.generation.kv_dtype == "fp8" and worker == "dtensor":
        at = scenario.where("generation", "kv_dtype")
        raise IllegalLayout(Problem(at, f"kv_dtype: fp8 under {scenario.framework}", "NeMo RL 7ea279ab "
                                    "dtensor_policy_worker_v2.py stream_weights_via_ipc_zmq: FP8 kvcache is not "
                                    "currently supported for DTensor path"))
    if scenario.training.method == "qlora":
        at = scenario.where("training", "method")
        raise NotYet(Problem(at, f"not yet: {workload} over a base in few bits (NeMo RL 7ea279ab has no setting for "
                             "one, and the engine is sent weights of 16 bits)"))
    if scenario.mesh.pp > 1:
        raise NotYet(Problem(scenario.where("mesh", "pp"), f"not yet: {workload} with pipeline stages"))
    if not isinstance(scenario.training.lengths, str):
        raise NotYet(Problem(scenario.where("training", "lengths"), f"not yet: {workload} with drawn lengths"))


def _policies(scenario: Scenario, trained: Report, passing: Scenario, simulation: Simulation,
              steps: int) -> list[Policy]:
    """Of every class of ranks, in the report's order. `parts`: of `passing`."""
    forward = passes(simulation)
    step_ns = round((trained.time.step_s if trained.time else 0.0) * 1e9)
    ns = forward.total_ns(passing.num_microbatches), steps * step_ns
    plans = placed_simulation(_training(scenario)).plans
    return [policy_of(*each, simulation, ns) for each in zip(trained.ranks, plans, forward.rest, forward.above,
                                                             strict=True)]


# ---- DPO -------------------------------------------------------------------------------------------------------------
def _dpo(scenario: Scenario, request: Request) -> Report:
    if scenario.generation is not None:
        raise InputError(Problem(scenario.where("generation"), "generation: nothing is generated in dpo"))
    training = scenario.training
    given = training.global_batch_size
    doubled = {"micro_batch_size": _PAIR * training.micro_batch_size,
               "global_batch_size": None if given is None else _PAIR * given}
    passing = _training(scenario, **doubled, recompute="none")
    simulation = _passes_of(scenario, passing)
    trained = training_step(_training(scenario, **doubled), request)
    policies = _policies(scenario, trained, passing, simulation, 1)
    journals = [dpo_step(policy, simulation.topology) for policy in policies]
    told = [Assumption(what="training.micro_batch_size, global_batch_size", value="counted in pairs, doubled to "
                       "sequences", kind="derived", source="NeMo RL 7ea279ab algorithms/dpo.py:602"),
            Assumption(what="reference policy", value="on the host, swapped in for its pass", kind="derived",
                       source="NeMo RL 7ea279ab dtensor_policy_worker_v2.py use_reference_model"), _LOSS]
    return phase_report(Laid(scenario, trained, tuple(journals), simulation), told)


_LOSS = Assumption(what="training.loss", value="a cross entropy stands in for the loss of log-probabilities",
                   kind="assumed", source="NeMo RL 7ea279ab distributed/model_utils.py get_next_token_logprobs_from_"
                   "logits: log_softmax over fp32 logits too, and a gather in the place of nll_loss")


# ---- GRPO ------------------------------------------------------------------------------------------------------------
def _grpo(scenario: Scenario, request: Request) -> Report:
    rl, engine = _asked(scenario)
    sequences = rl.prompts * rl.generations
    steps, engines = _num_steps(scenario, sequences), _num_engines(scenario, engine)
    passing = _training(scenario, micro_batch_size=rl.logprob_batch_size, global_batch_size=sequences,
                        recompute="none")
    simulation = _passes_of(scenario, passing)
    trained = training_step(_training(scenario, global_batch_size=sequences // steps), request)
    policies = _policies(scenario, trained, passing, simulation, steps)
    turn = GrpoStep(engine, gathered(simulation.plans[0], simulation.routes),
                rl.reference != "none", _generate_ns(engine, rl, -(-sequences // engines)), rl.refit_buffer)
    journals = [grpo_step(policy, turn, simulation.topology) for policy in policies]
    beside = None if engine.generation.colocated else _beside(turn, journals, simulation)
    laid = Laid(scenario, trained, tuple(journals), simulation, beside, engines * engine.tp if beside else 0)
    told = [*assumptions(engine), *_told(rl, engine, turn), _LOSS]
    found = phase_report(laid, told)
    return found.model_copy(update={"serving": serving(engine), "verdict": "oom" if engine.refusal else found.verdict})


def _asked(scenario: Scenario) -> tuple[Rl, Engine]:
    rl, given = scenario.rl, scenario.generation
    missing = [name for name, block in (("rl", rl), ("generation", given)) if block is None]
    if rl is None or given is None:
        raise InputError(Problem(scenario.where("workload"), f"grpo: missing the block {' and '.join(missing)}"))
    if rl.reference == "device":
        raise IllegalLayout(Problem(scenario.where("rl", "reference"), "reference: device: the reference policy lies "
                                    "on the host and is swapped in", "NeMo RL 7ea279ab models/automodel/setup.py "
                                    "setup_reference_model_state: a pinned copy in host memory"))
    engine = engine_of(scenario, given, topology_of(scenario), "library")
    if rl.prompt_tokens >= engine.max_model_len:
        raise InputError(Problem(scenario.where("rl", "prompt_tokens"), f"prompt_tokens: expected fewer than the "
                                 f"{engine.max_model_len:,} tokens of a sequence, got {rl.prompt_tokens:,}"))
    return rl, engine


def _num_steps(scenario: Scenario, sequences: int) -> int:
    """Optimizer steps on what was generated; whole batches on whole passes."""
    batch, mesh = scenario.training.global_batch_size or sequences, scenario.mesh
    assert scenario.rl is not None
    width = mesh.dp_replicate * mesh.dp_shard * scenario.rl.logprob_batch_size
    if sequences % batch:
        raise InputError(Problem(scenario.where("training", "global_batch_size"), f"global_batch_size: expected a "
                                 f"divisor of prompts x generations = {sequences}, got {batch}"))
    if sequences % width:
        raise InputError(Problem(scenario.where("rl", "logprob_batch_size"), f"logprob_batch_size: expected prompts x "
                                 f"generations = {sequences} to be a multiple of it times the data-parallel ranks, "
                                 f"{width}"))
    return sequences // batch


def _num_engines(scenario: Scenario, engine: Engine) -> int:
    """Engines beside each other: on all GPUs that train, or on those of their own."""
    if not engine.generation.colocated:
        beside = engine.generation.engines * engine.tp
        engine.topology.check_world_size(scenario.world_size + beside, scenario.where("generation", "engines"))
        return engine.generation.engines
    if scenario.world_size % engine.tp:
        raise InputError(Problem(scenario.where("generation", "tp"), f"tp: expected a divisor of {scenario.world_size} "
                                 f"ranks, got {engine.tp}"))
    return scenario.world_size // engine.tp


def _generate_ns(engine: Engine, rl: Rl, sequences: int) -> int:
    """Of one engine: as many at once as it lets in and its cache holds at full length, the rest after them."""
    most = max(1, min(engine.limits.seqs, math.floor(engine.cache.concurrency(engine.max_model_len))))
    full, left = divmod(sequences, most)
    whole, rest = (decode_seconds(engine, one, rl.prompt_tokens, engine.max_model_len) if one else 0.0
                   for one in (most, left))
    return round(1e9 * (full * whole + rest))


def _beside(turn: GrpoStep, journals: list[Journal], simulation: Simulation) -> Journal:
    """The GPUs that only generate."""
    slowest = max(journals, key=lambda one: sum(phase.ns for phase in one.phases))
    return engine_step(turn, simulation.topology, {phase.phase: phase.ns for phase in slowest.phases})


def _told(rl: Rl, engine: Engine, turn: GrpoStep) -> list[Assumption]:
    """How generation and refit are timed, and what a reference costs."""
    found = [
        Assumption(what="generation", value=f"every sequence goes from {rl.prompt_tokens:,} to "
                   f"{engine.max_model_len:,} tokens", kind="assumed", source="prompt_tokens and max_model_len; no "
                   "answer ends early, prefill takes no time"),
        Assumption(what="refit", value=f"gathers alone {turn.gathered.ns / 1e9:.3g} s", kind="assumed", source="one "
                   "tensor after the other, NeMo RL 7ea279ab dtensor_params_generator; packing by bytes"),
        Assumption(what="copies to and from the host", value="at the rate of pinned copies", kind="assumed",
                   source="module.to('cpu') is not pinned in NeMo RL 7ea279ab, and slower")]
    if engine.generation.colocated and engine.generation.sleep_level != 1:
        found.append(Assumption(what="generation.sleep_level", value=str(engine.generation.sleep_level), kind="assumed",
                                source="NeMo RL 7ea279ab vllm_worker.py:1309 always sleeps at level 1"))
    return found
