"""Memory of the hosts: what reading the model, a step and writing the model take there, and on the GPUs meanwhile.

[Note: what is counted]
A host's ranks are neighbours, as many as the topology says share its memory. In each phase a rank holds what rests on
the host by the space of its layout, and what a checkpoint takes on its way (`placement/checkpoint_files.py`, each with
its source): all of the model, its own part once or more often, or at least some tensors in flight. Pages of mapped
files count as the system's cache, which gives way. Not counted: Python and its libraries, CUDA's own memory on the
host, data loaders. On the device a phase has what rests there by then, and for a moment a whole tensor or unit; the
first step is the ledger's. Conversions of a checkpoint's names and shapes on the device are not modelled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from simcore.frameworks.registry import framework_adapter
from simcore.memory.reserved import Reserved
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.checkpoint_files import Files, Transfer
from simcore.placement.fold import RankClass
from simcore.placement.framework import Framework, TensorPolicies, TensorPolicy
from simcore.placement.mesh import IntArray, Mesh
from simcore.placement.plan import Placed, Plan
from simcore.program.offloaded_layers import most_on_host
from simcore.results.report import Assumption, Host, HostPhase, RankReport, Report
from simcore.results.verdict import SEVERITY, Verdict, verdict_of
from simcore.simulation.moved_bytes import Moved, least_seconds, of_drives
from simcore.simulation.paging import away
from simcore.simulation.simulation import Simulation
from simcore.units import format_bytes, packed_bytes

__all__ = ["OnDevice", "hosted", "model_bytes", "verdict_beside"]

_Phase = Literal["load", "first_step", "save"]
_PHASES: Final[tuple[_Phase, ...]] = ("load", "first_step", "save")
_ON_HOST: Final = ("host", "host_pinned", "cpu")
_MOST_RANKS: Final = 1 << 12
"""That are looked at one by one; those of a larger job repeat themselves within a stage."""


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Bytes of one rank on its device around its step.

    `grads`: gradients that are there before it; `end`: allocated when it is over; `outside`: outside the allocator;
    `first_step`: most allocated in the very first step.
    """

    grads: int
    end: int
    outside: int
    first_step: int = 0


def verdict_beside(simulation: Simulation, ranks: Sequence[OnDevice], pages: Sequence[int]) -> Verdict:
    """Worst verdict of reading the model and of writing it, on the device, and of a step on the host.

    As `hosted` has them. `ranks`, `pages`: one entry for each class of ranks; bytes of optimizer states that are on the
    host because the device has no room.
    """
    verdicts = (_on_device(simulation, ranks, phase)[0] for phase in ("load", "save"))
    step: Verdict = "oom" if _overflows(simulation, tuple(pages)) else "fits"
    return max((*verdicts, step), key=lambda verdict: SEVERITY[verdict])


def _overflows(simulation: Simulation, pages: tuple[int, ...]) -> bool:
    """True if what a step keeps on the fullest host is more than the host has."""
    offload = simulation.job.scenario.training.offload
    parts = (offload.params, offload.gradients, offload.optimizer, offload.activations)
    if not any(pages) and all(part == "none" for part in parts):
        return False  # the rest is small, and a search asks about many layouts
    _, room, each = _held(simulation, pages)
    return sum(size for _, size in each[_PHASES.index("first_step")]) > room


def _held(simulation: Simulation, pages: tuple[int, ...]) -> tuple[int, int, tuple[tuple[tuple[str, int], ...], ...]]:
    """(ranks of a host, its bytes, owners and bytes on the fullest one in each phase)."""
    topology, plans = simulation.topology, simulation.plans
    per_host = min(topology.gpus_per_host, simulation.job.mesh.size)
    programs = [simulation.programs.get(plan.rank) for plan in plans]
    waiting = [most_on_host(program, rounded=True) if program else 0 for program in programs]
    each = _fullest(plans, simulation.classes, simulation.framework.files, per_host, simulation.comm_setup().tokens,
                    tuple(zip(pages, waiting, strict=True)))
    return per_host, int(topology.node.host_memory), each


