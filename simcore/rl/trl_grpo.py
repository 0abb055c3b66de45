"""A step of TRL's GRPO: from a scenario to training steps, passes and an engine, and to their report.

The simulation of a training step does not depend on phases: it is a scenario of its own, whose loss is TRL's head;
passes are of the same model with other sizes. The engine is vLLM's, or the policy itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from simcore.errors import IllegalLayout, InputError, Problem
from simcore.frameworks.trl_releases import Release, release_of
from simcore.hardware.topology import Link
from simcore.inputs.generation import Generation, Rl
from simcore.inputs.scenario import Scenario
from simcore.placement.job import topology_of
from simcore.results.report import Assumption, Report, TrafficRow
from simcore.rl.generating import generate_ns, rounds_of, sent_by_engine, told_of_lengths
from simcore.rl.report import Laid, phase_report
from simcore.rl.step.forward import passes
from simcore.rl.step.journal import Journal
from simcore.rl.step.traffic import EVERY_AXIS, PACKED, Sent, of_copies, of_passes, of_refit, of_steps, rows
from simcore.rl.time import Batch
from simcore.rl.trl.amounts import Amounts, amounts_of
from simcore.rl.trl.checks import TRANSFORMERS, check
from simcore.rl.trl.policy import generating, held_of, summons_of, whole_bytes, without
from simcore.rl.trl.reference import reference_of
from simcore.rl.trl.step import Turn, server_step, trl_step
from simcore.rl.trl.sync import packed, synced, tensors_of
from simcore.simulation.simulation import Simulation, legal_simulation, placed_simulation
from simcore.simulation.step import Request, check_step, training_step
from simcore.vllm.engine import Engine
from simcore.vllm.workload import assumptions, engine_of, serving

__all__ = ["grpo", "legal"]

_SOURCE: Final = "trainer/grpo_trainer.py"
_UTILIZATION: Final = {True: 0.3, False: 0.9}
"""Shares of memory: vllm_gpu_memory_utilization (`trainer/grpo_config.py`), and a server's (vLLM's default)."""
_MOST_TOKENS: Final = 4096
"""max_num_batched_tokens of a colocated engine (`generation/vllm_generation.py`:359)."""


@dataclass(frozen=True, eq=False)
class _Asked:
    """A checked scenario: its blocks, amounts, and the scenarios of a training step and of passes."""

    scenario: Scenario
    rl: Rl
    generation: Generation
    amounts: Amounts

    @property
    def release(self) -> Release:
        """Release of TRL that runs the step."""
        return release_of(self.rl.version)

    @property
    def aligned(self) -> bool:
        """True if the policy's own pass is left out but to correct vLLM's."""
        return not self.release.needs_scores(self.amounts.batch, self.amounts.generated, self.rl.epochs)

    @property
    def trained(self) -> Scenario:
        """Scenario of an optimizer step."""
        return self._training(global_batch_size=self.amounts.batch,
                              loss=self.release.loss_beside(reference=self.rl.reference != "none"))

    @property
    def passing(self) -> Scenario:
        """Scenario of passes over all that is generated at once."""
        return self._training(global_batch_size=self.amounts.generated, recompute="none", loss=self.release.loss)

    def _training(self, **changed: Any) -> Scenario:
        training = self.scenario.training.model_copy(update={
            "scored_tokens": self.amounts.new, **changed})
        return self.scenario.model_copy(update={"workload": "train", "rl": None, "generation": None,
                                                "training": training})


def _asked(scenario: Scenario) -> _Asked:
    rl, generation = scenario.rl, scenario.generation
    if rl is None or generation is None:
        missing = [name for name, block in (("rl", rl), ("generation", generation)) if block is None]
        raise InputError(Problem(scenario.where("workload"), f"grpo: missing the block {' and '.join(missing)}"))
    if scenario.training.scored_tokens is not None:
        raise InputError(Problem(scenario.where("training", "scored_tokens"), "scored_tokens: prompt_tokens and "
                                 "seq_len say them"))
    amounts = amounts_of(scenario, rl)
    check(scenario, rl, generation, amounts)
    return _Asked(scenario, rl, generation, amounts)


def legal(scenario: Scenario) -> None:
    """Raises InputError, IllegalLayout or NotYet if the trainer, the engine or a phase of the step refuses."""
    asked = _asked(scenario)
    if asked.generation.engine != TRANSFORMERS:
        _engine(asked)
    placed_simulation(asked.passing)
    check_step(legal_simulation(asked.trained))


def grpo(scenario: Scenario, request: Request) -> Report:
    """Report of one steady step. Raises as `legal`."""
    asked = _asked(scenario)
    amounts, rl = asked.amounts, asked.rl
    trained = training_step(asked.trained, request)
    simulation = placed_simulation(asked.passing)
    forward = passes(simulation, timed=request.timed, in_place=True, trains=True)
    num = simulation.job.scenario.num_microbatches
    step_ns = round((trained.time.step_s if trained.time else 0.0) * 1e9)
    held = held_of(trained, forward, simulation, (amounts.cycles * forward.total_ns(num), amounts.steps * step_ns))
    references = [reference_of(scenario, rl, one, plan, simulation)
                  for one, plan in zip(held, simulation.plans, strict=True)]
    held = [without(one, reference.rest) if reference is not None and reference.within else one
            for one, reference in zip(held, references, strict=True)]
    turn, engine_rows, broadcast = _turn(asked, simulation, request)
    journals = [trl_step(one, reference, turn, simulation.topology)
                for one, reference in zip(held, references, strict=True)]
    passed = forward.traffic(simulation, num)
    own = rows([*of_refit(turn.weights, simulation.routes), *broadcast])
    shared = engine_rows if turn.shares else ()
    sent = [(*of_steps(rank.traffic, amounts.steps), *own, *shared, *_scored(passed[i], turn, rl, amounts.cycles),
             *of_copies(journals[i], simulation.topology)) for i, rank in enumerate(trained.ranks)]
    batch = Batch(amounts.steps, amounts.sequences, amounts.sequences // rl.generations,
                  rl.mean_tokens or scenario.training.seq_len)
    laid = Laid(scenario, trained, tuple(journals), tuple(sent), simulation, batch,
                *_served(asked, turn, journals, engine_rows),
                source=f"TRL {asked.release.name}, see simcore/rl/trl/step.py")
    report = phase_report(laid, list(_told(asked, turn)))
    if turn.engine is None:
        return report
    return report.model_copy(update={"serving": serving(turn.engine),
                                     "verdict": "oom" if turn.engine.refusal else report.verdict})


def _scored(passed: Sequence[TrafficRow], turn: Turn, rl: Rl, cycles: int) -> Iterator[TrafficRow]:
    """Rows of the passes of the policy, and of the reference model, as far as the step has them."""
    refers = rl.reference != "none" and not release_of(rl.version).refers_within
    for phase, made in (("logprob", turn.scores), ("reference", refers)):
        if made:
            yield from of_passes(of_steps(passed, cycles), phase)


def _served(asked: _Asked, turn: Turn, journals: Sequence[Journal],
            engine_rows: tuple[TrafficRow, ...]) -> tuple[Journal | None, int, tuple[TrafficRow, ...]]:
    """Journal of a server's GPUs, their number, and what each sends; None without a server."""
    if turn.engine is None or turn.shares:
        return None, 0, ()
    slowest = max(journals, key=lambda journal: sum(phase.ns for phase in journal.phases))
    waiting = {phase.phase: phase.ns for phase in slowest.phases}
    return server_step(turn, turn.engine, waiting), asked.generation.engines * turn.engine.tp, engine_rows


