"""Rates from the time of a step: tokens/s, TFLOP/s, MFU, the bound of the step, its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcore.hardware.device import Device
from simcore.hardware.efficiency import Efficiency
from simcore.hardware.topology import Topology
from simcore.models.flops import Asked, convention_of
from simcore.models.graph import ModelGraph
from simcore.placement.framework import Framework
from simcore.placement.job import Job
from simcore.placement.packing import pack_sequences
from simcore.results.report import TrafficRow
from simcore.results.time import CommunicationTime, Cost, KernelTime, Roofline, StepTime
from simcore.timing.breakdown import Breakdown, Sent, Work
from simcore.timing.kernel import on_matrix_units
from simcore.timing.routes import HOST_WAYS, Routes
from simcore.timing.step import StepLength, StepTiming

__all__ = ["Rates", "cost", "rates", "step_time", "usd_per_million_tokens"]

_OWN: Final = "rankscope"
_LINKS: Final = {"nvlink": "nvlink", "self": "nvlink", "network": "network", "host": "host_link"}
"""Names of links in a roofline. `nvlink` is the level inside a node, also where it is PCIe."""


def step_time(job: Job, framework: Framework, routes: Routes, clocked: StepTiming, ranks: Sequence[str],
              traffic: Sequence[TrafficRow]) -> StepTime:
    """Returns the report's `StepTime`: seconds of a step and its parts, rates, bounds and cost.

    Parts, bounds and executed TFLOP/s are of a rank that ends last, other rates the mean per GPU. `clocked`: the timed
    step; `ranks`: names of the ranks that end last; `traffic`: traffic rows of one of these.
    """
    rate, spending, topology = rates(job, framework, routes, clocked), clocked.spending, routes.topology
    seconds, tokens = rate.step_s, _tokens(job)
    dtype, peak = _peak(job, framework, topology.device)
    parts = {name: ns / 1e9 for name, ns in spending.parts.items()}
    products = _on_matrix_units(spending.work, topology.efficiency)
    return StepTime(
        step_s=seconds, forward_s=clocked.phase_ns["forward"] / 1e9, backward_s=clocked.phase_ns["backward"] / 1e9,
        optimizer_s=clocked.phase_ns["optimizer"] / 1e9, exposed_communication_s=parts["communication"],
        tokens_per_s_per_gpu=rate.tokens_per_s_per_gpu, model_tflops_per_gpu=rate.model_flops_per_s_per_gpu / 1e12,
        mfu=rate.mfu, convention=rate.convention,
        executed_tflops_per_gpu=sum(row.flops for row in products) / seconds / 1e12,
        peak_tflops=peak / 1e12 if peak else None, peak_dtype=dtype, ranks=tuple(ranks), parts=parts,
        bubble_share=parts["bubble"] / seconds,
        communication=tuple(_communication(row, routes) for row in spending.sent),
        kernels=tuple(_kernel(row) for row in spending.work), roofline=_roofline(spending, routes, traffic),
        cost=cost(topology, seconds, tokens, job.mesh.size, job.scenario.training.run_steps(tokens, _samples(job))))


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a step, means per GPU. `mfu`: 0 to 1; `convention`: name of the rule by which FLOPs are counted."""

    step_s: float
    tokens_per_s_per_gpu: float
    model_flops_per_s_per_gpu: float
    mfu: float
    convention: str


def rates(job: Job, framework: Framework, routes: Routes, clocked: StepLength) -> Rates:
    """Rates of a timed step of a job."""
    seconds, tokens = clocked.step_ns / 1e9, _tokens(job)
    convention, per_token = _counted(job, framework, clocked)
    _, peak = _peak(job, framework, routes.topology.device)
    achieved = per_token * tokens / seconds / job.mesh.size
    return Rates(seconds, tokens / seconds / job.mesh.size, achieved, achieved / peak if peak else 0.0, convention)


def usd_per_million_tokens(job: Job, topology: Topology, step_s: float) -> float | None:
    """US dollars for a million tokens; None where the topology has no price."""
    return cost(topology, step_s, _tokens(job), job.mesh.size, None).per_million_tokens


def _tokens(job: Job) -> int:
    """Tokens of one step, padding included."""
    training, mesh = job.scenario.training, job.mesh
    sequences = job.scenario.num_microbatches * training.micro_batch_size * mesh.dp_replicate * mesh.dp_shard
    return sequences * training.seq_len


def _samples(job: Job) -> int:
    """Sequences of one step, each counted alone where several share a pack."""
    scenario, mesh = job.scenario, job.mesh
    each = pack_sequences(scenario.training).sequences or scenario.training.micro_batch_size
    return scenario.num_microbatches * each * mesh.dp_replicate * mesh.dp_shard


def _counted(job: Job, framework: Framework, clocked: StepLength) -> tuple[str, float]:
    """(name of the framework's FLOPs convention, FLOPs of a token); ours if the framework has none for the model."""
    training, graph = job.scenario.training, job.graph
    asked = Asked(graph, training.seq_len, pack_sequences(training).attended, job.mesh.tp,
                  None if training.method == "full" else _adapted(graph))
    convention = convention_of((graph.implementation, framework.name), framework.version)
    if convention is not None and convention.knows(asked):
        return convention.name, convention.per_token(asked)
    passes = 3 if training.method == "full" else 2
    return _OWN, passes * clocked.forward_flops / _tokens(job)