def hosted(simulation: Simulation, report: Report) -> Report:
    """Copy of the report with `host`: memory of the fullest host while reading, training and saving.

    Unchanged where not all ranks were simulated.
    """
    mesh, topology = simulation.job.mesh, simulation.topology
    if sum(c.num_ranks for c in simulation.classes) != mesh.size:
        return report
    per_host, room, each = _held(simulation, tuple(
        away(plan, rank.peak.outside) if rank.peak else 0 for plan, rank in zip(simulation.plans, report.ranks,
                                                                              strict=True)))
    ranks = [_of_report(rank) for rank in report.ranks]
    phases = (_phase(simulation, ranks, phase, dict(held)) for phase, held in zip(_PHASES, each, strict=True))
    host = Host(capacity_bytes=room, ranks_per_host=per_host, phases=tuple(phases))
    memory = topology.node.host_memory
    kind: Literal["assumed", "derived"] = "assumed" if memory.kind == "assumed" else "derived"
    told = Assumption(what="host_memory", value=format_bytes(host.capacity_bytes), kind=kind, source=memory.source)
    told_all = (*report.assumptions, told, of_drives(topology))
    return report.model_copy(update={"host": host, "assumptions": told_all})


def _transfer(files: Files, phase: _Phase) -> Transfer | None:
    return {"load": files.load, "first_step": None, "save": files.save}[phase]


def _of_report(rank: RankReport) -> OnDevice:
    assert rank.peak is not None
    grads = sum(r.grads_bytes for r in rank.at_rest.values()) + rank.grads_padding_bytes if rank.grads_persist else 0
    return OnDevice(grads, rank.end_bytes or 0, sum(rank.peak.outside.values()),
                    rank.peak.first_step_bytes or rank.peak.allocated_bytes)


def _phase(simulation: Simulation, ranks: Sequence[OnDevice], phase: _Phase, held: dict[str, int]) -> HostPhase:
    transfer = _transfer(simulation.framework.files, phase)
    host_bytes, room = sum(held.values()), int(simulation.topology.node.host_memory)
    verdict, device_bytes = _on_device(simulation, ranks, phase)
    return HostPhase(
        phase=phase, host_bytes=host_bytes, device_bytes=device_bytes,
        host_verdict="fits" if host_bytes <= room else "oom", device_verdict=verdict,
        by_owner={name: size for name, size in held.items() if size}, source=transfer.source if transfer else "",
        seconds=least_seconds(_moved(simulation, phase, transfer), simulation.topology) if transfer else None)


def _moved(simulation: Simulation, phase: _Phase, transfer: Transfer) -> Moved:
    """Bytes that reading or writing the model moves, see [Note: time of phases].

    All that a host's ranks hold is on its drives once, but a rank's link carries the whole model where the rank gets
    it whole. What several ranks read of one file is read once.
    """
    job, framework = simulation.job, simulation.framework
    whole = model_bytes(job.graph, framework, trained_only=transfer.trained_only, packed=transfer.packed)
    gathered = model_bytes(job.graph, framework, trained_only=transfer.leaves_frozen, packed=transfer.packed)
    own = max(_copied(plan, replace(transfer, params=1, states=min(1, transfer.states))) for plan in simulation.plans)
    together = own * min(simulation.topology.gpus_per_host, job.mesh.size)
    files = whole if transfer.whole_on or transfer.one_process else together
    files = files if transfer.states else min(files, whole)
    link = gathered if transfer.whole_on or transfer.one_process or transfer.on_device else own
    return Moved(read=files, to_device=link) if phase == "load" else Moved(written=files, to_host=link)


