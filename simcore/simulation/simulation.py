"""The working set of one simulation: scenario -> job and table -> classes of ranks -> plans."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from simcore.errors import InputError, Problem
from simcore.frameworks.registry import at_rest_of
from simcore.frameworks.setup import prepare
from simcore.hardware.device import Device
from simcore.hardware.topology import Topology
from simcore.inputs.scenario import Scenario
from simcore.memory.band import Band, band_of, layout_class
from simcore.memory.outside_allocator import CommSetup, OutsideMemory
from simcore.memory.own_pool import unused_bytes
from simcore.memory.reserved import EXPANDABLE, GATHERED, ORDINARY, Reserved, ReservedModel, needed
from simcore.memory.workspace import Workspace, WorkspaceInputs, spaces
from simcore.placement.fold import RankClass, fold, joined, unfolded, unfolded_one
from simcore.placement.framework import Framework
from simcore.placement.job import Job, topology_of
from simcore.placement.packing import pack_sequences
from simcore.placement.plan import Plan, place
from simcore.placement.strategy import EXACT_RANKS
from simcore.placement.token_dispatch import expert_hidden, received_per_token, sent_per_token, top_k_of
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.timing.routes import Routes
from simcore.timing.step import StepLength
from simcore.units import format_bytes, parse_cublas, parse_quantity

__all__ = ["Simulation", "legal_simulation", "machines_of", "placed", "placed_by_rank", "placed_simulation"]


@dataclass(eq=False)
class Simulation:
    """One simulated step, before it is put into a report: its inputs, and the results so far.

    `classes`: ranks with equal memory and work are one class; `plans`: layout of all tensors on one rank (the
    representative) of each. `is_exact`: classes are single ranks, so that bytes in flat shards are counted and not
    averaged. `num_written`: microbatches that are simulated one by one. `programs` (operations of a step),
    `workspaces`: by representative rank, empty until made. `timing`: None until the step was timed.
    """

    job: Job
    framework: Framework
    topology: Topology
    routes: Routes
    classes: tuple[RankClass, ...]
    plans: tuple[Plan, ...]
    num_written: int = 1
    is_exact: bool = False
    programs: dict[int, Program] = field(default_factory=dict)
    workspaces: dict[int, tuple[Workspace, ...]] = field(default_factory=dict)
    timing: StepLength | None = None

    @property
    def stage_plans(self) -> list[Plan]:
        """Plan of one class of ranks of each pipeline stage."""
        return list({plan.stage: plan for plan in reversed(self.plans)}.values())[::-1]

    def workload(self, plan: Plan) -> Workload:
        """Sizes of one microbatch on the plan's rank: sequences, positions, tokens of experts, workspaces.

        Of workspaces only those that the framework counts in allocated bytes. Fills in `workspaces` of that rank.
        """
        training, top_k, inputs = self.job.scenario.training, top_k_of(self.job.graph), self.workspace_inputs()
        if plan.rank not in self.workspaces:
            self.workspaces[plan.rank] = spaces(plan, inputs)
        counted = () if self.uncounted_workspaces(plan) else tuple((s.name,
                                                                    s.num_bytes) for s in self.workspaces[plan.rank])
        packed = pack_sequences(training)
        return Workload(inputs.batch, inputs.seq, inputs.rows_per_token,
                        sent_per_token(training.routing, top_k), counted, (packed.sequences, packed.attended),
                        images=inputs.batch * (training.images or 0), scored=training.scored_tokens or 0)

    def received_per_token(self) -> int:
        """Copies of tokens that the busiest rank's experts receive for each of its tokens, times 2**16."""
        return received_per_token(self.job.scenario.training.routing, top_k_of(self.job.graph), self.job.mesh.ep)

    def uncounted_workspaces(self, plan: Plan) -> tuple[OutsideMemory, ...]:
        """Workspaces of the plan's rank that are added to device memory instead of to `allocated`.

        One entry with their sum, or () where the framework counts them in `allocated`. Traces of FSDP2 and Automodel,
        which `allocated` is compared with, have tensors alone; Megatron's readings include workspaces. `workload` must
        have run for that rank.
        """
        if self.framework.strategy.counts_workspaces:
            return ()
        num_bytes = sum(space.num_bytes for space in self.workspaces[plan.rank])
        source = "; ".join(dict.fromkeys(space.source for space in self.workspaces[plan.rank]))
        return (OutsideMemory("workspace", num_bytes, "derived", f"{source}; beside what is allocated"),)

    def comm_setup(self) -> CommSetup:
        """Inputs for the sizes of NCCL's and token dispatchers' buffers, which are outside torch's allocator."""
        inputs = self.workspace_inputs()
        return CommSetup(self.job.mesh, self.topology, self.framework.libraries, inputs.batch * inputs.seq,
                         self.job.graph.architecture.hidden, expert_hidden(self.job.graph))

    def workspace_inputs(self) -> WorkspaceInputs:
        """Inputs for the sizes of workspaces of cuBLAS and other libraries."""
        scenario = self.job.scenario
        given, packed = scenario.environment.cublas_workspace_config, pack_sequences(scenario.training)
        return WorkspaceInputs(self.topology.device.architecture, None if given == "auto" else parse_cublas(given),
                               packed.batch, packed.seq // self.job.mesh.cp, scenario.num_microbatches,
                               self.received_per_token())

    def reserved_model(self) -> ReservedModel:
        """Median and upper share of the allocated bytes that torch's allocator keeps beyond them.

        It is larger where hooks gather parameters on side streams.
        """
        gathers = any(self.job.mesh.axis(unit.shard_axis).size > 1 for unit in self.framework.units)
        return GATHERED if gathers and self.framework.strategy.gathers_on_side_streams else self.fragmentation()

    def fragmentation(self) -> ReservedModel:
        """Median and upper share of the allocated bytes that torch's allocator keeps and cannot give back.

        These are free blocks too small or too scattered for the next request.
        """
        return EXPANDABLE if self.job.scenario.environment.expandable_segments else ORDINARY

    @cached_property
    def band(self) -> Band:
        """Range of measured over simulated memory of the job's class of layouts."""
        return band_of(layout_class(self.job, self.framework))

    @cached_property
    def unused_in_pools(self) -> int:
        """Bytes that segments of the framework's own memory pools have beyond their tensors, on the rank with most."""
        pools = at_rest_of(self.framework).pools
        return max((sum(map(unused_bytes, pools(plan))) for plan in self.plans), default=0)

    def needed(self, allocated: int, hottest: int = 0) -> Reserved:
        """Bytes that torch's allocator must reserve for a simulated peak of `allocated` bytes, its pools included.

        The ends are those of fragmentation for the ends of `band`: lowest, likely, highest. The highest includes the
        most that pools of CUDA graphs, and tensors that no pass lists, may add. `hottest`: peak of a rank with more
        tokens, where that is higher than the end of the band, which is of runs on such ranks too.
        """
        ends = int(allocated * self.band.low), allocated, max(int(allocated * self.band.high), hottest)
        low, middle, high = (needed(end, self.reserved_model(), self.fragmentation()) for end in ends)
        return Reserved(low.low, middle.middle, high.high + self.framework.libraries.graph_pool_bytes
                        + self.framework.unseen_bytes).plus(self.unused_in_pools)

    def limit_bytes(self) -> int:
        """Bytes of one GPU that the job may fill: `usable_bytes` times `limits.max_fill`."""
        return int(self.usable_bytes() * self.job.scenario.limits.max_fill)

    def usable_bytes(self) -> int:
        """Bytes of one GPU that the job may use: the scenario's `limits.usable_memory`, or what the driver leaves.

        The share `limits.max_fill` is not applied.
        """
        usable = self.job.scenario.limits.usable_memory
        return self.topology.device.usable_bytes if usable == "auto" else int(parse_quantity(usable, "B"))


