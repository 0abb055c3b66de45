"""The calibration: everything that this machine can measure, by the keys of the written files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

from simcore.calibration import copies, host, memory, ranks
from simcore.calibration.bench import Bench
from simcore.calibration.kernels import KERNELS, collected, fp8_kept, kernel_values
from simcore.calibration.reading import NotMeasured, Reading, Value, reason_of
from simcore.hardware.topology import Topology
from simcore.inputs.quantity import Share

__all__ = ["Calibration", "calibrate"]

Tell = Callable[[str], None]

_IN_A_STEP: Final = "a share of whole steps, which no kernel alone shows"
_NEVER: Final = {"host.collective": "ranks that wait for one another are in it, which one call alone does not show",
                 "host.graphed": _IN_A_STEP, "host.filling": _IN_A_STEP, "host.step": _IN_A_STEP,
                 "host.statistics": _IN_A_STEP, "in_line": _IN_A_STEP,
                 "host.permutation": "what a dispatcher does on the host besides is in it", "overlap": _IN_A_STEP,
                 "low_precision.fp4": "fp4 is not timed"}
"""Reasons for values that are taken over on every machine, by key."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Result of one calibration: readings of a machine, and the values derived from them.

    `efficiency`, `topology`: values by dotted key of the efficiency file and of the topology file. `reasons`: text why
    a key, or all keys below it, have no value, by that key. `readings`: every timed kernel; `points`: every timed
    collective. `allocator`: bytes and segments that torch's allocator added for blocks of fixed sizes
    (`memory.allocator`).
    """

    efficiency: dict[str, Value] = field(default_factory=dict)
    topology: dict[str, Value] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=lambda: dict(_NEVER))
    readings: list[Reading] = field(default_factory=list)
    points: list[ranks.Point] = field(default_factory=list)
    allocator: dict[str, int] = field(default_factory=dict)

    def as_json(self, told: str) -> str:
        """JSON object of all fields, and `told`, the description of the machine, under the key `machine`."""
        return json.dumps({"machine": told, **asdict(self)})


def calibrate(bench: Bench, topology: Topology, tell: Tell) -> Calibration:
    """Measures everything that this machine can: kernels, host, copies, memory, collectives between GPUs.

    `topology`: has the peaks of which efficiencies are shares. `tell` is called with a line of text for each value, and
    for each part that could not be measured; an error of one part is its entry in `reasons` and does not end the rest.
    """
    done = Calibration()
    _efficiency(bench, topology, done, tell)
    _topology(bench, topology, done, tell)
    return done


def _efficiency(bench: Bench, topology: Topology, done: Calibration, tell: Tell) -> None:
    def kernel(name: str) -> dict[str, Value]:
        readings, stopped = collected(bench, KERNELS[name])
        done.readings.extend(readings)
        values = kernel_values(bench, topology, name, readings, floor, stopped)
        if f"kernels.{name}.memory" not in values:
            done.reasons[f"kernels.{name}.memory"] = "FLOPs for a byte vary too little to tell it from the arithmetic"
        return values

    def fp8() -> dict[str, Value]:
        gemm = done.efficiency.get("kernels.gemm.compute")
        if gemm is None:
            raise NotMeasured("products in 16 bits were not measured")
        return {"low_precision.fp8": fp8_kept(bench, topology, Share.model_validate(gemm.value).si)}

    into = done.efficiency
    floor = bench.stopwatch.seconds(bench.random(1).neg)
    for name in KERNELS:
        _part(f"kernels.{name}", partial(kernel, name), into, done, tell)
        bench.forget()
    _part("low_precision.fp8", fp8, into, done, tell)
    for key, measure in (("shortest", host.shortest), ("host.operator", host.operator), ("host.module", host.module)):
        _part(key, partial(_alone, key, measure, bench), into, done, tell)


def _topology(bench: Bench, topology: Topology, done: Calibration, tell: Tell) -> None:
    def fabric() -> dict[str, Value]:
        if topology.node.fabric is None:
            raise NotMeasured(f"{topology.name} has no link between GPUs")
        done.points.extend(ranks.curves(bench))
        return _below(link, ranks.fabric(done.points, bench.machine.told))

    def allocator() -> dict[str, Value]:
        done.allocator.update(memory.allocator(bench))
        tell(f"allocator: {done.allocator}")
        return {}

    into, link = done.topology, "node.nvlink" if topology.node.nvlink else "node.pcie"
    _part("node.host_link", lambda: _below("node.host_link", copies.host_link(bench)), into, done, tell)
    _part("device.memory", lambda: _below("device.memory", memory.device_memory(bench, topology)), into, done, tell)
    _part("allocator", allocator, into, done, tell)
    _part(link, fabric, into, done, tell)


def _part(key: str, measure: Callable[[], Mapping[str, Value]], into: dict[str, Value], done: Calibration,
          tell: Tell) -> None:
    """Measures one part: records its values, or the reason why there are none."""
    try:
        values = measure()
    except Exception as error:  # noqa: BLE001 - whatever a library says, the other parts are still measured
        done.reasons[key] = reason_of(error)
        tell(f"{key}: not measured: {done.reasons[key]}")
        return
    into.update(values)
    for name, value in values.items():
        tell(f"{name}: {value.value}")


def _alone(key: str, measure: Callable[[Bench], Value], bench: Bench) -> dict[str, Value]:
    return {key: measure(bench)}


def _below(key: str, values: Mapping[str, Value]) -> dict[str, Value]:
    return {f"{key}.{name}": value for name, value in values.items()}