def _adapted(graph: ModelGraph) -> float:
    """Number of trained parameters per frozen parameter."""
    trained = graph.count(trainable=True)
    return trained / (graph.count() - trained)


def _peak(job: Job, framework: Framework, device: Device) -> tuple[str, float]:
    """Format in which products are asked for, and the device's dense FLOP/s in it; 0 if it has no such format."""
    dtype = job.narrow or framework.compute_dtype
    return dtype, _dense_peak(device, dtype)


def _dense_peak(device: Device, dtype: str) -> float:
    rate = getattr(device.peak, dtype, None)
    return float(rate.si) if rate else 0.0


# ---- what it is made of ---------------------------------------------------------------------------------------------
def _communication(sent: Sent, routes: Routes) -> CommunicationTime:
    return CommunicationTime(
        collective=sent.collective, axis=sent.axis, link=routes.of(sent.collective, sent.axis).link.name,
        calls=sent.calls, alone_s=sent.alone_ns / 1e9, exposed_s=sent.exposed_ns / 1e9, hidden_s=sent.hidden_ns / 1e9)


def _kernel(work: Work) -> KernelTime:
    forward, backward, optimizer = (ns / 1e9 for ns in work.ns)
    return KernelTime(kernel=work.kernel, dtype=work.dtype, forward_s=forward, backward_s=backward,
                      optimizer_s=optimizer, flops=work.flops, bytes_moved=work.bytes_moved)


def _on_matrix_units(work: Sequence[Work], efficiency: Efficiency) -> list[Work]:
    return [row for row in work if on_matrix_units(efficiency, row.kernel)]


def _roofline(spending: Breakdown, routes: Routes, traffic: Sequence[TrafficRow]) -> Roofline:
    parts, work = spending.parts, spending.work
    kernels = parts["forward"] + parts["backward"] + parts["optimizer"]
    compute, memory = (sum(getattr(row, name) for row in work) / 1e9 for name in ("compute_ns", "memory_ns"))
    seconds = {"compute": compute, "memory": memory, "small_kernels": kernels / 1e9 - compute - memory,
               **_by_link(spending, routes), **{name: parts[name] / 1e9 for name in ("contention", "host", "bubble")}}
    limits = _limits(work, routes.topology, traffic)
    bound: Any = max(seconds, key=lambda name: seconds[name])
    limit: Any = max(limits, key=lambda name: limits[name])
    return Roofline(bound=bound, seconds=seconds, limit=limit, limit_s=limits[limit], limits=limits)


def _by_link(spending: Breakdown, routes: Routes) -> dict[str, float]:
    """Seconds of the part `communication` by link, divided in proportion to exposed time."""
    exposed = dict.fromkeys(_LINKS.values(), 0)
    for sent in spending.sent:
        exposed[_LINKS[routes.of(sent.collective, sent.axis).link.name]] += sent.exposed_ns
    total = sum(exposed.values())
    return {name: spending.parts["communication"] / 1e9 * (ns / total if total else name == "nvlink")
            for name, ns in exposed.items()}


def _limits(work: Sequence[Work], topology: Topology, traffic: Sequence[TrafficRow]) -> dict[str, float]:
    """Lower bounds of the step in seconds: at the datasheets' peaks and bandwidths, each separately."""
    device, inside, outside = topology.device, topology.node.fabric, topology.network
    products = _on_matrix_units(work, topology.efficiency)
    near = sum(_sent_inside(row, sums_in_switch=bool(inside and inside.sums_in_switch)) for row in traffic)
    far = sum(row.network_bytes for row in traffic)
    copied = [sum(row.wire_bytes for row in traffic if row.axis == way) for way in HOST_WAYS]
    return {"compute": sum(row.flops / _dense_peak(device, row.dtype) for row in products),
            "memory": sum(row.bytes_moved for row in work) / device.memory_bandwidth.si,
            "nvlink": near / inside.bandwidth.si if inside else 0.0,
            "network": far / outside.bandwidth.si if outside else 0.0,
            "host_link": max(copied) / topology.node.host_link.bandwidth.si}


def _sent_inside(row: TrafficRow, *, sums_in_switch: bool) -> int:
    """Least bytes that a rank sends inside a node; where the switch sums, it sends its buffer of an all-reduce once."""
    return min(row.nvlink_bytes, row.payload_bytes) if (
        sums_in_switch and row.collective == "all_reduce") else row.nvlink_bytes


# ---- money ----------------------------------------------------------------------------------------------------------
def cost(topology: Topology, step_s: float, tokens: int, num_gpus: int, num_steps: int | None) -> Cost:
    """Cost on all GPUs of one step of `step_s` seconds and `tokens` tokens, and of a run of `num_steps`.

    Prices are in US dollars; they are None, with a note, if the topology has no price per GPU hour. Fields of a
    run are None if `num_steps` is.
    """
    run_s = None if num_steps is None else num_steps * step_s
    gpu_hours = None if run_s is None else run_s * num_gpus / 3600
    price = topology.price_per_gpu_hour
    if price is None:
        return Cost(run_s=run_s, gpu_hours=gpu_hours, note=f"no price: {topology.name} has no price_per_gpu_hour")
    per_step = price.si * num_gpus * step_s / 3600
    return Cost(price_per_gpu_hour=price.si, price_date=price.date, price_source=price.source, per_step=per_step,
                per_million_tokens=per_step / tokens * 1e6, run_s=run_s,
                gpu_hours=gpu_hours, per_run=None if gpu_hours is None else gpu_hours * price.si)
