"""A step of OpenRLHF's PPO, GRPO or REINFORCE++: from a scenario to models and an engine, and to their report.

The estimator of advantages changes no number but for the critic, which PPO alone has: what is made of rewards and
log-probabilities is on the CPU (OpenRLHF 0.11.0 `trainer/ppo_utils/experience_maker.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.hardware.topology import Link
from simcore.inputs.generation import Generation, Rl
from simcore.inputs.scenario import Scenario
from simcore.operators.shared.wide_losses import POLICY
from simcore.placement.job import topology_of
from simcore.results.report import Assumption, Report, TrafficRow
from simcore.rl.generating import check_lengths, generate_ns, rounds_of, sent_by_engine, told_of_lengths
from simcore.rl.openrlhf.checks import check
from simcore.rl.openrlhf.models import Model, Trained, on_ranks_of, scoring, trained, without_optimizer
from simcore.rl.openrlhf.step import Team, engine_journal, openrlhf_step
from simcore.rl.openrlhf.sync import Sync, sync_of
from simcore.rl.report import Laid, phase_report
from simcore.rl.step.critic import merged
from simcore.rl.step.traffic import of_copies, of_passes, of_refit, of_steps, rows
from simcore.rl.time import Batch
from simcore.simulation.simulation import legal_simulation, placed_simulation
from simcore.simulation.step import Request, check_step
from simcore.vllm.engine import Engine
from simcore.vllm.workload import assumptions, engine_of, serving

__all__ = ["grpo", "legal"]

_SOURCE: Final = "OpenRLHF 0.11.0 trainer/ppo_trainer.py"
_UTILIZATION: Final = 0.95
"""Default of `--vllm.gpu_memory_utilization` (OpenRLHF 0.11.0 `cli/train_ppo_ray.py`:250)."""
_MOST_TOKENS, _MOST_SEQUENCES = 2048, 128
"""Limits of a vLLM engine that neither its class LLM nor its server makes (OpenRLHF: AsyncLLM).

vLLM 0.12.0 `config/scheduler.py` DEFAULT_MAX_NUM_BATCHED_TOKENS and DEFAULT_MAX_NUM_SEQS, by `engine/arg_utils.py`
_set_default_max_num_seqs_and_batched_tokens_args.
"""
_VALUES: Final = "values"
T = TypeVar("T")
_Beside = list[tuple[Model, tuple[TrafficRow, ...]]]


@dataclass(frozen=True, eq=False)
class _Asked:
    """A checked scenario, and its blocks; `sequences`: of a step, `batch`: of an optimizer step."""

    scenario: Scenario
    rl: Rl
    generation: Generation
    sequences: int
    batch: int

    @property
    def steps(self) -> int:
        """Optimizer steps of a step."""
        return self.rl.epochs * self.sequences // self.batch

    def training(self, **changed: Any) -> Scenario:
        """Scenario of an optimizer step of the policy."""
        loss = self.scenario.training.loss
        return self._with({"loss": POLICY[0] if loss == "auto" else loss, "global_batch_size": self.batch, **changed})

    def passing(self, **changed: Any) -> Scenario:
        """Scenario of the policy's passes over all sequences."""
        return self.training(global_batch_size=self.sequences, micro_batch_size=self.rl.logprob_batch_size,
                             recompute="none", **changed)

    def _with(self, changed: dict[str, Any]) -> Scenario:
        training = self.scenario.training.model_copy(update=changed)
        return self.scenario.model_copy(update={"workload": "train", "rl": None, "generation": None,
                                                "training": training})

    def of_values(self, scenario: Scenario, model: str | None) -> Scenario:
        """The same of a model of values, which is the policy's if it is not given."""
        training = scenario.training.model_copy(update={"loss": _VALUES})
        return scenario.model_copy(update={"training": training, "model": model or scenario.model})