# ---- the engine ------------------------------------------------------------------------------------------------------
def _engine(asked: _Asked) -> Engine:
    """Engine of vLLM as the trainer starts it, or of a server that it is told of."""
    scenario, given = asked.scenario, asked.generation
    colocated, amounts = given.colocated, asked.amounts
    each = amounts.per_rank if asked.release.by_generation else amounts.batch * amounts.per_rank // amounts.generated
    most = {"max_num_batched_tokens": _MOST_TOKENS} if asked.release.limits else {}
    usual = {"gpu_memory_utilization": _UTILIZATION[colocated], "sleep_level": 0,
             **({**most, "max_num_seqs": each * given.tp} if colocated else {})}
    told = given.model_copy(update={name: value for name, value in usual.items()
                                    if name not in given.model_fields_set})
    engine = engine_of(scenario, told, topology_of(scenario), "library" if colocated else "server")
    if scenario.training.seq_len > engine.max_model_len:
        raise IllegalLayout(Problem(scenario.where("generation", "max_model_len"), f"max_model_len: expected the "
                                    f"{scenario.training.seq_len:,} tokens of a prompt and its answer or more, got "
                                    f"{engine.max_model_len:,}", "vLLM 0.12.0 v1/engine/processor.py: prompts and "
                                    "answers that are longer"))
    if not colocated:
        size = scenario.world_size + given.engines * given.tp
        engine.topology.check_world_size(size, scenario.where("generation", "engines"))
    return engine


