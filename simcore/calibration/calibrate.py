"""The whole way: what is measured, what is fitted to it, and the keys that it is written under."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from simcore.calibration import products
from simcore.calibration.bench import Bench
from simcore.calibration.fit import Shares, above_floor, fit_both
from simcore.calibration.reading import NotMeasured, Reading, Value
from simcore.topology import Topology

__all__ = ["Calibration", "calibrate"]

Measure = Callable[[Bench], Iterable[Reading]]
Tell = Callable[[str], None]

KERNELS: Final[dict[str, Measure]] = {"gemm": products.gemm}
"""Kernels of the efficiency file, and who times them."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Values by dotted key of the file, and why there are none, by the beginning of a key."""

    found: dict[str, Value] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def calibrate(bench: Bench, topology: Topology, tell: Tell) -> Calibration:
    """Measure all that this machine can; what it cannot is a reason. `tell` is given a line for each."""
    done = Calibration()
    shortest = _shortest(bench)
    done.found["shortest"] = Value(f"{shortest * 1e6:.3g} us", "measured", f"torch.neg of one number; {_told(bench)}")
    for kernel, measure in KERNELS.items():
        try:
            shares = _shares(bench, topology, kernel, list(measure(bench)), shortest, done)
            tell(f"{kernel}: {shares}")
        except (NotMeasured, RuntimeError) as error:  # torch: out of memory, no such kernel on this device
            done.reasons[f"kernels.{kernel}"] = str(error).partition("\n")[0]
            tell(f"{kernel}: not measured: {done.reasons[f'kernels.{kernel}']}")
    return done


def _shortest(bench: Bench) -> float:
    one = bench.random(1)
    return bench.stopwatch.seconds(one.neg)


def _shares(bench: Bench, topology: Topology, kernel: str, readings: Sequence[Reading], shortest: float,
            done: Calibration) -> str:
    used = above_floor(readings, shortest)
    device = topology.device
    base = getattr(topology.efficiency.kernels, kernel)
    shares = fit_both(used, device.peak.bf16.si, device.memory_bandwidth.si, base.memory.si)
    source = f"{_about(used, shares)}; {_told(bench)}"
    assert shares.compute is not None
    done.found[f"kernels.{kernel}.compute"] = Value(percent(shares.compute), "fitted", source)
    if shares.told_apart:
        done.found[f"kernels.{kernel}.memory"] = Value(percent(shares.memory), "fitted", source)
    return f"compute {percent(shares.compute)}, memory {percent(shares.memory)}"


def percent(share: float) -> str:
    """As files have it."""
    return f"{100 * share:.3g}%"


def _about(used: Sequence[Reading], shares: Shares) -> str:
    names = ", ".join(dict.fromkeys(one.by for one in used))
    return f"{names}: {shares.used} readings from {used[0].shape} to {used[-1].shape}, median error {shares.error:.1%}"


def _told(bench: Bench) -> str:
    return bench.machine.told

