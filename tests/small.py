"""Scenarios of small models, and the pieces of a simulation one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import simcore.program.lower as lowering
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.models.graph import ModelGraph
from simcore.pipeline.schedule import Action, actions
from simcore.placement.framework import Framework
from simcore.placement.job import Job
from simcore.placement.plan import Plan, place
from simcore.program.builder import Builder
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.shared_steps import _PATTERNS
from simcore.recording.tape import Kernel, Op, Stream
from simcore.results.report import Peak, Report

TINY = "nemotron-3-tiny"
FRAMEWORKS = ("fsdp2", "automodel", "megatron", "megatron_fsdp")


def gather_beside(out: Builder, axis: str, ns: int, first: int, behind: int) -> None:
    """A gather, a kernel beside it, and one that waits for it; all as long as they are large."""
    comm = out.tables.comm("all_gather", axis, "bf16")
    out.collective(0, comm, ns, Stream.ALL_GATHER, 0)
    out.compute(Kernel.GEMM, 0, first)
    out.wait(0, 0)
    out.compute(Kernel.GEMM, 0, behind)


def scenario(framework: str, mesh: dict[str, int] | None = None, *, microbatches: int | None = None, model: Any = TINY,
             options: dict[str, Any] | None = None, version: Any = "auto", topology: str = "dgx-h100",
             implementation: str = "auto", **training: Any) -> Scenario:
    """One question about a small model: 64 tokens, one sequence a microbatch."""
    mesh = mesh or {}
    copies = mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
    batch = {} if microbatches is None else {"global_batch_size": microbatches * copies}
    data = {"name": "small", "model": model, "framework": framework, "topology": topology, "mesh": mesh,
            "framework_version": version, "implementation": implementation,
            "training": {"seq_len": 64, **batch, **training},
            "framework_options": options or {}}
    return parse_scenario(parse_document(json.dumps(data), "small.json"))


def prepared(framework: str, mesh: dict[str, int] | None = None, **given: Any) -> tuple[Job, Framework]:
    """Its job and its framework's table."""
    return prepare(scenario(framework, mesh, **given))


def components(graph: ModelGraph) -> tuple[str, ...]:
    """Components that hold parameters, in order of first appearance."""
    return tuple(dict.fromkeys(spec.component for layer in graph.layers for spec in graph.tensors[layer.kind]
                               if spec.is_owned))


def plan_of(framework: str, mesh: dict[str, int] | None = None, *, rank: int = 0, **given: Any) -> Plan:
    """Plan of one rank."""
    job, table = prepared(framework, mesh, **given)
    return place(job.graph, job.mesh, table, rank)


def program_of(framework: str, mesh: dict[str, int] | None = None, *, rank: int = 0, top_k: int = 2,
               **given: Any) -> Program:
    """Program of one rank, with all microbatches; a token goes to `top_k` experts."""
    asked = scenario(framework, mesh, **given)
    job, table = prepare(asked)
    plan = place(job.graph, job.mesh, table, rank)
    count = asked.num_microbatches
    workload = Workload(1, asked.training.seq_len // job.mesh.cp, top_k << 16)
    return lower(plan, workload, actions(table.schedule, plan.stage, count), hooks_of(table))


def allocated(report: Report) -> dict[str, int]:
    """Bytes at rest, at the peaks of forward and of the step, and at its end, and trained parameters of the only rank.

    Without workspaces and buffers of a GPU, which a CPU has not.
    """
    assert report.status == "ok", report.problems
    (rank,) = report.ranks
    assert isinstance(rank.peak, Peak)
    assert rank.end_bytes is not None
    beside = rank.peak.by_category["workspace"] + rank.peak.by_category.get("buffer", 0)
    forward = max(rank.peak.by_phase[phase] for phase in ("forward", "loss"))
    return {"rest": sum(one.params_bytes for one in rank.at_rest.values()), "forward": forward - beside,
            "peak": rank.peak.allocated_bytes - beside, "end": rank.end_bytes - beside,
            "trained": rank.at_rest["adapters"].num_params if "adapters" in rank.at_rest else 0}


def written(out: Builder, *layer_paths: str) -> Program:
    """Program of rows that a test appended by hand."""
    outline = out.build(layer_paths)
    return Program(outline, outline.tiles)


def forget_outlines() -> None:
    """The next programs are lowered anew."""
    lowering._outline.cache_clear()
    _PATTERNS.clear()


def marks(program: Program) -> list[str]:
    """Hooks in the order in which they are passed."""
    return [program.event(row, 0) for row in program.columns if row[0] == Op.MARK]


def postings(program: Program, name: str) -> list[tuple[int, str, int]]:
    """(layer, phase, signed bytes) of every owner called `name`, in order."""
    slots = {number for (owner, _), number in program.tables.slots.items() if owner == name}
    return [(layer, Phase(phase).name.lower(), amount)
            for (op, layer, slot, amount, _, _), phase in _rows(program) if op in (Op.ALLOC, Op.FREE) and slot in slots]


def taken(program: Program, *categories: str) -> dict[str, int]:
    """Bytes that it allocates of each of these categories, whether they are freed again or not."""
    names, found = list(program.tables.slots), dict.fromkeys(categories, 0)
    for op, _, slot, size, *_ in program.columns.tolist():
        if op == Op.ALLOC and names[slot][1] in found:
            found[names[slot][1]] += size
    return found


def calls(program: Program, collective: str) -> list[tuple[str, str, int]]:
    """(axis, phase, payload) of every call of a collective, in order."""
    comms = {number: axis for (name, axis, _), number in program.tables.comms.items() if name == collective}
    return [(comms[slot], Phase(phase).name.lower(), amount)
            for (op, _, slot, amount, _, _), phase in _rows(program) if op == Op.COLLECTIVE and slot in comms]


def expect_halves(program: Program, measured: Mapping[str, Any]) -> None:
    """Compares gathers and reductions of both halves of a step, one by one, with (collective, bytes) of `measured`."""
    for half, phases in (("forward", ("forward", "loss")), ("backward", ("backward", "recompute"))):
        for collective in ("all_gather", "reduce_scatter"):
            found = [size for _, phase, size in calls(program, collective) if phase in phases]
            assert found == [size for kind, size in measured[half] if kind == collective], (half, collective)


def _rows(program: Program) -> Iterator[tuple[list[int], int]]:
    return zip(program.columns.tolist(), program.phase.tolist(), strict=True)


def letters(order: Sequence[Action]) -> list[str]:
    """F, B or W, the chunk, a dot, the microbatch."""
    return [f"{'F' if a.forward else 'W' if a.part == 'weight' else 'B'}{a.chunk}.{a.microbatch}" for a in order]
