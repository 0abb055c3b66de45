"""Merging of adapters and export after training: memory of device and host, and the least duration.

Sizes of what a conversion holds at once are records of the framework (`placement/afterwards.py`). Where it runs in the
training's processes, parameters, states and gradient buffers are still there; a process of its own on the host has the
model alone. Each copy of a matrix is written and read once, the base read and written once, and the merged model goes
to files; see [Note: time of phases].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from simcore.models.tensor import TensorSpec
from simcore.placement.afterwards import Copies, Export, Merge
from simcore.placement.export_files import waiting_bytes
from simcore.placement.plan import Placed, Plan
from simcore.results.report import HostPhase, Report
from simcore.results.verdict import verdict_of
from simcore.simulation.hosts import model_bytes
from simcore.simulation.moved_bytes import Moved, least_seconds
from simcore.simulation.simulation import Simulation
from simcore.units import dtype_bytes

__all__ = ["converted"]

_FP32, _BF16 = 4, 2


def converted(simulation: Simulation, report: Report, resting: Mapping[str, int]) -> tuple[HostPhase, ...]:
    """Phases "merge" and "export" as far as the scenario asks for them.

    `report`: of the training step. `resting`: bytes by owner that the training leaves on the host.
    """
    merge, export = simulation.framework.afterwards.merge, simulation.framework.afterwards.export
    phases = []
    if merge is not None:
        phases.append(_merged(simulation, report, merge, resting))
    if export is not None:
        phases.append(_exported(simulation, report, export, resting))
    return tuple(phases)


def _merged(simulation: Simulation, report: Report, merge: Merge, resting: Mapping[str, int]) -> HostPhase:
    extra, working = (max(_moment(plan, moments, simulation) for plan in simulation.plans)
                      for moments in (merge.device, merge.host))
    moved = max((_merging(plan, merge, simulation) for plan in simulation.plans), key=lambda one: one.flops)
    ranks = 1 if merge.whole_on_host else _ranks_per_host(simulation)
    model = {"base in 16 bits": _base_bytes(simulation), "adapters": _adapter_bytes(simulation)}
    base = model if merge.whole_on_host else resting
    file = min(_merged_bytes(simulation, merge), merge.file_bytes)  # after all linears: one of the two is there
    work = {"a file": file} if file > working * ranks else {"one linear": working * ranks}
    return _phase("merge", simulation, report, None if merge.whole_on_host else extra, {**base, **work}, merge.source,
                  {"checkpoint.merge": "host"}, moved)


def _exported(simulation: Simulation, report: Report, export: Export, resting: Mapping[str, int]) -> HostPhase:
    whole, waiting = _base_bytes(simulation), waiting_bytes(simulation.job.graph, _BF16)
    if export.whole_on_host:  # what waits is at most that much: tensors that need no conversion are the model's own
        on_host = {"whole model": whole, "files begun": waiting}
        moved = Moved(read=whole, written=whole, on_host=2 * whole)
        return _phase("export", simulation, report, None, on_host, export.source, {}, moved)
    largest = max(_gathered(plan) for plan in simulation.plans)
    on_host = {**resting, "files begun": waiting, "a tensor on each rank": largest * _ranks_per_host(simulation)}
    return _phase("export", simulation, report, export.copies * largest, on_host, export.source,
                  {"checkpoint.export": "host"}, Moved(to_host=whole, written=whole))


def _gathered(plan: Plan) -> int:
    """Bytes of the largest tensor that a rank gathers: a whole matrix, or of each expert-parallel rank an expert's."""
    sizes = (math.prod(placed.spec.shape[1:]) * plan.mesh.ep if _is_of_experts(placed.spec)
             else math.prod(placed.spec.shape) for placed in _placed(plan))
    return max(sizes) * _BF16


def _is_of_experts(spec: TensorSpec) -> bool:
    return spec.component == "routed_experts" and len(spec.shape) == len(("expert", "out", "in"))


# ---- one linear ------------------------------------------------------------------------------------------------------
def _moment(plan: Plan, moments: tuple[Copies, ...], simulation: Simulation) -> int:
    """Most bytes of these moments, over all linears with an adapter."""
    compute = dtype_bytes(simulation.framework.compute_dtype)
    return max((_copied(copies, base, low_rank, compute) for _, base, low_rank in _adapted(plan)
                for copies in moments), default=0)


