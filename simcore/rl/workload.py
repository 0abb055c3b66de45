"""The workloads `dpo` and `grpo`: a scenario becomes training steps, forward passes and an engine, phase by phase.

The simulation of a training step does not depend on phases: the training step is a separate scenario, a forward pass is
one with all tensors frozen (`forward.py`), the engine that generates is `simcore/vllm/`. Here they are derived from the
user's scenario, and put in order (`phases.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.registry import asked_adapter
from simcore.hardware.topology import Link
from simcore.inputs.generation import Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.job import topology_of
from simcore.results.report import Assumption, Report, TrafficRow
from simcore.rl import openrlhf_ppo, trl_grpo
from simcore.rl.engines import ENGINES, served
from simcore.rl.generating import check_ahead, check_lengths, generate_ns, rounds_of, sent_by_engine, told_of_lengths
from simcore.rl.report import Laid, phase_report
from simcore.rl.step.critic import Critics, check_critic, critics_of
from simcore.rl.step.forward import Passes, passes
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import GrpoStep, dpo_step, engine_step
from simcore.rl.step.policy import Policy, policy_of
from simcore.rl.step.refit import packed_bytes
from simcore.rl.step.traffic import (
    EVERY_AXIS,
    PACKED,
    Sent,
    of_copies,
    of_logprobs,
    of_passes,
    of_refit,
    of_steps,
    rows,
)
from simcore.rl.teacher import Taught, check_distillation, distillation_step, taught, teaching, told_of_teacher
from simcore.rl.time import Batch
from simcore.rl.trainers import check_worker, trainer_of
from simcore.rl.verl.reward import scorer_of, sent_by_scorer, told_of_scorer
from simcore.rl.verl.workers import made_of_logits
from simcore.simulation.simulation import Simulation, legal_simulation, placed_simulation
from simcore.simulation.step import Request, check_step, training_step
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.workload import serving

__all__ = ["in_phases", "legal"]

@dataclass(frozen=True, slots=True)
class _Own:
    """A step of a trainer apart from the others: its report, and its refusals."""

    grpo: Callable[[Scenario, Request], Report]
    legal: Callable[[Scenario], None]


_OWN: Final = {"trl": ("TRL", _Own(trl_grpo.grpo, trl_grpo.legal)),
               "openrlhf": ("OpenRLHF", _Own(openrlhf_ppo.grpo, openrlhf_ppo.legal))}
_PAIR = 2
"""Sequences of a preference, chosen and rejected (NeMo RL 7ea279ab `algorithms/dpo.py:602`: batch sizes doubled)."""


def in_phases(scenario: Scenario, *, series: bool, timed: bool = True) -> Report:
    """Report of one steady step of the workload `dpo` or `grpo`. `series`: it keeps memory over the step, for figures.

    `timed` False: memory only; phases of training and of forward passes take no time.

    Raises InputError, IllegalLayout and NotYet as the training step, the engine and NeMo RL's workers refuse.
    """
    own = _own_step(scenario)
    step = _dpo if scenario.workload == "dpo" else _grpo if own is None else own.grpo
    return step(scenario, Request(series=series, timed=timed))


def legal(scenario: Scenario) -> None:
    """Raises InputError, IllegalLayout or NotYet if the engine or a phase of a DPO or GRPO step refuses."""
    own = _own_step(scenario)
    if own is not None:
        own.legal(scenario)
        return
    if scenario.workload != "dpo":
        rl, engine = _asked(scenario)
        _num_engines(scenario, engine)
        check_critic(scenario, rl.prompts * rl.generations, apart=trainer_of(scenario).critic_apart)
        scorer_of(scenario, rl.prompts * rl.generations)
    if _is_taught(scenario):
        teaching(scenario)
    trained = _trained(scenario)
    _passes_of(scenario, _training(scenario))
    check_step(legal_simulation(trained))


def _own_step(scenario: Scenario) -> _Own | None:
    """Step of a trainer that has one of its own, None for others; NotYet for its other workloads."""
    if scenario.workload == "dpo" or scenario.rl is None or scenario.rl.trainer not in _OWN:
        return None
    name, own = _OWN[scenario.rl.trainer]
    if scenario.workload != "grpo":
        raise NotYet(Problem(scenario.where("rl", "trainer"), f"not yet: {scenario.workload} of {name} (served: grpo)"))
    return own


# ---- the scenarios inside --------------------------------------------------------------------------------------------
def _training(scenario: Scenario, **changed: Any) -> Scenario:
    """Scenario of the training step only, with other batch sizes; also of passes.

    Workers whose loss takes all tokens at once read logprob_chunk_size in passes alone, which are told it apart.
    """
    if not asked_adapter(scenario).chunks_loss:
        changed["logprob_chunk_size"] = None
    if _is_taught(scenario):
        changed["loss"] = "top_k"
    training = scenario.training.model_copy(update=changed)
    return scenario.model_copy(update={"workload": "train", "rl": None, "generation": None, "training": training})


def _is_taught(scenario: Scenario) -> bool:
    return scenario.workload == "distillation"


def _trained(scenario: Scenario) -> Scenario:
    """Scenario of the training step inside: of pairs, counted twice (dpo), or of a part of what is generated (grpo)."""
    if scenario.workload == "dpo":
        return _training(scenario, **_of_pairs(scenario))
    rl, _ = _asked(scenario)
    sequences = rl.prompts * rl.generations
    return _training(scenario, global_batch_size=sequences // _num_steps(scenario, sequences))


def _of_pairs(scenario: Scenario) -> dict[str, int | None]:
    """Batch sizes of DPO in sequences; InputError for a block `generation`."""
    if scenario.generation is not None:
        raise InputError(Problem(scenario.where("generation"), "generation: nothing is generated in dpo"))
    if scenario.rl is not None:
        raise InputError(Problem(scenario.where("rl"), "rl: changes nothing in dpo (the workload grpo reads it)"))
    training = scenario.training
    batch = training.global_batch_size
    return {"micro_batch_size": _PAIR * training.micro_batch_size,
            "global_batch_size": None if batch is None else _PAIR * batch}


def _passes_of(scenario: Scenario, passing: Scenario) -> Simulation:
    """Simulation of the forward passes; refused for workers other than those that are described."""
    simulation = placed_simulation(passing)
    check_worker(scenario, simulation)
    return simulation


def _policies(scenario: Scenario, trained: Report, forward: Passes, simulation: Simulation,
              steps: int) -> list[Policy]:
    """Policies of every class of ranks, in the report's order. `simulation`: that of the passes."""
    step_ns = round((trained.time.step_s if trained.time else 0.0) * 1e9)
    spread_ns = sum(one.ns for one in _spread(simulation)) if trained.time else 0
    ns = forward.total_ns(simulation.job.scenario.num_microbatches) + spread_ns, steps * step_ns
    plans = placed_simulation(_training(scenario)).plans
    return [policy_of(*each, simulation, ns) for each in zip(trained.ranks, plans, forward.rest, forward.above,
                                                             strict=True)]


