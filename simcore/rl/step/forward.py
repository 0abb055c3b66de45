"""A forward pass without gradients: log-probabilities of tokens under the policy, or under the reference policy.

The job of the training step with all tensors frozen is lowered as a program of forward passes only: nothing is saved,
and the framework's hooks gather as usual. After the model come log-probabilities instead of the training's loss.

[Note: log-probabilities]
NeMo RL main of 2026-08-22 (7ea279ab) `models/automodel/train.py` LogprobsPostProcessor._compute_local_logprobs: logits
in fp32 (the root's `output_dtype`, `models/automodel/setup.py:485`, casts them), a copy of all but the last position
where several sequences make the slice not contiguous, log_softmax in fp32. Megatron's policies, of a rank's part of the
vocabulary (`distributed/model_utils.py` _compute_distributed_log_softmax): logits in fp32, less their maximum, and
their exponentials; so too DTensor's over tp. In chunks (`logprob_chunk_size`) the cast to fp32 stays one of all logits
for DTensor's workers, and all but the last position are cut into chunks: a copy where there are several sequences, and
log_softmax. Megatron's policies cast chunk by chunk, which is recorded as their loss is (`operators/megatron/
logprobs.py`).

[Note: in place]
verl b178a3cd `workers/actor/dp_actor.py` _forward_micro_batch divides logits in place; flash-attn's cross entropy and
the compiled entropy of a row (`utils/torch_functional.py` entropy_from_logits) make nothing of the logits' size. One
that is not compiled makes three tensors of it in fp32 at once: shares, logits, and their powers
(`operators/hf/losses.py`, [Note: eager entropy]).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simcore.frameworks.registry import hooks_of
from simcore.memory.ledger import running
from simcore.models.blocks import LayerKind
from simcore.models.tensor import TensorSpec
from simcore.pipeline.schedule import actions
from simcore.placement.plan import Plan, place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, OP, SLOT
from simcore.recording.exact_sums import sums_by_key
from simcore.recording.tape import Op
from simcore.results.report import TrafficRow
from simcore.simulation.simulation import Simulation
from simcore.timing.step import forward_ns
from simcore.timing.traffic import traffic
from simcore.units import dtype_bytes

__all__ = ["CHOSEN", "Passes", "chosen_bytes", "passes", "resting"]

_WRITTEN: Final = 2
"""Passes that are simulated: all after the first take as long as the second."""
_FP32: Final = 4
_GATHERED: Final = "unsharded_param"
CHOSEN: Final = 12
"""Bytes of a chosen logit, fp32, and of its place, int64."""


@dataclass(frozen=True, eq=False)
class Passes:
    """Memory, by class of ranks, and time of forward passes without gradients, one microbatch each.

    `rest`: bytes by category before the first pass, one dict for each class of ranks in the simulation's order;
    `above`: bytes in addition at the highest moment. `programs`: of two passes, one for each class. `ns`: (duration of
    the first pass, of each further one), until the last rank ends.
    """

    rest: tuple[dict[str, int], ...]
    above: tuple[dict[str, int], ...]
    programs: tuple[Program, ...]
    ns: tuple[int, int]

    def total_ns(self, count: int) -> int:
        """Duration in ns of `count` (at least 1) passes in a row, one microbatch each, until the last rank ends."""
        return self.ns[0] + (count - 1) * self.ns[1]

    def traffic(self, simulation: Simulation, count: int) -> list[tuple[TrafficRow, ...]]:
        """Rows of traffic of `count` (at least 1) passes in a row, for each class of ranks; phases are "forward".

        `simulation`: the one that the passes are of.
        """
        mesh, further = simulation.job.mesh, range(1, _WRITTEN)
        found = (traffic(program, simulation.routes, of.members(mesh), further, count - 1)
                 for program, of in zip(self.programs, simulation.classes, strict=True))
        return [tuple(row for row in rows if row.calls) for rows in found]


def passes(simulation: Simulation, chunk: int | None = None, *, timed: bool = True, in_place: bool = False,
           beside: float = 0, top_k: int = 0, trains: bool = False) -> Passes:
    """Memory, by class of ranks, and time of forward passes, one microbatch each: the first, and each further one.

    They are of the simulated model with all tensors frozen; their micro-batch size is that of `simulation`. `chunk`:
    tokens of a sequence whose log-probabilities are made at once, None for all. `timed` False: durations are 0.
    `in_place`: see [Note: in place]; `beside`: tensors in fp32 of the logits' size that are made of them then.
    `top_k`: logits of a token that are chosen, in the place of its log-probability. `trains`: passes are of the model
    that trains, under torch.no_grad(); all that its training keeps between steps is there.
    """
    frozen = simulation.job.graph.with_tensors(_frozen)
    plans = simulation.plans if trains else [place(frozen, simulation.job.mesh, simulation.framework, c.representative)
                                             for c in simulation.classes]
    programs = [_program(simulation, plan, _WRITTEN, no_grad=trains) for plan in plans]
    rest = tuple(resting(program) for program in programs)
    above = tuple(_above(program, own, simulation, chunk, plan, beside=beside if in_place else None, top_k=top_k)
                  for program, own, plan in zip(programs, rest, plans, strict=True))
    return Passes(rest, above, tuple(programs), _durations(
        simulation, plans, programs, no_grad=trains) if timed else (0, 0))


def _durations(simulation: Simulation, plans: Sequence[Plan], two: Sequence[Program], *,
               no_grad: bool) -> tuple[int, int]:
    """Time in ns of the first pass and of each further one; `two`: programs of two passes, one for each plan."""
    first = [_program(simulation, plan, 1, no_grad=no_grad) for plan in plans]
    first_ns, both_ns = (forward_ns(programs, simulation.classes, simulation.routes, simulation.framework)
                         for programs in (first, two))
    return first_ns, both_ns - first_ns


def _frozen(kind: LayerKind, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(replace(spec, trainable=False) for spec in specs)


def _program(simulation: Simulation, plan: Plan, count: int, *, no_grad: bool = False) -> Program:
    order = tuple(action for action in actions(simulation.framework.schedule, plan.stage, count) if action.forward)
    workload = replace(simulation.workload(plan), no_grad=no_grad)
    return lower(plan, workload, order, hooks_of(simulation.framework), updates=not no_grad)


def resting(program: Program) -> dict[str, int]:
    """Bytes by category that a rank's program has allocated before its first pass: parameters and buffers."""
    return _held(program, int(np.argmax(program.phase != Phase.BUILD)))


