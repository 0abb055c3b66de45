"""Memory when routing is drawn at random: peaks of every class of ranks over all draws, and how often one is too high.

Comes in: what was simulated with balanced routing. Goes out: the same report with `drawn`, its verdict that of the
highest draw. How loads are drawn is described in `simcore.simulation.expert_loads`, how peaks are found in
`simcore.simulation.interpolate`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simcore.errors import InputError, NotYet, Problem
from simcore.frameworks.registry import hooks_of
from simcore.inputs.training import Draws
from simcore.pipeline.schedule import actions, lowered_microbatches
from simcore.placement.fold import RankClass
from simcore.placement.mesh import IntArray
from simcore.placement.plan import Plan
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.results.quantiles import Drawn, DrawnPeak, DrawnRows, Quantiles, quantiles
from simcore.results.report import Assumption, RankReport, Report
from simcore.results.verdict import verdict_of
from simcore.simulation.expert_loads import ExpertLoad, sample_received_rows
from simcore.simulation.interpolate import PiecewiseLinearStep, spread
from simcore.simulation.simulation import Simulation

__all__ = ["drawn"]

_MOST_MICROBATCHES: Final = 64
"""Written out and drawn; of a longer step these stand for all."""
_MOST_VALUES: Final = 3 * 10**6
"""Numbers drawn of one stage, so that a job of thousands of ranks is a matter of seconds: then fewer groups."""
_MOST_DRAWN: Final = 4 * 10**7
"""Numbers that are kept of one stage, of 8 bytes each: where they are more, of fewer microbatches."""
_COLUMNS: Final = 1 << 15
"""Draws of ranks that are summed up at once."""


@dataclass(frozen=True, eq=False)
class _Stage:
    """Received rows drawn for one pipeline stage: rows[layer][microbatch, draw, group, ep coordinate]."""

    loads: ExpertLoad
    rows: dict[int, IntArray]
    fewest: int
    most: int


def drawn(simulation: Simulation, report: Report) -> Report:
    """Copy of the report with peaks under randomly drawn routing; unchanged where routing is not drawn.

    They are in its field `drawn`; its verdict and headroom are those of the highest draw.
    """
    routing = simulation.job.scenario.training.routing
    if not isinstance(routing, Draws):
        return report
    stages = {stage: _stage(simulation, stage, routing) for stage in sorted({plan.stage for plan in simulation.plans})}
    ranks, highest, bands, exact = [], [], [], True
    for rank_class, plan, rank in zip(simulation.classes, simulation.plans, report.ranks, strict=True):
        steps = _spread(simulation, plan, stages[plan.stage])
        allocated = _allocated(simulation, rank_class, steps, stages[plan.stage])
        ranks.append(rank.model_copy(update={"drawn": _peak(simulation, rank, allocated.ravel())}))
        highest.append(_hottest(simulation, rank, allocated))
        bands.append(_band(simulation, rank, int(allocated.max())))
        exact &= steps.exact
    device, allocated = np.max(highest, axis=0)
    limit = simulation.limit_bytes()
    loads = min((stage.loads for stage in stages.values()), key=lambda loads: loads.num_groups)
    worst = int(device.max())
    found = Drawn(
        seed=routing.seed, draws=routing.draws, concentration=routing.concentration, num_groups=loads.num_groups,
        num_microbatches=loads.num_microbatches, balanced_rows=loads.balanced,
        received=tuple(DrawnRows(layer=simulation.job.graph.layers[layer].path, received=quantiles(rows))
                       for stage in stages.values() for layer, rows in stage.rows.items()),
        hottest=DrawnPeak(allocated_bytes=quantiles(allocated), device_bytes=quantiles(device)),
        oom_probability=float((device > limit).mean()), exact=exact,
        band_bytes=(max(low for low, _ in bands), max(high for _, high in bands)))
    return report.model_copy(update={
        "ranks": tuple(ranks), "drawn": found, "verdict": verdict_of(bands, limit),
        "headroom_bytes": limit - worst, "assumptions": (*report.assumptions, _assumption(simulation, found))})


# ---- what is drawn --------------------------------------------------------------------------------------------------
def _stage(simulation: Simulation, stage: int, routing: Draws) -> _Stage:
    plan = next(plan for plan in simulation.plans if plan.stage == stage)
    blocks = {layer: block for layer in plan.layers if (block := plan.graph.experts_of(layer))}
    block = next(iter(blocks.values()), None) or next(b for layer in range(len(plan.graph.layers))
                                                      if (b := plan.graph.experts_of(layer)))
    mesh, written = simulation.job.mesh, _written(simulation, routing)
    groups = max(1, min(mesh.expert_dp, _MOST_VALUES // (routing.draws * mesh.ep * written * max(1, len(blocks)))))
    loads = ExpertLoad(routing.seed, routing.draws, routing.concentration, block.num_experts, block.top_k,
                  _tokens(simulation, plan), mesh.ep, mesh.etp, groups, written)
    rows = {layer: sample_received_rows(loads, layer) for layer in blocks}
    return _Stage(loads, rows, min((int(r.min()) for r in rows.values()), default=loads.balanced),
                  max((int(r.max()) for r in rows.values()), default=loads.balanced))


def _tokens(simulation: Simulation, plan: Plan) -> int:
    """That a rank sends in one microbatch: under sequence parallelism its own part of them."""
    setting = simulation.workspace_inputs()
    return -(-setting.batch * setting.seq // (simulation.job.mesh.tp if plan.framework.sequence_parallel else 1))


def _written(simulation: Simulation, routing: Draws) -> int:
    """All microbatches, or as many as the schedule's pattern takes; InputError where those are too many to draw."""
    schedule, count = simulation.framework.schedule, simulation.job.scenario.num_microbatches
    layers = max(sum(plan.graph.experts_of(layer) is not None for layer in plan.layers) for plan in simulation.plans)
    each = routing.draws * simulation.job.mesh.ep * max(1, layers)
    written = lowered_microbatches(schedule, count)
    if each * written > _MOST_DRAWN:
        told = (f"expected at most {_MOST_DRAWN:,} numbers to draw, got {each * written:,}: {routing.draws:,} draws x "
                f"ep {simulation.job.mesh.ep} x {layers} layers with experts (model) x {written} microbatches")
        raise InputError(Problem(simulation.job.scenario.where("training", "routing", "draws"), told))
    for doublings in range(1, 32):
        more = lowered_microbatches(schedule, count, doublings)
        if more > _MOST_MICROBATCHES or each * more > _MOST_DRAWN:
            break
        written = more
    return written