def _forward(scenario: Scenario, simulation: Simulation, request: Request, *, in_place: bool) -> Passes:
    """Passes of a GRPO step, as a reference policy's are."""
    return passes(simulation, scenario.training.logprob_chunk_size, timed=request.timed, in_place=in_place,
                  beside=made_of_logits(scenario, own=False))


def _scored_apart(scenario: Scenario, policies: list[Policy], trained: Report, simulation: Simulation) -> list[Policy]:
    """Policies with the bytes of their own passes, where these make more of logits than those of a reference policy."""
    made = made_of_logits(scenario, own=True)
    if not made:
        return policies
    forward = passes(simulation, timed=False, in_place=True, beside=made)
    own = _policies(scenario, trained, forward, simulation, 1)
    return [replace(policy, scoring=other.passing) for policy, other in zip(policies, own, strict=True)]


def _spread(simulation: Simulation) -> list[Sent]:
    """Sends all log-probabilities to the other stages. `simulation`: that of the passes."""
    passing = simulation.job.scenario
    num_tokens = passing.num_microbatches * passing.training.micro_batch_size * passing.training.seq_len
    return list(of_logprobs(num_tokens, simulation.routes))


def _passed(forward: Passes, simulation: Simulation) -> list[tuple[TrafficRow, ...]]:
    """Rows of traffic of the passes of one policy, for each class of ranks; phases are "forward"."""
    spread = rows(_spread(simulation))
    return [(*found, *spread) for found in forward.traffic(simulation, simulation.job.scenario.num_microbatches)]