def _turn(asked: _Asked, simulation: Simulation,
          request: Request) -> tuple[Turn, tuple[TrafficRow, ...], list[Sent]]:
    """Turn of a step, rows that an engine's ranks send, and the broadcasts of a server."""
    scenario, amounts, rl = asked.scenario, asked.amounts, asked.rl
    scores = not rl.on_policy_ratio and not (asked.generation.engine == TRANSFORMERS and asked.aligned)
    if asked.generation.engine == TRANSFORMERS:
        gathers = summons_of(scenario).whole_as and rl.gather_for_generation
        own = generating(asked.trained, amounts, whole_bytes(simulation) if gathers else 0, timed=request.timed)
        return Turn(amounts.cycles, own.ns, scores, own=own), (), []
    engine = _engine(asked)
    if engine.generation.colocated:
        engine = engine.beside(_occupied(scenario, simulation))
    plan = simulation.plans[0]
    weights = synced(scenario, plan, simulation.routes)
    engines = asked.generation.engines if not engine.generation.colocated else scenario.world_size // engine.tp
    lengths = replace(engine, max_model_len=scenario.training.seq_len)
    rounds = rounds_of(lengths, rl, -(-amounts.generated // engines))
    link = _link(scenario, engine)
    sizes = tensors_of(plan)
    broadcast = list(_broadcast(scenario, engine, packed(weights.total) if asked.release.packs else sizes))
    rate = simulation.topology.device.memory_bandwidth.si * simulation.topology.efficiency.kernels.copy_.memory.si
    moved = round((weights.total + engine.weight_bytes * engine.tp) / rate * 1e9)
    ns = generate_ns(lengths, rl, rounds, link)
    turn = Turn(amounts.cycles, ns, scores, engine, weights=weights, moved_ns=moved,
                broadcast_ns=sum(one.ns for one in broadcast), packs=asked.release.packs)
    sent = [replace(one, num_calls=one.num_calls * amounts.cycles)
            for one in sent_by_engine(lengths, rl, rounds, link)]
    return turn, rows(sent), broadcast


def _occupied(scenario: Scenario, simulation: Simulation) -> int:
    """Bytes on a GPU when the engine starts: the model, unless FSDP has yet to place it.

    transformers 5.23.0 `trainer.py` place_model_on_device; ZeRO 3 reads parts. Under ZeRO 1 and 2 it may be away still.
    """
    if summons_of(scenario).placed_late:
        return 0
    plan = simulation.plans[0]
    return sum(count * placed.rest_bytes for kind, count in plan.kind_counts for placed in plan.kinds[kind])


def _link(scenario: Scenario, engine: Engine) -> Link:
    """Link among an engine's ranks, which are neighbours."""
    given = engine.generation
    size = scenario.world_size if given.colocated else scenario.world_size + given.engines * engine.tp
    return engine.topology.link(engine.tp, 1, size)


def _broadcast(scenario: Scenario, engine: Engine, sizes: Sequence[tuple[int, int]]) -> Iterator[Sent]:
    """Broadcasts of all weights from rank 0 to a server's ranks, (bytes, number) of each; none on shared GPUs."""
    if engine.generation.colocated:
        return
    size = 1 + engine.generation.engines * engine.tp
    link = engine.topology.link(size, 1, scenario.world_size - 1 + size)
    for number, num_calls in sizes:
        yield Sent("broadcast", EVERY_AXIS, size, link, "refit", PACKED, number, num_calls)


# ---- what is assumed -------------------------------------------------------------------------------------------------
def _told(asked: _Asked, turn: Turn) -> Iterator[Assumption]:
    scenario, rl, amounts = asked.scenario, asked.rl, asked.amounts
    note = partial(Assumption, source=f"TRL {asked.release.name} {_SOURCE}")
    yield note(what="tokens that the loss scores", value=f"{amounts.new:,} of each sequence; a few numbers of 4 bytes "
               "for each of them, and the loss of these, are not counted", kind="assumed")
    yield note(what="answers", value=f"every batch has an answer of {amounts.new:,} tokens, to which all are padded",
               kind="assumed")
    yield note(what="optimizer steps", value=f"{amounts.steps} on each of {amounts.cycles} generation"
               f"{'s' * (amounts.cycles > 1)} of {amounts.generated:,} sequences", kind="derived")
    if rl.reference != "none" and scenario.training.method != "full":
        yield note(what="reference policy", value="the policy with its adapters off, whose pass is counted as the "
                   "policy's", kind="assumed")
    elif rl.reference != "none" and summons_of(scenario).one_unit:
        yield note(what="reference policy", value="one unit of FSDP 2, gathered whole for its passes", kind="derived")
    if rl.sync_reference:
        yield note(what="rl.sync_reference", value="the reference takes a share of the policy's parameters in place; "
                   "the time of it is not counted", kind="assumed")
    if turn.engine is None:
        yield note(what="generation", value=f"every answer has {amounts.new:,} tokens; each is a pass of the policy, "
                   "which reads the mean of the cache", kind="assumed")
        return
    assert isinstance(turn.engine, Engine)
    yield from assumptions(turn.engine)
    length = scenario.training.seq_len
    yield from told_of_lengths(rl, replace(turn.engine, max_model_len=length), length)
    yield note(what="refit", value=f"gathers alone {turn.weights.ns / 1e9:.3g} s, one parameter after the other",
               kind="assumed")
