"""Units and traffic of a step, here and as a probe of a framework that wraps units has stored them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from simcore.placement.framework import Framework
from simcore.placement.job import Job
from simcore.results.report import TrafficRow

__all__ = ["measured_traffic", "measured_units", "traffic_of", "units_of"]

_PHASES = {"fwd": "forward", "bwd": "backward"}


def units_of(job: Job, table: Framework) -> list[list[Any]]:
    """[name, elements] of each unit, "" for the root, sorted."""
    graph = job.graph
    return sorted(["" if unit.is_root else unit.name, sum(
        graph.tensors[graph.layers[layer].kind][number].numel for layer, numbers in unit.members for number in numbers)]
        for unit in table.units)


def measured_units(step: Mapping[str, Any]) -> list[list[Any]]:
    """The same of a stored step."""
    return sorted([unit.replace("_checkpoint_wrapped_module.", ""), size] for unit, size in step["units"])


def traffic_of(rows: Iterable[TrafficRow]) -> Counter[tuple[str, str, str]]:
    """Calls and bytes by (collective, phase, "calls" or "bytes")."""
    found = Counter[tuple[str, str, str]]()
    for t in rows:
        found += {(t.collective, t.phase, "calls"): t.calls, (t.collective, t.phase, "bytes"): t.payload_bytes}
    return found


def measured_traffic(step: Mapping[str, Any]) -> Counter[tuple[str, str, str]]:
    """The same of a stored step."""
    found = Counter[tuple[str, str, str]]()
    for key, sent in step["traffic"].items():
        collective, phase, *_ = key.split("|")
        found += {(collective, _PHASES[phase], "calls"): sent["count"],
                  (collective, _PHASES[phase], "bytes"): sent["payload_bytes"]}
    return found