def _merging(plan: Plan, merge: Merge, simulation: Simulation) -> Moved:
    """Work of a merge of all linears with adapters, one after the other, and of the merged model's files."""
    compute, whole = dtype_bytes(simulation.framework.compute_dtype), merge.whole_on_host
    written = _merged_bytes(simulation, merge)
    on_device = between = on_host = flops = 0
    in_fp32 = False
    for times, base, low_rank in _adapted(plan):
        numel = math.prod(base.spec.shape)
        made, there = (max((_copied(copies, base, low_rank, compute) for copies in moments), default=0)
                       for moments in (merge.device, merge.host))
        on_device += times * 2 * (made + base.rest_bytes // base.spec.copies) * (not whole)
        between += times * there * (not whole)
        on_host += times * 2 * (there + _BF16 * numel * whole)
        flops += times * 2 * numel * _rank_of(base.spec, low_rank)
        in_fp32 |= low_rank[0].policy.at_rest.dtype == "fp32"
    from_files = whole or merge.rewrites
    return Moved(read=(written + _adapter_bytes(simulation) * whole) * from_files, written=written,
                 on_device=on_device, to_device=between, to_host=between + written * (not from_files), on_host=on_host,
                 flops=0 if whole else flops, in_fp32=in_fp32)


def _merged_bytes(simulation: Simulation, merge: Merge) -> int:
    """Bytes of the merged model in files: the base in 16 bits where it comes from files, else as it is at rest."""
    if merge.whole_on_host or merge.rewrites:
        return _base_bytes(simulation)
    return max(sum(count * placed.rest_bytes for kind, count in plan.kind_counts for placed in plan.kinds[kind]
                   if placed.spec.is_owned and placed.spec.module != "adapter" and not placed.spec.is_buffer)
               for plan in simulation.plans)


def _rank_of(base: TensorSpec, low_rank: tuple[Placed, ...]) -> int:
    """Inner dimension of an adapter: its matrices [rank, in] and [out, rank] have rank * (in + out) elements."""
    rows, columns = base.shape[-2:]
    matrices = sum(math.prod(one.spec.shape) for one in low_rank if len(one.spec.shape) > 1)
    return matrices * rows * columns // (math.prod(base.shape) * (rows + columns))


def _copied(copies: Copies, base: Placed, low_rank: tuple[Placed, ...], compute: int) -> int:
    numel = math.prod(base.spec.shape)
    adapter = dtype_bytes(low_rank[0].policy.at_rest.dtype)
    packed = base.rest_bytes // base.spec.copies if copies.packed else 0
    own = sum(math.prod(one.spec.shape) for one in low_rank)
    return numel * (copies.adapters * adapter + copies.compute * compute + copies.wide * max(adapter, compute)
                    + copies.fp32 * _FP32) + packed + copies.low_rank_fp32 * own * _FP32


def _adapted(plan: Plan) -> Iterator[tuple[int, Placed, tuple[Placed, ...]]]:
    """Each weight with an adapter, of every kind of layer on the rank: how many, one, and its adapter's matrices."""
    for kind, count in plan.kind_counts:
        by_path: dict[str, list[Placed]] = {}
        for placed in plan.kinds[kind]:
            if placed.spec.module == "adapter":
                by_path.setdefault(placed.spec.path.rpartition(".")[0], []).append(placed)
        for placed in plan.kinds[kind]:
            # adapters of a parameter have its own name, those of a module the name of the module
            found = by_path.get(placed.spec.name) or by_path.get(placed.spec.path)
            if found and placed.spec.module != "adapter":
                yield count * placed.spec.copies, placed, tuple(found)


def _placed(plan: Plan) -> Iterator[Placed]:
    for kind, _ in plan.kind_counts:
        yield from plan.kinds[kind]


# ---- the model on the host -------------------------------------------------------------------------------------------
def _adapter_bytes(simulation: Simulation) -> int:
    return model_bytes(simulation.job.graph, simulation.framework, trained_only=True)


def _base_bytes(simulation: Simulation) -> int:
    """Bytes of the whole model in 16 bits, without adapters."""
    graph = simulation.job.graph
    kinds = [layer.kind for layer in graph.layers]
    return _BF16 * sum(spec.copies * math.prod(spec.shape) for kind in kinds for spec in graph.tensors[kind]
                       if spec.is_owned and spec.module != "adapter" and not spec.is_buffer)


def _ranks_per_host(simulation: Simulation) -> int:
    return min(simulation.topology.gpus_per_host, simulation.job.mesh.size)


# ---- the phase -------------------------------------------------------------------------------------------------------
def _phase(name: str, simulation: Simulation, report: Report, extra: int | None, on_host: Mapping[str, int],
           source: str, change: Mapping[str, str], moved: Moved) -> HostPhase:
    """The phase of the fullest rank. `extra`: bytes on the device beside what rests there; None: nothing is there."""
    needed = [] if extra is None else [simulation.needed((rank.end_bytes or 0) + extra).plus(
        sum(rank.peak.outside.values() if rank.peak else ())) for rank in report.ranks]
    size, room = sum(on_host.values()), int(simulation.topology.node.host_memory)
    verdicts = ("fits" if size <= room else "oom",
                verdict_of((one.band for one in needed), simulation.limit_bytes()) if needed else "fits")
    return HostPhase.model_validate({
        "phase": name, "host_bytes": size, "seconds": least_seconds(moved, simulation.topology),
        "device_bytes": max((one.middle for one in needed), default=0),
        "host_verdict": verdicts[0],
        "device_verdict": verdicts[1], "by_owner": {owner: held for owner, held in on_host.items() if held},
        "by_category": {} if extra is None else {"at rest": max(rank.end_bytes or 0 for rank in report.ranks),
                                                 "one tensor": extra},
        "source": source, "change": change if verdicts != ("fits", "fits") else {}})