# ---- what it takes --------------------------------------------------------------------------------------------------
def _spread(simulation: Simulation, plan: Plan, stage: _Stage) -> PiecewiseLinearStep:
    order = actions(simulation.framework.schedule, plan.stage, stage.loads.num_microbatches)
    workload, tokens = simulation.workload(plan), stage.loads.tokens

    def program_at(rows: int) -> Program:
        received = replace(workload, rows_per_token=-(-(rows << 16) // tokens))
        return lower(plan, received, order, hooks_of(simulation.framework))

    found = spread(program_at, stage.fewest, stage.most, stage.loads.top_k)
    if not found.varying_layers <= set(stage.rows):
        raise NotYet(Problem(simulation.job.scenario.where("training", "routing"),
                             "not yet: routing drawn at random where layers without experts depend on it"))
    return found


def _allocated(simulation: Simulation, rank_class: RankClass, steps: PiecewiseLinearStep, stage: _Stage) -> IntArray:
    """Peaks of the class's ranks: [draw, rank]. Ranks whose group is not drawn take those of one that is."""
    mesh, ranks = simulation.job.mesh, rank_class.members(simulation.job.mesh)
    places = np.unique(np.stack([mesh.axis("expert_dp").coordinates(ranks) % stage.loads.num_groups,
                                 mesh.axis("ep").coordinates(ranks)]), axis=1)
    mine = {layer: rows[:, :, places[0], places[1]].reshape(len(rows), -1) for layer, rows in stage.rows.items()}
    columns = stage.loads.num_draws * places.shape[1]
    found = [steps.peaks({layer: rows[:, at:at + _COLUMNS] for layer, rows in mine.items()})
             for at in range(0, columns, _COLUMNS)] if mine else [np.repeat(steps.peaks({}), columns)]
    return np.concatenate(found).reshape(stage.loads.num_draws, -1)


def _device(simulation: Simulation, rank: RankReport, allocated: int) -> int:
    return simulation.needed(allocated).middle + _outside(rank)


def _band(simulation: Simulation, rank: RankReport, allocated: int) -> tuple[int, int]:
    needed, outside = simulation.needed(allocated), _outside(rank)
    return needed.low + outside, needed.high + outside


def _outside(rank: RankReport) -> int:
    return sum(rank.peak.outside.values()) if rank.peak else 0


def _hottest(simulation: Simulation, rank: RankReport, allocated: IntArray) -> IntArray:
    """[device or allocated, draw] of the class's highest rank."""
    highest = allocated.max(axis=1)
    return np.stack([np.array([_device(simulation, rank, size) for size in highest.tolist()]), highest])


def _peak(simulation: Simulation, rank: RankReport, allocated: IntArray) -> DrawnPeak:
    found = quantiles(allocated)
    device = {name: _device(simulation, rank, size) for name, size in found.model_dump().items()}
    return DrawnPeak(allocated_bytes=found, device_bytes=Quantiles(**device))


def _assumption(simulation: Simulation, found: Drawn) -> Assumption:
    """Assumption of the report: popularity, seed and number of the draws, and what they leave out."""
    popularity = "all experts alike" if found.concentration is None else f"Dirichlet({found.concentration:g})"
    mesh, count = simulation.job.mesh, simulation.job.scenario.num_microbatches
    value = (f"{popularity}, seed {found.seed}, {found.draws:,} steps of {found.num_microbatches} of {count} "
             f"microbatches, {found.num_groups} of {mesh.expert_dp} expert groups")
    if mesh.ep == 1:
        value += "; each rank has all experts (mesh.ep: 1), so all of its own tokens: every draw is the balanced step"
    return Assumption(what="training.routing", value=value, kind="assumed", source="a multinomial draw of all rows, "
                      "which stands for top-k without replacement; peaks, traffic and time of `ranks` are balanced")