def _asked(scenario: Scenario) -> _Asked:
    rl, generation = scenario.rl, scenario.generation
    missing = [name for name, block in (("rl", rl), ("generation", generation)) if block is None]
    if rl is None or generation is None:
        raise InputError(Problem(scenario.where("workload"), f"grpo: missing the block {' and '.join(missing)}"))
    check(scenario, rl, generation)
    sequences, mesh = rl.prompts * rl.generations, scenario.mesh
    batch = scenario.training.global_batch_size or sequences
    if sequences % batch:
        raise InputError(Problem(scenario.where("training", "global_batch_size"), "global_batch_size: expected a "
                                 f"divisor of prompts x generations = {sequences:,}, got {batch:,}"))
    width = mesh.dp_replicate * mesh.dp_shard * rl.logprob_batch_size
    if sequences % width:
        raise InputError(Problem(scenario.where("rl", "logprob_batch_size"), "logprob_batch_size: expected prompts x "
                                 f"generations = {sequences:,} to be a multiple of it times the ranks, {width:,}"))
    return _Asked(scenario, rl, generation, sequences, batch)


def legal(scenario: Scenario) -> None:
    """Raises InputError, IllegalLayout or NotYet if the trainer, the engine or a model of the step refuses."""
    asked = _asked(scenario)
    _engine(asked)
    placed_simulation(asked.passing())
    check_step(legal_simulation(asked.training()))
    critic, reward = asked.rl.critic, asked.rl.reward
    if critic is not None:
        _placed(scenario, "critic", lambda: check_step(legal_simulation(asked.of_values(asked.training(),
                                                                                        critic.model))))
    if reward is not None:
        _placed(scenario, "reward", lambda: placed_simulation(asked.of_values(asked.passing(), reward.model)))


def _placed(scenario: Scenario, name: str, made: Callable[[], T]) -> T:
    """Returns what `made` does; problems are those of the block `name` of `rl`."""
    try:
        return made()
    except (InputError, IllegalLayout, NotYet) as error:
        raise type(error)([replace(one, where=scenario.where("rl", name), message=f"{name}: {one.message}")
                           for one in error.problems]) from None


