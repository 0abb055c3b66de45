"""Distillation: a teacher passes over what the student generated, and the student learns from its highest logits.

[Note: the order of a distillation step]
NeMo RL main of 2026-08-22 (7ea279ab) `algorithms/distillation.py` distillation_train. Refit and generation are GRPO's
(`phases.py`). Then the teacher's workers, processes of their own on the GPUs that train, bring their parameters from
the host (prepare_for_lp_inference), and pass over all sequences without gradients (get_topk_logits); of every token the
k highest logits over the whole vocabulary and their places go to the host, after each pass (workers of DTensor) or
after all (Megatron's, whose last stage sends them to the others). The parameters return to the host
(offload_after_refit). The student's workers bring theirs and the optimizer's states back (prepare_for_training), put
the teacher's logits on the device, and train (`operators/shared/top_k.py`). With engines on GPUs of their own the
student's parameters stay, and its states wait on the host while the teacher is there (offload_before_refit). A teacher
has no optimizer: DTensors as they are loaded, or a model of Megatron that no DDP wraps (`models/megatron/setup.py:1875`
wrap_with_ddp), so that all of its parameters move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.inputs.scenario import Scenario, of_teacher
from simcore.memory import outside_allocator
from simcore.results.report import Assumption, TrafficRow
from simcore.rl.step.forward import CHOSEN, Passes, passes
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import FORWARD, GrpoStep, away, back, host_ns, outside, sample, start, train
from simcore.rl.step.policy import WORKSPACE, Policy, on_same_gpus
from simcore.rl.step.traffic import Sent, of_passes, rows
from simcore.simulation.simulation import Simulation, placed_simulation

__all__ = ["Taught", "check_distillation", "distillation_step", "taught", "teaching", "told_of_teacher"]

TEACHER: Final = "teacher"
_LOGITS: Final = "teacher's logits"
_SOURCE: Final = "NeMo RL 7ea279ab algorithms/distillation.py"


@dataclass(frozen=True, slots=True)
class Taught:
    """A teacher on one class of the student's ranks, which are on the same GPUs.

    Bytes by category: `params` move between host and device, `fixed` (workspaces) and `outside` (NCCL) never leave,
    `passing` is in addition at the highest moment of a pass. `passing_ns`: of all passes of a step. `logits`: bytes of
    what the student learns from, of all sequences of a rank. `sent`: rows of traffic, in the phase "teacher".
    """

    params: dict[str, int]
    fixed: dict[str, int]
    outside: dict[str, int]
    passing: dict[str, int]
    passing_ns: int
    logits: int
    sent: tuple[TrafficRow, ...]

    @property
    def highest(self) -> int:
        """Bytes on the device at the highest moment of a pass."""
        return sum(sum(sizes.values()) for sizes in (self.params, self.fixed, self.outside, self.passing))


def taught(scenario: Scenario, student: Simulation, *, timed: bool) -> list[Taught]:
    """The teacher on each class of the student's ranks; of a class on several of the teacher's ranks, the fullest.

    `student`: simulation of the student. InputError for a teacher on another number of ranks or with sequences that
    its ranks do not share evenly; IllegalLayout, NotYet as its own layout refuses.
    """
    simulation = teaching(scenario)
    assert scenario.teacher is not None
    k, count = scenario.teacher.top_k, simulation.job.scenario.num_microbatches
    forward = passes(simulation, timed=timed, top_k=k)
    own = list(_on_each(simulation, forward, k, count, _of_student(scenario, k)))
    return on_same_gpus(own, simulation, student, lambda one: one.highest)


def teaching(scenario: Scenario) -> Simulation:
    """Simulation of the teacher's passes; raises as `taught`."""
    rl, teacher = scenario.rl, scenario.teacher
    assert rl is not None
    sequences = rl.prompts * rl.generations
    found = of_teacher(scenario, sequences, rl.logprob_batch_size)
    assert teacher is not None
    if found.world_size != scenario.world_size:
        raise InputError(Problem(scenario.where("teacher", "mesh"), f"mesh: expected the {scenario.world_size} ranks "
                                 f"of the policy, whose GPUs a teacher shares, got {found.world_size}"))
    width = teacher.mesh.dp_replicate * teacher.mesh.dp_shard * rl.logprob_batch_size
    if sequences % width:
        raise InputError(Problem(scenario.where("rl", "logprob_batch_size"), f"logprob_batch_size: expected prompts x "
                                 f"generations = {sequences} to be a multiple of it times the data-parallel ranks of "
                                 f"the teacher, {width}"))
    return placed_simulation(found)


def _of_student(scenario: Scenario, k: int) -> int:
    """Bytes of the logits of all sequences of one of the student's optimizer steps, on each of its ranks."""
    rl, mesh, training = scenario.rl, scenario.mesh, scenario.training
    assert rl is not None
    batch = training.global_batch_size or rl.prompts * rl.generations
    return CHOSEN * k * training.seq_len * batch // (mesh.dp_replicate * mesh.dp_shard)


