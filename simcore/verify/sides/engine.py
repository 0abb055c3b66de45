"""Our own side: what the engine says one rank holds, sends and needs, in the words of `Found`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simcore.placement.mesh import Mesh
from simcore.placement.plan import Placed, Plan
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Op
from simcore.results.report import Peak
from simcore.simulation.report import report
from simcore.simulation.simulation import Simulation
from simcore.simulation.step import program_of
from simcore.verify.sides.found import Call, Found, Tensor

__all__ = ["Naming", "calls_of", "groups_of", "held_bytes", "named", "peak_of", "placed_rank", "stepped", "tensors_of",
           "whole_step"]

PHASES: Final = {Phase.FORWARD: "fwd", Phase.LOSS: "fwd", Phase.BACKWARD: "bwd", Phase.RECOMPUTE: "recompute",
                 Phase.OPTIMIZER: "opt"}
"""Our phases, and the four of the scripts that trace a step."""
Naming = Callable[[str, Placed], str]
"""Path of a layer, and a tensor of it -> the parameter's name in the framework."""


def named(layer: str, placed: Placed) -> str:
    """Name of a parameter where the framework keeps the implementation's modules."""
    return f"{layer}.{placed.spec.name}"


def tensors_of(plan: Plan, naming: Naming = named) -> tuple[Tensor, ...]:
    """Every parameter that the rank owns, at rest."""
    return tuple(Tensor(naming(plan.graph.layers[layer].path, placed), placed.local, placed.policy.at_rest.dtype)
                 for layer in plan.layers for placed in plan.of_layer(layer) if placed.spec.is_owned)


def stepped(simulation: Simulation) -> Program:
    """Program of the simulated rank, every microbatch written out."""
    simulation.num_written = simulation.job.scenario.num_microbatches
    (plan,) = simulation.plans
    program = simulation.programs[plan.rank] = program_of(simulation, plan)
    return program


def calls_of(program: Program, mesh: Mesh) -> tuple[Call, ...]:
    """Collectives in the order of issue; copies inside a device are none."""
    comms = {number: (kind, mesh.axis(axis).size, dtype)
             for (kind, axis, dtype), number in program.tables.comms.items() if not kind.startswith("copy")}
    rows = zip(program.columns.tolist(), program.phase.tolist(), strict=True)
    return tuple(Call(comms[slot][0], PHASES[Phase(phase)], *comms[slot][1:], amount)
                 for (op, _, slot, amount, _, _), phase in rows if op == Op.COLLECTIVE and slot in comms)


def peak_of(simulation: Simulation) -> int:
    """Highest bytes of tensors in the step: without libraries' workspaces, which fake tensors have none of."""
    (rank,) = report(simulation, series=False).ranks
    assert isinstance(rank.peak, Peak)
    return rank.peak.allocated_bytes - rank.peak.by_category.get("workspace", 0)


def whole_step(simulation: Simulation) -> Found:
    """All that the engine says of a rank whose whole step is compared."""
    calls = calls_of(stepped(simulation), simulation.job.mesh)
    return Found(tensors_of(simulation.plans[0]), calls, {"peak": peak_of(simulation)}, {}, {})


def groups_of(mesh: Mesh, rank: int, axes: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Ranks of the communicators of more than one rank that a rank is in, by axis."""
    told = {axis: tuple(mesh.group(rank, axis)) for axis in axes}
    return {axis: ranks for axis, ranks in told.items() if len(ranks) > 1}


def held_bytes(simulation: Simulation) -> dict[str, int]:
    """Bytes of the rank at rest: storage of parameters, gradients and their padding, optimizer states."""
    (rank,) = report(simulation, series=False).ranks
    rest = rank.at_rest.values()
    return {"storage": sum(one.params_bytes for one in rest) + rank.padding_bytes,
            "gradients": sum(one.grads_bytes for one in rest) + rank.grads_padding_bytes,
            "optimizer": sum(one.optimizer_bytes for one in rest)}


def placed_rank(simulation: Simulation, naming: Naming, axes: tuple[str, ...], sizes: tuple[str, ...]) -> Found:
    """All that the engine says of a rank without a step: tensors, communicators on `axes`, bytes of `sizes`."""
    (plan,) = simulation.plans
    held = held_bytes(simulation)
    return Found(tensors_of(plan, naming), None, {name: held[name] for name in sizes},
                 groups_of(simulation.job.mesh, plan.rank, axes), {})