def grpo(scenario: Scenario, request: Request) -> Report:
    """Report of one steady step. Raises as `legal`."""
    asked = _asked(scenario)
    engine, rl = _engine(asked), asked.rl
    policy = trained(asked.training(), asked.passing(), asked.steps, request, sleeps=rl.optimizer_offload)
    critics, rewards = _critics(asked, policy, request), _rewards(asked, policy, request)
    simulation = policy.simulation
    sync = sync_of(scenario, simulation.plans[0], simulation.routes, engine)
    engines = scenario.world_size // engine.tp if engine.generation.colocated else engine.generation.engines
    lengths = replace(engine, max_model_len=scenario.training.seq_len)
    generated = (rl.generated_prompts or rl.prompts) * rl.generations
    rounds, link = rounds_of(lengths, rl, -(-generated // engines)), _link(scenario, engine)
    ns = generate_ns(lengths, rl, rounds, link)
    journals = []
    for number, model in enumerate(policy.models):
        reference = without_optimizer(model) if rl.reference != "none" else None
        team = Team(model, reference, critics[number][0] if critics else None,
                    rewards[number][0] if rewards else None)
        journals.append(openrlhf_step(team, engine, sync, ns, simulation.topology))
    generation_rows = rows([*sync.broadcast, *sent_by_engine(lengths, rl, rounds, link)])
    shared = generation_rows if engine.generation.colocated else rows(sync.broadcast)
    sent = [(*of_steps(rank.traffic, asked.steps), *shared, *rows(of_refit(sync.weights, simulation.routes)),
             *_passed(asked, policy, number), *_sent(critics, number), *_sent(rewards, number),
             *of_copies(journals[number], simulation.topology)) for number, rank in enumerate(policy.report.ranks)]
    batch = Batch(asked.steps, asked.sequences, rl.prompts, rl.mean_tokens or scenario.training.seq_len)
    beside, count = None, 0
    if not engine.generation.colocated:
        slowest = max(journals, key=lambda journal: sum(phase.ns for phase in journal.phases))
        beside = engine_journal(engine, sync, {phase.phase: phase.ns for phase in slowest.phases})
        count = engines * engine.tp
    laid = Laid(scenario, policy.report, tuple(journals), tuple(sent), simulation, batch, beside, count,
                generation_rows, source=f"{_SOURCE}, see simcore/rl/openrlhf/step.py")
    report = phase_report(laid, list(_told(asked, engine, lengths, sync)))
    return report.model_copy(update={"serving": serving(engine), "verdict": "oom" if engine.refusal else
                                     report.verdict})


# ---- models beside the policy ----------------------------------------------------------------------------------------
def _critics(asked: _Asked, policy: Trained, request: Request) -> _Beside:
    """The critic on each class of the policy's ranks, and what it sends; empty without one."""
    critic = asked.rl.critic
    if critic is None:
        return []
    found = _placed(asked.scenario, "critic", lambda: trained(
        asked.of_values(asked.training(), critic.model), asked.of_values(asked.passing(), critic.model), asked.steps,
        replace(request, series=False), sleeps=asked.rl.optimizer_offload))
    sent = [(*of_passes(made, "values"), *merged(of_passes(of_steps(rank.traffic, asked.steps), "critic")))
            for made, rank in zip(found.passed(), found.report.ranks, strict=True)]
    return on_ranks_of(policy.simulation, found.simulation, found.models, sent)


def _rewards(asked: _Asked, policy: Trained, request: Request) -> _Beside:
    """The reward model on each class of the policy's ranks, and what it sends; empty without one."""
    reward = asked.rl.reward
    if reward is None:
        return []
    simulation, models, sent = _placed(asked.scenario, "reward", lambda: scoring(
        asked.of_values(asked.passing(), reward.model), [model.outside for model in policy.models], request))
    return on_ranks_of(policy.simulation, simulation, models, [tuple(of_passes(made, "reward")) for made in sent])


def _passed(asked: _Asked, policy: Trained, number: int) -> Iterator[TrafficRow]:
    """Rows of the passes of the policy, and of the reference model."""
    found = policy.passed()[number]
    yield from of_passes(found, "logprob")
    if asked.rl.reference != "none":
        yield from of_passes(found, "reference")


def _sent(beside: Sequence[tuple[Model, tuple[TrafficRow, ...]]], number: int) -> tuple[TrafficRow, ...]:
    return beside[number][1] if beside else ()


# ---- the engine ------------------------------------------------------------------------------------------------------
def _engine(asked: _Asked) -> Engine:
    """Engine of vLLM as the trainer starts it."""
    scenario, given = asked.scenario, asked.generation
    usual = {"gpu_memory_utilization": _UTILIZATION, "sleep_level": 0, "max_num_batched_tokens": _MOST_TOKENS,
             "max_num_seqs": _MOST_SEQUENCES, "prefix_caching": False}
    told = given.model_copy(update={name: value for name, value in usual.items()
                                    if name not in given.model_fields_set})
    engine = engine_of(scenario, told, topology_of(scenario), "library")
    check_lengths(scenario, asked.rl, engine)
    if not given.colocated:
        size = scenario.world_size + given.engines * given.tp
        engine.topology.check_world_size(size, scenario.where("generation", "engines"))
    return engine


def _link(scenario: Scenario, engine: Engine) -> Link:
    """Link among an engine's ranks, which are neighbours."""
    given = engine.generation
    size = scenario.world_size if given.colocated else scenario.world_size + given.engines * engine.tp
    return engine.topology.link(engine.tp, 1, size)


# ---- what is assumed -------------------------------------------------------------------------------------------------
def _told(asked: _Asked, engine: Engine, lengths: Engine, sync: Sync) -> Iterator[Assumption]:
    rl, note = asked.rl, partial(Assumption, source=_SOURCE)
    yield from assumptions(engine)
    yield from told_of_lengths(rl, lengths, lengths.max_model_len)
    yield note(what="loss of the policy", value="a few numbers of 4 bytes for each token are not counted; logits are "
               "held until backward is over, and not until the optimizer's step is", kind="assumed")
    yield note(what="refit", value=f"{len(sync.broadcast) or 'one'} sizes of tensors, one call for each parameter; "
               "calls of Ray and barriers between them take no time", kind="assumed")
    yield note(what="start of vLLM", value="before the models, so that its cache has all that "
               "gpu_memory_utilization leaves", kind="derived")
    if rl.critic is not None:
        yield note(what="rl.critic", value="every token has a value in the loss, which is counted as verl's; the MFU "
                   "counts the policy's training alone", kind="assumed")
        if not rl.optimizer_offload:
            yield note(what="policy and critic", value="train at once, and take turns on the GPU", kind="assumed")