# ---- the host -------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=256)
def _fullest(plans: tuple[Plan, ...], classes: tuple[RankClass, ...], files: Files, per_host: int,
             tokens: int, moved: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """(owner, bytes) on the fullest host in each phase; scenarios with the same placement share it.

    `moved`: of each plan's ranks, bytes of optimizer states on the host because the device has no room, and of saved
    tensors that wait there.
    """
    return tuple(_fullest_in([_of_rank(plan, phase, _transfer(files, phase), tokens, *gone)
                              for plan, gone in zip(plans, moved, strict=True)], plans,
                             classes, _transfer(files, phase), per_host) for phase in _PHASES)


def _fullest_in(each: Sequence[Counter[str]], plans: tuple[Plan, ...], classes_of: tuple[RankClass, ...],
                transfer: Transfer | None, per_host: int) -> tuple[tuple[str, int], ...]:
    whole, cut = _whole(plans[0], transfer), _cut(plans[0], transfer) if transfer and transfer.cut_on_host else 0
    name = "a file" if transfer and transfer.file_bytes else "whole model"
    sizes = np.array([own.total() for own in each], dtype=np.int64)
    best: tuple[int, Counter[str]] = (-1, Counter())
    for first, classes in _windows(plans[0].mesh, classes_of, per_host):
        starts = np.arange(0, len(classes), per_host)
        sums = np.add.reduceat(sizes[classes], starts)
        readers = _readers(transfer, first, np.minimum(per_host, len(classes) - starts))
        sums = sums + whole * readers
        sums[0] += cut * (first == 0)
        at = int(np.argmax(sums))
        if sums[at] > best[0]:
            ranks = classes[starts[at]:starts[at] + per_host].tolist()
            own = Counter({name: whole * int(readers[at]), "experts apart": cut * (first == 0 == at)})
            best = int(sums[at]), sum((each[n] for n in ranks), own)
    return tuple(best[1].items())


def _windows(mesh: Mesh, classes: Iterable[RankClass], per_host: int) -> Iterator[tuple[int, IntArray]]:
    """(first rank, numbers of the classes from there): the whole job, or of each stage as much as does not repeat."""
    numbered = list(enumerate(classes))
    stages: dict[int, IntArray] = {}
    for number, one in numbered:
        table = stages.setdefault(one.stage, np.zeros(one.period, dtype=np.int64))
        table[one.offsets] = number
    if mesh.size <= _MOST_RANKS:
        yield 0, np.concatenate([np.resize(stages[stage], mesh.stage_size) for stage in sorted(stages)])
        return
    for stage, table in stages.items():
        width = min(mesh.stage_size, math.lcm(len(table), per_host), _MOST_RANKS)
        yield stage * mesh.stage_size, np.resize(table, max(width, per_host))


def _readers(transfer: Transfer | None, first: int, num: IntArray) -> IntArray:
    """Number of ranks on each host that hold the whole model, of `num` [host]; `first`: the first of these ranks."""
    if transfer is not None and transfer.whole_on == "every_rank":
        return num
    readers = np.zeros_like(num)
    readers[0] = transfer is not None and transfer.whole_on == "rank0" and first == 0
    return readers


def _of_rank(plan: Plan, phase: _Phase, transfer: Transfer | None, tokens: int, pages: int,
             waiting: int) -> Counter[str]:
    """Bytes that one rank holds on the host, by owner, without the whole model.

    `tokens`: of its microbatch; `pages`: of optimizer states, once there are some; `waiting`: of saved
    tensors in a step.
    """
    held = Counter({"parameters": 0, "gradients": 0, "optimizer states": 0, "activations": 0, "checkpoint": 0})
    held["activations"] = plan.offloaded_input_bytes(tokens) + waiting if phase == "first_step" else 0
    there = {"load": ("parameters",), "first_step": ("parameters", "gradients", "optimizer states"),
             "save": ("parameters", "optimizer states")}[phase]
    for placed, count in _placed(plan):
        for what, space, num_bytes in placed.elsewhere:
            if what in there:
                held[what] += count * _rests(num_bytes, space)
    for what, num_bytes in framework_adapter(plan.framework.name).host_buffers(plan, rounded=True).items():
        if what in there or phase == "first_step":
            held[what] += num_bytes
    held["optimizer states"] += pages * ("optimizer states" in there)
    if transfer is not None:
        held["checkpoint"] = max(_copied(plan, transfer), transfer.in_flight * _largest(plan, transfer))
    return held


def _rests(num_bytes: int, space: str) -> int:
    """Bytes on the host. Pinned blocks are powers of two (torch 2.13 ATen/core/CachingHostAllocator.h:300)."""
    if space not in _ON_HOST:
        return 0
    return 1 << (num_bytes - 1).bit_length() if space == "host_pinned" else num_bytes


@lru_cache(maxsize=1024)
def _copied(plan: Plan, transfer: Transfer) -> int:
    """The rank's own part, as often as it lies on the host at once; several ranks share what they all have."""
    total = 0.0
    for placed, count in _placed(plan):
        if placed.spec.is_owned and _is_moved(placed.spec, transfer):
            own = _stored_bytes(placed.policy, placed.local)
            sharers, whole = _sharers(plan, placed, transfer), plan.framework.strategy.holds_whole_states
            total += count * (transfer.params * own / sharers
                              + transfer.states * placed.state_bytes / (sharers if whole else 1))
    return math.ceil(total)


def _sharers(plan: Plan, placed: Placed, transfer: Transfer) -> int:
    if transfer.shared is None:
        return 1
    dense, expert = transfer.shared
    return plan.mesh.axis(expert if placed.spec.component in ("routed_experts", "expert_adapters") else dense).size


def _largest(plan: Plan, transfer: Transfer) -> int:
    """The largest tensor of a file, in which each expert has tensors of its own."""
    return max((_stored_bytes(p.policy, _stored_numel(p.spec)) for p, _ in _placed(plan)
                if _is_moved(p.spec, transfer)), default=0)


def _stored_numel(spec: TensorSpec) -> int:
    fused = spec.component == "routed_experts" and len(spec.shape) == len(("expert", "out", "in"))
    return math.prod(spec.shape[1:] if fused else spec.shape)


def _stored_bytes(policy: TensorPolicy, numel: int) -> int:
    """Elements as they are read or written: what is packed on the device is packed when it has been read."""
    return packed_bytes(numel, policy.in_use.dtype if policy.at_rest.packed else policy.at_rest.dtype)


def _is_moved(spec: TensorSpec, transfer: Transfer) -> bool:
    return spec.trainable or not transfer.leaves_frozen


def _whole(plan: Plan, transfer: Transfer | None) -> int:
    """Bytes of the model, or of its largest file, that a rank holds on the host if it is one that holds all of it."""
    if transfer is None or not transfer.whole_on:
        return 0
    size = model_bytes(plan.graph, plan.framework, trained_only=transfer.leaves_frozen, packed=transfer.packed)
    return min(size, transfer.file_bytes or size)


def _cut(plan: Plan, transfer: Transfer) -> int:
    """Bytes of all tensors of the model that are copied, cut into those of the files."""
    if not transfer.cut:
        return 0
    kinds = Counter(layer.kind for layer in plan.graph.layers)
    return sum(_stored_bytes(plan.framework.policy(spec), count * spec.copies * math.prod(spec.shape))
               for kind, count in kinds.items() for spec in plan.graph.tensors[kind]
               if spec.is_owned and spec.name.endswith(transfer.cut))


def model_bytes(graph: ModelGraph, framework: Framework, *, trained_only: bool = False, packed: bool = False) -> int:
    """Bytes of all parameters of the model as checkpoints store them, tied ones once.

    `trained_only`: True counts only those with a gradient. `packed`: what is packed at rest is so in the files. A
    reference model of preferences is in no file.
    """
    return _model_bytes(graph, framework.policies(graph), trained_only, packed)


@lru_cache(maxsize=256)
def _model_bytes(graph: ModelGraph, policies: TensorPolicies, trained_only: bool, packed: bool) -> int:  # noqa: FBT001 - a key of the cache
    kinds = Counter(layer.kind for layer in graph.layers)
    return sum(_whole_bytes(policy, spec, count, packed=packed)
               for kind, count in kinds.items()
               for policy, spec in zip(policies.of[kind], graph.tensors[kind], strict=True)
               if spec.is_owned and (spec.trainable or not trained_only) and spec.component != "reference")


def _whole_bytes(policy: TensorPolicy, spec: TensorSpec, count: int, *, packed: bool) -> int:
    numel = math.prod(spec.shape)
    if packed and policy.at_rest.packed:
        return count * spec.copies * (policy.at_rest.num_bytes(numel) + policy.at_rest.constants(spec.shape))
    return _stored_bytes(policy, count * spec.copies * numel)


def _placed(plan: Plan) -> Iterator[tuple[Placed, int]]:
    """The rank's tensors, and in how many layers."""
    for kind, count in plan.kind_counts:
        for placed in plan.kinds[kind]:
            yield placed, count


# ---- the device -----------------------------------------------------------------------------------------------------
def _on_device(simulation: Simulation, ranks: Sequence[OnDevice], phase: _Phase) -> tuple[Verdict, int]:
    """(verdict of the phase, most likely bytes of the fullest rank)."""
    transfer = _transfer(simulation.framework.files, phase)
    needed = [_device(simulation, plan, rank, phase, transfer) for plan, rank
              in zip(simulation.plans, ranks, strict=True)]
    return verdict_of((one.band for one in needed), simulation.limit_bytes()), max(one.middle for one in needed)


def _device(simulation: Simulation, plan: Plan, rank: OnDevice, phase: _Phase, transfer: Transfer | None) -> Reserved:
    """Device memory of the phase: tensors, fragmentation, and memory outside the allocator.

    Before the first step there are parameters, gradient buffers, and states that are made early.
    """
    allocated = {"load": _built(plan) + rank.grads, "first_step": rank.first_step, "save": rank.end}[phase]
    moment = _moment(plan, transfer) if transfer else 0
    return simulation.needed(allocated + moment).plus(rank.outside)


def _built(plan: Plan) -> int:
    params = sum(count * plan.kinds[kind].rest_bytes for kind, count in plan.kind_counts)
    states = sum(count * sum(plan.kinds[kind].state_bytes.values()) for kind, count in plan.kind_counts)
    return params + max(0, states - plan.born_in_step())


@lru_cache(maxsize=1024)
def _moment(plan: Plan, transfer: Transfer) -> int:
    """A whole tensor while it is sent, a unit before it is cut, or of the model what the rank will not keep.

    With tensors that are cut on the device into those of the files.
    """
    return _cut(plan, transfer) * (not transfer.cut_on_host) + _gathered(plan, transfer)


def _gathered(plan: Plan, transfer: Transfer) -> int:
    if transfer.on_device == "tensor":
        return max((_stored_bytes(p.policy, p.spec.copies * math.prod(p.spec.shape)) for p, _ in _placed(plan)
                    if _is_moved(p.spec, transfer)), default=0)
    if transfer.on_device == "module":
        modules: Counter[tuple[int, str]] = Counter()
        for kind, _ in plan.kind_counts:
            for p in plan.kinds[kind]:
                if p.spec.is_owned:
                    modules[kind, p.spec.path] += p.policy.at_rest.num_bytes(math.prod(p.spec.shape))
        return max(modules.values(), default=0)
    if transfer.on_device == "unit":
        units = ((plan.of_layer(layer)[n] for layer, numbers in unit.members for n in numbers)
                 for unit in plan.framework.units)
        return max((sum(_stored_bytes(p.policy, math.prod((p.spec.copies, *p.spec.shape))) for p in unit)
                    for unit in units), default=0)
    if transfer.on_device == "model":
        uncut = (count * p.spec.copies * (p.policy.at_rest.num_bytes(math.prod(p.spec.shape)) +
                                          p.policy.at_rest.constants(p.spec.shape)) for p, count in _placed(plan)
                 if p.spec.is_owned and not p.spec.is_buffer)
        return max(0, sum(uncut) - sum(count * p.rest_bytes for p, count in _placed(plan) if not p.spec.is_buffer))
    return 0