def legal_simulation(scenario: Scenario) -> Simulation:
    """Simulation with the job and its framework's settings, without classes of ranks and without plans.

    Raises IllegalLayout, InputError or NotYet if the job cannot run there.
    """
    topology = machines_of(scenario)
    job, framework = prepare(scenario)
    return Simulation(job, framework, topology, Routes(job, framework, topology), (), ())


def placed_simulation(scenario: Scenario, *, folded: bool = True, rank: int | None = None) -> Simulation:
    """Simulation with every tensor placed, for one representative of each class of equal ranks.

    Nothing is run. Each rank is a class if `folded` is False, or where a framework's step varies by rank and the job
    has at most `EXACT_RANKS` ranks. `rank`: only this rank, exactly. Raises IllegalLayout, InputError or NotYet.
    """
    return placed(legal_simulation(scenario), folded=folded, rank=rank)


def placed(legal: Simulation, *, folded: bool = True, rank: int | None = None) -> Simulation:
    """The simulation of `placed_simulation` from that of `legal_simulation`."""
    job, framework = legal.job, legal.framework
    classes = _classes(job, framework, folded=folded, rank=rank)
    plans = tuple(place(job.graph, job.mesh, framework, c.representative) for c in classes)
    return replace(legal, classes=classes, plans=plans, is_exact=rank is not None)


