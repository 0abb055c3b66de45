"""Reports made by hand, for tests of charts and pages."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from simcore.results.report import (
    Assumption,
    AtRest,
    Communicator,
    MemorySeries,
    Owner,
    Peak,
    ProblemRow,
    RankReport,
    Report,
    StepTime,
    TrafficRow,
)
from simcore.results.time import Cost
from viz.charts.stack import peak_index

GIB = 2**30
EVIL = "<script>alert(1)</script>\"'&\x00\x1b[31m\ud800]]>"


def a_rank(text: str, ranks: str, device_gib: int) -> RankReport:
    series = MemorySeries(categories=("sharded_param", text), event_index=(0, 5, 9), time_s=(0.0, 0.2, 0.3),
                          phases=("forward", text, "optimizer"), values=((4 * GIB,) * 3, (0, 6 * GIB, GIB)))
    peak = Peak(allocated_bytes=10 * GIB, reserved_bytes=11 * GIB, device_bytes=device_gib * GIB, phase=text,
                event=text, layer=text, microbatch=1, by_category={"sharded_param": 4 * GIB, text: 6 * GIB},
                by_phase={"forward": 4 * GIB, text: 10 * GIB}, top=(),
                reserved_band_bytes=(10 * GIB, 12 * GIB), outside={"context": GIB}, band_bytes=(9 * GIB, 11 * GIB))
    traffic = TrafficRow(collective="all_gather", axis=text, group_size=8, phase=text, dtype="bf16", calls=3,
                         payload_bytes=GIB, wire_bytes=GIB // 2)
    return RankReport(ranks=(ranks,), num_ranks=4, coordinates={"pp": text}, stage=0, at_rest={}, padding_bytes=0,
                      grads_persist=False, peak=peak, traffic=(traffic,), memory=series)


def a_report(text: str = "plain", **changes: Any) -> Report:
    values: dict[str, Any] = {
        "name": text, "status": "ok", "verdict": "fits", "capacity_bytes": 80 * GIB, "headroom_bytes": 68 * GIB,
        "scenario": {"name": text, "model": text, "mesh": {"dp_shard": text}, text: [text]},
        "assumptions": (Assumption(what=text, value=text, kind="assumed", source=text),),
        "communicators": (Communicator(axis=text, size=8),),
        "problems": (ProblemRow(where=text, message=text, rule=text),),
        "ranks": (a_rank(text, "0-3", 12), a_rank(text, "4-7", 11)),
        "time": StepTime(step_s=0.3, forward_s=0.1, backward_s=0.15, optimizer_s=0.05, exposed_communication_s=0.01,
                         tokens_per_s_per_gpu=1000, model_tflops_per_gpu=300, mfu=0.3),
    }
    return Report.model_construct(**values | changes)  # not validated: pydantic itself refuses lone surrogates


def swept_report(n: int, **changes: Any) -> Report:
    base = a_report(f"s[mesh.tp={n}]", **changes)
    time = base.time.model_copy(update={"step_s": 0.1 + n % 7 / 10, "cost": Cost(per_million_tokens=0.1 + n % 5)}) if (
        base.time) else None
    rank = base.ranks[0]
    peak = rank.peak.model_copy(update={"device_bytes": (10 + n % 11) * GIB}) if rank.peak else None
    return base.model_copy(update={
        "time": time, "ranks": (rank.model_copy(update={"peak": peak, "memory": None}),),
        "scenario": {"name": f"s{n}", "mesh": {"tp": n % 4, "pp": 1}, "training": {"seq_len": 1024 * (n % 3)},
                     "framework": "fsdp2"}})


def small_series(**changes: object) -> MemorySeries:
    values = {
        "categories": ("opt_state", "activation", "sharded_param", "backward_temp"),
        "event_index": (0, 10, 20, 40, 50, 60),
        "time_s": (0.0, 0.1, 0.1, 0.5, 0.4, 0.9),
        "phases": ("forward", "forward", "backward", "backward", "backward", "optimizer"),
        "values": ((4 * GIB,) * 6, (0, 6 * GIB, 12 * GIB, 9 * GIB, 3 * GIB, 0), (8 * GIB,) * 6,
                   (0, 0, 0, 5 * GIB, 0, 2 * GIB)),
    }
    return MemorySeries.model_validate(values | changes)


def small_rank(series: MemorySeries | None = None, **peak: object) -> RankReport:
    series = series or small_series()
    sample = peak_index(series)
    highest = {name: values[sample] for name, values in zip(series.categories, series.values, strict=True)}
    facts = {
        "allocated_bytes": sum(highest.values()), "reserved_bytes": 27 * GIB, "device_bytes": 29 * GIB,
        "phase": series.phases[sample], "event": "bwd:pre_backward_end:root", "layer": "model.layers.3",
        "microbatch": 0, "by_category": highest,
        "by_phase": {"forward": 18 * GIB, "backward": 26 * GIB, "optimizer": 14 * GIB},
        "top": (Owner(owner="model.layers.3/up_proj.x", category="activation", bytes=2 * GIB),),
        "reserved_band_bytes": (26 * GIB, 28 * GIB), "outside": {"context": GIB}, "band_bytes": (25 * GIB, 28 * GIB),
    }
    return RankReport(ranks=("0-3",), num_ranks=4, coordinates={"pp": 0}, stage=0,
                      at_rest={"mlp": AtRest(params_bytes=8 * GIB, num_params=4 * GIB)}, padding_bytes=0,
                      grads_persist=False, peak=Peak.model_validate(facts | peak), memory=series)


def parsed(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314 - written by us