def _on_each(simulation: Simulation, forward: Passes, k: int, count: int, logits: int) -> Iterator[Taught]:
    """The teacher on each class of its own ranks."""
    sending = list(_chosen(simulation, k, count))
    total_ns = forward.total_ns(count) + sum(one.ns for one in sending)
    every = forward.traffic(simulation, count)
    for rest, above, plan, traffic in zip(forward.rest, forward.above, simulation.plans, every, strict=True):
        held = outside_allocator.outside(simulation.comm_setup(), traffic)
        kept = _kept(simulation, k, count) if plan.stage == simulation.job.mesh.pp - 1 else 0
        allocated = sum(rest.values()) + sum(above.values())
        fragments = simulation.needed(allocated).middle - allocated
        moving, fixed = dict(rest), {WORKSPACE: rest.get(WORKSPACE, 0)}
        moving.pop(WORKSPACE, None)
        passing = {**above, "activation": above.get("activation", 0) + kept, "fragmentation": fragments}
        yield Taught(moving, fixed, {one.category: one.num_bytes for one in held}, passing,
                     total_ns if forward.ns != (0, 0) else 0, logits, (*of_passes(traffic, TEACHER), *rows(sending)))


def _kept(simulation: Simulation, k: int, count: int) -> int:
    """Bytes of chosen logits that Megatron's last stage keeps on the device until the last of `count` passes."""
    if simulation.framework.strategy.rl_worker.is_module:
        return 0
    training = simulation.job.scenario.training
    return (count - 1) * CHOSEN * k * training.micro_batch_size * training.seq_len


def _chosen(simulation: Simulation, k: int, count: int) -> Iterator[Sent]:
    """Gathers of the logits that parts of a vocabulary have, then of the sequence's, and their way to other stages."""
    training, mesh, routes = simulation.job.scenario.training, simulation.job.mesh, simulation.routes
    tokens = k * training.micro_batch_size * training.seq_len
    for axis, size, values, calls in (("tp", mesh.tp, tokens // mesh.cp * mesh.tp, count),
                                      ("cp", mesh.cp, tokens, count), ("pp", mesh.pp, tokens * count, 1)):
        collective = "broadcast" if axis == "pp" else "all_gather"
        for dtype, width in (("fp32", 4), ("int64", 8)) if size > 1 else ():
            route = routes.of(collective, axis)
            yield Sent(collective, axis, route.group_size, route.link, TEACHER, dtype, width * values, calls)


def distillation_step(policy: Policy, step: GrpoStep, teacher: Taught, simulation: Simulation) -> Journal:
    """Memory and time of a steady step on one class of ranks: "refit", "generation", "teacher", "training".

    See [Note: the order of a distillation step].
    """
    topology = simulation.topology
    journal = start(policy, has_reference=False)
    journal.put(TEACHER, {**outside(teacher.outside), **teacher.fixed})
    journal.put(TEACHER, teacher.params, "host")
    sample(journal, policy, step, topology)
    journal.begin("teacher")
    away(journal, policy.states, topology)
    size = journal.move(TEACHER, "host", "device", teacher.params)
    journal.copy("to_device", size, host_ns(size, topology, "to_device"))
    journal.spike(TEACHER, teacher.passing, "forward pass", {FORWARD: teacher.passing_ns})
    journal.move(TEACHER, "device", "host", teacher.params)
    journal.copy("to_host", size, host_ns(size, topology, "to_host"))
    journal.begin("training")
    back(journal, policy.params, topology)
    back(journal, policy.states, topology)
    journal.put(_LOGITS, {"buffer": teacher.logits}, event="the teacher's logits")
    train(journal, policy)
    journal.drop(_LOGITS, "device")
    return journal


def check_distillation(scenario: Scenario, *, distils: bool) -> None:
    """Raises InputError, IllegalLayout or NotYet for what a step of distillation does not read, or is not described.

    `distils`: the trainer has a step of distillation that is described.
    """
    rl, training = scenario.rl, scenario.training
    assert rl is not None
    source = f"{_SOURCE} setup, distillation_train"
    for key, said, why in (
            ("reference", rl.reference != "none", "init_reference_model=False"),
            ("asynchronous", rl.asynchronous, "generation and training take turns"),
            ("critic", rl.critic is not None, "there are no advantages"),
            ("epochs", rl.epochs > 1, "one call of train"),
            ("chunks", rl.chunks > 1, "one call of train"),
            ("on_policy_ratio", rl.on_policy_ratio, "there is no ratio of probabilities"),
            ("generated_prompts", rl.generated_prompts is not None, "all prompts are trained on")):
        if said:
            raise IllegalLayout(Problem(scenario.where("rl", key), f"{key}: not in distillation: {why}", source))
    if not distils:
        raise NotYet(Problem(scenario.where("rl", "trainer"), f"not yet: distillation by {rl.trainer}"))
    if training.logprob_chunk_size is not None:
        raise NotYet(Problem(scenario.where("training", "logprob_chunk_size"), "not yet: logits of a teacher in "
                             "chunks"))
    if training.loss not in ("auto", "top_k"):
        raise InputError(Problem(scenario.where("training", "loss"), f"loss: expected top_k, the loss of distillation, "
                                 f"got {training.loss}"))


def told_of_teacher(scenario: Scenario, teachers: Sequence[Taught]) -> Iterator[Assumption]:
    """Assumptions on the teacher and on the loss."""
    assert scenario.teacher is not None
    yield Assumption(what="teacher", value=f"{scenario.teacher.model}, on the host but for its passes", kind="derived",
                     source=f"{_SOURCE} distillation_train")
    yield Assumption(what="training.loss", value="tensors of k entries a token inside the loss are not counted",
                     kind="assumed", source="NeMo RL 7ea279ab algorithms/loss/loss_functions.py DistillationLossFn, "
                     "zero_outside_topk false")
    if len({one.highest for one in teachers}) > 1:
        yield Assumption(what="teacher.mesh", value="ranks of one class share GPUs with several of the teacher's: the "
                         "fullest counts", kind="derived", source="both meshes number the same ranks")