def _held(program: Program, rows: int) -> dict[str, int]:
    """Bytes by category after the first `rows` rows."""
    columns = program.columns[:rows]
    posted = columns[columns[:, OP] <= Op.FREE]
    slots = [category for _, category in program.tables.slots]
    sums = sums_by_key(posted[:, SLOT], posted[:, AMOUNT], len(slots))
    sizes: dict[str, int] = {}
    for category, size in zip(slots, sums.tolist(), strict=True):
        sizes[category] = sizes.get(category, 0) + size
    return {category: size for category, size in sizes.items() if size}


def _above(program: Program, rest: dict[str, int], simulation: Simulation, chunk: int | None, plan: Plan, *,
           beside: float | None, top_k: int) -> dict[str, int]:
    """Bytes above those at rest at the highest moment: inside the model, or where logits become log-probabilities.

    Only the last pipeline stage has logits. `beside`: tensors that are made of logits in place, None for NeMo RL's.
    """
    losses = np.flatnonzero(program.phase == Phase.LOSS)
    if not len(losses) or simulation.job.scenario.training.logprob_chunk_size is not None:
        return _beside(_held(program, int(np.argmax(running(program))) + 1), rest)
    first_loss = int(losses[0])
    highest = int(np.argmax(running(program)[:first_loss]))
    inside, after = (_beside(_held(program, rows), rest) for rows in (highest + 1, first_loss))
    if simulation.framework.strategy.gathers_before_passes and simulation.framework.units:
        inside[_GATHERED] = _whole_bytes(plan)
    training, own = simulation.job.scenario.training, dtype_bytes(simulation.framework.compute_dtype)
    if beside is not None:
        tokens = training.micro_batch_size * training.seq_len // simulation.job.mesh.cp
        numel = tokens * simulation.job.graph.architecture.vocab
        after["activation"] = after.get("activation", 0) + round(beside * _FP32 * numel)
        return max(inside, after, key=lambda sizes: sum(sizes.values()))
    cut = simulation.job.mesh.cp * (1 if _is_whole(simulation) else simulation.job.mesh.tp)
    position = training.micro_batch_size * simulation.job.graph.architecture.vocab
    logits, copies = training.seq_len * position // cut, 2 - (_is_whole(simulation) and training.micro_batch_size == 1)
    if simulation.framework.options.puts_out_fp32:
        own = _FP32
    # the cast to fp32 keeps the model's logits until it ends; they are freed before log_softmax begins
    most = _FP32 * copies * (logits if chunk is None else min(chunk, training.seq_len - 1) * position)
    cast = _FP32 * logits if own < _FP32 else 0  # otherwise it was the head's
    if top_k:
        after["activation"] = after.get("activation", 0) + cast + chosen_bytes(simulation, top_k)
        return max(inside, after, key=lambda sizes: sum(sizes.values()))
    after["activation"] = after.get("activation", 0) + max(cast, (_FP32 - own) * logits + most)
    return max(inside, after, key=lambda sizes: sum(sizes.values()))


def chosen_bytes(simulation: Simulation, top_k: int) -> int:
    """Bytes of values (fp32) and places (int64) of `top_k` logits for each token of a microbatch, while chosen.

    NeMo RL 7ea279ab distributed/model_utils.py distributed_vocab_topk: those of a rank's part of the vocabulary, of all
    parts gathered, and of all in one tensor; a whole vocabulary has the first alone (models/automodel/train.py).
    """
    training, mesh = simulation.job.scenario.training, simulation.job.mesh
    copies = 1 if _is_whole(simulation) else 1 + 2 * mesh.tp
    return copies * CHOSEN * top_k * training.micro_batch_size * training.seq_len // mesh.cp


def _whole_bytes(plan: Plan) -> int:
    """Bytes of all parameters as operators use them, each unit gathered."""
    return sum(count * placed.used * dtype_bytes(placed.policy.in_use.dtype) for kind, count in plan.kind_counts
               for placed in plan.kinds[kind] if placed.spec.is_owned and not placed.spec.is_buffer)


def _is_whole(simulation: Simulation) -> bool:
    """True if a rank has logits of the full vocabulary."""
    return simulation.framework.strategy.rl_worker.is_module and simulation.job.mesh.tp == 1


def _beside(total: dict[str, int], rest: dict[str, int]) -> dict[str, int]:
    return {name: size - rest.get(name, 0) for name, size in total.items() if size > rest.get(name, 0)}