def placed_by_rank(scenario: Scenario, rank: int | None) -> Simulation:
    """As `placed_simulation`, but ranks with different contents of flat shards are different classes.

    That holds where `rank` is None, the framework has such shards and the job at most `EXACT_RANKS` ranks.
    """
    simulation = placed_simulation(scenario, rank=rank)
    is_by_rank = simulation.framework.strategy.is_placed_by_rank and scenario.world_size <= EXACT_RANKS
    return _split_by_contents(simulation) if rank is None and is_by_rank else simulation


def _split_by_contents(simulation: Simulation) -> Simulation:
    """Ranks are one class if they hold the same inside their flat shards, and the same padding."""
    mesh, graph, framework = simulation.job.mesh, simulation.job.graph, simulation.framework
    equal_ranks: dict[object, list[RankClass]] = {}
    at_rest = at_rest_of(framework)
    for single in unfolded(mesh):
        plan = place(graph, mesh, framework, single.representative)
        components = at_rest.exact(plan)
        contents = tuple(sorted(components.items(), key=lambda item: item[0]))
        key = single.stage, contents, at_rest.padding(plan, components, exact=True)
        equal_ranks.setdefault(key, []).append(single)
    classes = tuple(joined(group) for group in equal_ranks.values())
    plans = tuple(place(graph, mesh, framework, c.representative) for c in classes)
    return replace(simulation, classes=classes, plans=plans, is_exact=True)


def _classes(job: Job, framework: Framework, *, folded: bool, rank: int | None) -> tuple[RankClass, ...]:
    if rank is not None:
        if not 0 <= rank < job.mesh.size:
            raise InputError(Problem("--rank", f"expected a rank from 0 to {job.mesh.size - 1}, got {rank}"))
        return (unfolded_one(job.mesh, rank),)
    is_unfolded = framework.strategy.step_varies_by_rank and job.mesh.size <= EXACT_RANKS
    return fold(job.graph, job.mesh, framework) if folded and not is_unfolded else unfolded(job.mesh)


def machines_of(scenario: Scenario) -> Topology:
    """Machines of a scenario; raises InputError if they are too few, too small or do not compute in its format."""
    topology = topology_of(scenario)
    topology.check_world_size(scenario.world_size, scenario.where("mesh"))
    _check_format(scenario, topology.device)
    usable, total = scenario.limits.usable_memory, topology.device.memory.total.si
    if usable != "auto" and parse_quantity(usable, "B") > total:
        told = f"usable_memory: expected at most the {format_bytes(total)} of {topology.device.name}, got {usable}"
        raise InputError(Problem(scenario.where("limits", "usable_memory"), told))
    return topology


def _check_format(scenario: Scenario, device: Device) -> None:
    """Refuses a compute format that the GPU has no kernels for, before the framework is asked."""
    given = scenario.training.precision.compute
    asked = "bf16" if given == "auto" else given
    if asked not in device.formats:
        told = f"compute: {device.name} does not compute in {asked}; it has {', '.join(device.formats)}"
        raise InputError(Problem(scenario.where("training", "precision", "compute"), told))