def _batch(passing: Scenario, per_sample: int, steps: int = 1, mean: int | None = None) -> Batch:
    """Amounts of a step of which `passing` are the forward passes; `per_sample`: sequences of a prompt or pair.

    `mean`: tokens of a sequence, None if all have as many as the training's.
    """
    mesh = passing.mesh
    sequences = passing.num_microbatches * passing.training.micro_batch_size * mesh.dp_replicate * mesh.dp_shard
    return Batch(steps, sequences, sequences // per_sample, mean or passing.training.seq_len)


# ---- DPO -------------------------------------------------------------------------------------------------------------
def _dpo(scenario: Scenario, request: Request) -> Report:
    passing = _training(scenario, **_of_pairs(scenario), recompute="none")
    simulation = _passes_of(scenario, passing)
    trained = training_step(_trained(scenario), request)
    forward = passes(simulation, scenario.training.logprob_chunk_size, timed=request.timed)
    policies = _policies(scenario, trained, forward, simulation, 1)
    journals = [dpo_step(policy, simulation.topology) for policy in policies]
    sent = [(*of_steps(rank.traffic, 1), *of_passes(passed, "reference"), *of_copies(journal, simulation.topology))
            for rank, passed, journal in zip(trained.ranks, _passed(forward, simulation),
                                             journals, strict=True)]
    further = [Assumption(what="training.micro_batch_size, global_batch_size", value="counted in pairs, doubled to "
                       "sequences", kind="derived", source="NeMo RL 7ea279ab algorithms/dpo.py:602"),
            Assumption(what="reference policy", value="on the host, swapped in for its pass", kind="derived",
                       source="NeMo RL 7ea279ab dtensor_policy_worker_v2.py use_reference_model"), *_loss(simulation)]
    return phase_report(Laid(scenario, trained, tuple(journals), tuple(sent), simulation, _batch(passing, _PAIR)),
                        further)


_LOSS = Assumption(what="training.loss", value="a cross entropy stands in for the loss of log-probabilities",
                   kind="assumed", source="NeMo RL 7ea279ab distributed/model_utils.py get_next_token_logprobs_from_"
                   "logits: log_softmax over fp32 logits too, and a gather in the place of nll_loss")


def _loss(simulation: Simulation) -> tuple[Assumption, ...]:
    """Nothing stands in for the loss where it is made of log-probabilities in chunks."""
    return () if simulation.job.scenario.training.logprob_chunk_size is not None else (_LOSS,)


# ---- GRPO ------------------------------------------------------------------------------------------------------------
def _grpo(scenario: Scenario, request: Request) -> Report:
    rl, engine = _asked(scenario)
    sequences = rl.prompts * rl.generations
    steps, engines = rl.epochs * _num_steps(scenario, sequences), _num_engines(scenario, engine)
    each = 1 if _is_taught(scenario) else rl.logprob_batch_size  # the student makes no pass, and rests as in one
    passing = _training(scenario, micro_batch_size=each, global_batch_size=sequences, recompute="none")
    simulation = _passes_of(scenario, passing)
    trained = training_step(_trained(scenario), request)
    trainer = trainer_of(scenario, simulation.framework.strategy.rl_worker)
    forward = _forward(scenario, simulation, request, in_place=trainer.in_place)
    policies = _scored_apart(scenario, _policies(scenario, trained, forward, simulation, steps), trained, simulation)
    critics = critics_of(scenario, sequences, request, simulation, apart=trainer.critic_apart)
    engine = engine.beside(max(trainer.occupied(rl, *pair) for pair in zip(policies, critics.critics, strict=True)))
    weights = trainer.sent(scenario, simulation.stage_plans, simulation.routes)
    rounds = rounds_of(engine, rl, -(-(rl.generated_prompts or rl.prompts) * rl.generations // engines))
    link, broadcast = _engine_link(scenario, engine), list(_broadcast(scenario, engine, weights.total))
    teachers = taught(scenario, simulation, timed=request.timed) if _is_taught(scenario) else []
    step = GrpoStep(engine, weights, rl.reference != "none",
                    generate_ns(engine, rl, rounds, link), rl.refit_buffer,
                    sum(one.ns for one in broadcast), scores_policy=not (rl.on_policy_ratio or teachers),
                    chunks=rl.chunks, offloads_states=rl.optimizer_offload, scorer=scorer_of(scenario, sequences),
                    buffers=ENGINES[engine.generation.engine].buffers)
    journals = (stepped := _stepped(scenario, simulation, policies, teachers, critics))(step)
    if rl.asynchronous:
        step = replace(step, generate_ns=max(0, step.generate_ns - _busy_ns(journals)), asynchronous=True)
        journals = stepped(step)
    beside = None if engine.generation.colocated else _beside(step, journals, simulation)
    engine_rows = rows([*broadcast, *sent_by_engine(engine, rl, rounds, link)])
    own = (*rows([*of_refit(weights, simulation.routes), *broadcast, *sent_by_scorer(
        step.scorer, scenario.training.seq_len, scenario.world_size)]), *(() if beside else engine_rows))
    passed = _passed(forward, simulation)
    sent = [(*of_steps(rank.traffic, steps), *own, *_scored(passed[i], step), *(teachers[i].sent if teachers else ()),
             *critics.sent[i], *of_copies(journals[i], simulation.topology)) for i, rank in enumerate(trained.ranks)]
    batch = _batch(passing, rl.generations, steps, rl.mean_tokens)
    laid = Laid(scenario, trained, tuple(journals), tuple(sent), simulation, batch, beside,
                engines * engine.tp if beside else 0, engine_rows)
    further = [*ENGINES[engine.generation.engine].told(engine), *_told(scenario, rl, engine),
               *trainer.told(rl, engine, step), *told_of_scorer(step.scorer),
               *(told_of_teacher(scenario, teachers) if teachers else () if trainer.in_place else _loss(simulation))]
    return _with_engine(phase_report(laid, further), engine)


def _with_engine(report: Report, engine: InferenceEngine) -> Report:
    """Report with the engine's memory; one that does not start is out of memory."""
    return report.model_copy(update={"serving": serving(engine),
                                     "verdict": "oom" if engine.refusal else report.verdict})


def _stepped(scenario: Scenario, simulation: Simulation, policies: Sequence[Policy],
             teachers: Sequence[Taught], critics: Critics) -> Callable[[GrpoStep], list[Journal]]:
    """Journals of a step for each class of ranks. `simulation`: of the policy's passes."""
    if teachers:
        return lambda step: [distillation_step(policy, step, teacher, simulation)
                             for policy, teacher in zip(policies, teachers, strict=True)]
    one = trainer_of(scenario, simulation.framework.strategy.rl_worker).step(scenario, simulation, simulation.plans[0])
    return lambda step: [one(policy, replace(step, critic=critic))
                         for policy, critic in zip(policies, critics.critics, strict=True)]


def _busy_ns(journals: list[Journal]) -> int:
    """Time in ns in which the slowest ranks that train do not wait for sequences or for weights to be sent."""
    return max(sum(phase.ns for phase in journal.phases if phase.phase not in ("refit", "generation"))
               for journal in journals)


def _asked(scenario: Scenario) -> tuple[Rl, InferenceEngine]:
    rl, generation = scenario.rl, scenario.generation
    missing = [name for name, block in (("rl", rl), ("generation", generation)) if block is None]
    if rl is None or generation is None:
        raise InputError(Problem(scenario.where("workload"), f"{scenario.workload}: missing the block "
                                 f"{' and '.join(missing)}"))
    if _is_taught(scenario):
        check_distillation(scenario, distils=trainer_of(scenario).distils)
    if rl.asynchronous and generation.colocated:
        raise IllegalLayout(Problem(scenario.where("rl", "asynchronous"), "asynchronous: true with an engine on GPUs "
                                    "that train", "NeMo RL 7ea279ab algorithms/grpo.py:4179: Colocated async GRPO is "
                                    "only supported for the Megatron generation backend"))
    _check_answered(scenario, rl)
    engine = served(scenario, generation).make(scenario, generation, topology_of(scenario), trainer_of(scenario).use)
    check_lengths(scenario, rl, engine)
    check_ahead(scenario, rl)
    return rl, engine


def _check_answered(scenario: Scenario, rl: Rl) -> None:
    at = scenario.where("rl", "generated_prompts")
    if rl.generated_prompts is not None and rl.asynchronous:
        raise NotYet(Problem(at, "not yet: prompts that are answered and not kept, in an asynchronous run"))
    if rl.generated_prompts is not None and rl.generated_prompts < rl.prompts:
        raise InputError(Problem(at, f"generated_prompts: expected at least the {rl.prompts:,} prompts that are kept, "
                                 f"got {rl.generated_prompts:,}"))


def _num_steps(scenario: Scenario, sequences: int) -> int:
    """Optimizer steps on the generated sequences; batches and passes must divide evenly."""
    batch, mesh = scenario.training.global_batch_size or sequences, scenario.mesh
    assert scenario.rl is not None
    width = mesh.dp_replicate * mesh.dp_shard * (1 if _is_taught(scenario) else scenario.rl.logprob_batch_size)
    if sequences % batch:
        raise InputError(Problem(scenario.where("training", "global_batch_size"), f"global_batch_size: expected a "
                                 f"divisor of prompts x generations = {sequences}, got {batch}"))
    if batch != sequences and scenario.rl.on_policy_ratio:
        raise IllegalLayout(Problem(scenario.where("rl", "on_policy_ratio"), f"on_policy_ratio: true with steps of "
                                    f"{batch} of {sequences} sequences", "NeMo RL 7ea279ab algorithms/grpo.py:705: "
                                    "force_on_policy_ratio requires train_global_batch_size == num_prompts_per_step * "
                                    "num_generations_per_prompt"))
    if sequences % width:
        raise InputError(Problem(scenario.where("rl", "logprob_batch_size"), f"logprob_batch_size: expected prompts x "
                                 f"generations = {sequences} to be a multiple of it times the data-parallel ranks, "
                                 f"{width}"))
    return sequences // batch


def _num_engines(scenario: Scenario, engine: InferenceEngine) -> int:
    """Number of engines: on all GPUs that train, or on separate ones."""
    if not engine.generation.colocated:
        num_gpus = engine.generation.engines * engine.tp
        engine.topology.check_world_size(scenario.world_size + num_gpus, scenario.where("generation", "engines"))
        return engine.generation.engines
    if scenario.world_size % engine.tp:
        raise InputError(Problem(scenario.where("generation", "tp"), f"tp: expected a divisor of {scenario.world_size} "
                                 f"ranks, got {engine.tp}"))
    return scenario.world_size // engine.tp


def _broadcast(scenario: Scenario, engine: InferenceEngine, num_bytes: int) -> Iterator[Sent]:
    """Broadcasts of all weights, from one rank to all that train and all that generate; none on shared GPUs."""
    if engine.generation.colocated:
        return
    topology, size = engine.topology, scenario.world_size + engine.generation.engines * engine.tp
    each = packed_bytes(topology.device.usable_bytes)
    full, last = divmod(num_bytes, each)
    for number, num_calls in ((each, full), (last, 1)):
        yield Sent("broadcast", EVERY_AXIS, size, topology.link(size, 1, size), "refit", PACKED, number, num_calls)


def _engine_link(scenario: Scenario, engine: InferenceEngine) -> Link:
    """Link among an engine's ranks, which are neighbours."""
    generation = engine.generation
    size = scenario.world_size if generation.colocated else scenario.world_size + generation.engines * engine.tp
    return engine.topology.link(engine.tp, 1, size)


def _scored(passed: Iterable[TrafficRow], step: GrpoStep) -> Iterator[TrafficRow]:
    """Forward passes of the policy, and of the reference policy, as far as the step has them."""
    found = tuple(passed)
    if step.scores_policy:
        yield from of_passes(found, "logprob")
    if step.has_reference:
        yield from of_passes(found, "reference")


def _beside(step: GrpoStep, journals: list[Journal], simulation: Simulation) -> Journal:
    """Journal of the GPUs that only generate."""
    slowest = max(journals, key=lambda journal: sum(phase.ns for phase in journal.phases))
    return engine_step(step, simulation.topology, {phase.phase: phase.ns for phase in slowest.phases})


def _told(scenario: Scenario, rl: Rl, engine: InferenceEngine) -> list[Assumption]:
    """Assumptions on the time of generation, and of copies."""
    return [
        *told_of_lengths(rl, engine, scenario.training.seq_len),
        Assumption(what="copies to and from the host", value="at the rate of pinned copies", kind="assumed",
                   source="module.to('cpu') is not pinned in NeMo RL 7ea279ab and in verl b178a3cd, and slower")]
