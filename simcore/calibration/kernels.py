"""Every kernel of an efficiency file: the function that times it, and the shares fitted to its readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simcore.calibration import attention, mamba, passes, products
from simcore.calibration.bench import Bench
from simcore.calibration.fit import Shares, above_floor, fit_both, fit_memory
from simcore.calibration.reading import NotMeasured, Reading, Value, reason_of
from simcore.hardware.device import Device
from simcore.hardware.topology import Topology
from simcore.timing.kernel import DTYPES, worked_flops
from simcore.timing.kernel import KERNELS as MODELLED

__all__ = ["KERNELS", "collected", "fp8_kept", "kernel_values"]

Measure = Callable[[Bench], Iterable[Reading]]

KERNELS: Final[dict[str, Measure]] = {
    "gemm": products.gemm, "grouped_gemm": products.grouped_gemm, "attention": attention.attention,
    "attention_flash2": attention.attention_flash2, "attention_triton": attention.attention_triton,
    "attention_efficient": attention.attention_efficient,
    "mamba_scan": mamba.mamba_scan, "conv": mamba.conv, "norm": passes.norm, "elementwise": passes.elementwise,
    "elementwise_eager": passes.elementwise_eager, "permute": passes.permute, "loss": passes.loss,
    "embedding": passes.embedding, "optimizer": passes.optimizer, "copy": passes.copy,
}
"""Measuring functions in their order: products first, while no other tensors take memory."""


def collected(bench: Bench, measure: Measure) -> tuple[list[Reading], str]:
    """(readings that `measure` gives, reason why an error ended them early or "").

    NotMeasured, with that reason, if the error came before the first reading.
    """
    readings: list[Reading] = []
    try:
        readings.extend(measure(bench))  # `extend` keeps what came before an error
    except Exception as error:  # readings are kept, whatever error a library raises
        if not readings:
            raise NotMeasured(reason_of(error)) from error
        return readings, reason_of(error)
    return readings, ""


def kernel_values(bench: Bench, topology: Topology, kernel: str, readings: Sequence[Reading], floor: float,
                  stopped: str = "") -> dict[str, Value]:
    """Efficiencies of one kernel, fitted to its readings, by key of the efficiency file.

    Keys `kernels.NAME.compute` (only kernels with matrix products) and `kernels.NAME.memory` (unless the readings
    cannot tell it); values in percent of the peaks of the topology's device. `floor`: seconds of the shortest kernel;
    `stopped`: reason why the readings ended early, or "". NotMeasured if no reading is longer than twice the floor.
    """
    device = topology.device
    used = _as_worked(device, above_floor(readings, floor))
    base = getattr(topology.efficiency.kernels, "copy_" if kernel == "copy" else kernel)
    rate = device.memory_bandwidth.si
    if base.compute is None:
        shares = fit_memory(used, device.peak.fp32.si, rate)
    else:
        shares = fit_both(used, device.products.si, rate, base.memory.si)
    source = f"{_about(used, len(readings), shares, stopped)}; {bench.machine.told}"
    values = {}
    if shares.compute is not None:
        values[f"kernels.{kernel}.compute"] = _share(shares.compute, source)
    if shares.told_apart:
        values[f"kernels.{kernel}.memory"] = _share(shares.memory, source)
    return values


def fp8_kept(bench: Bench, topology: Topology, gemm: float) -> Value:
    """Efficiency of fp8 products as a share of `gemm`, that of 16-bit products; at most 100%.

    Each efficiency is a share of its own format's peak; `gemm` from 0 to 1. NotMeasured if the topology's device or
    this GPU has no fp8, or on an error before the first reading.
    """
    peak = topology.device.peak.fp8
    if peak is None:
        raise NotMeasured(f"{topology.device.name} has no fp8")
    readings, stopped = collected(bench, products.fp8_gemm)
    readings = _as_worked(topology.device, readings)
    shares = fit_both(readings, peak.si, topology.device.memory_bandwidth.si,
                      topology.efficiency.kernels.gemm.memory.si)
    assert shares.compute is not None
    about = _about(readings, len(readings), shares, stopped)
    return _share(min(1.0, shares.compute / gemm), f"{about}; {bench.machine.told}")


def _as_worked(device: Device, readings: Sequence[Reading]) -> list[Reading]:
    """Readings with the FLOPs that the device works off, to which shares refer."""
    columns = np.array([(MODELLED.index(reading.kernel), reading.flops, DTYPES.index(reading.dtype), reading.packed)
                        for reading in readings], dtype=np.int64).reshape(-1, 4).T
    return [replace(reading, flops=round(flops)) for reading, flops in
            zip(readings, worked_flops(device, *columns).tolist(), strict=True)]


def _share(share: float, source: str) -> Value:
    bound = "at its bound: " if share >= 1 else ""
    return Value(f"{100 * share:.3g}%", "fitted", f"{bound}{source}")


def _about(used: Sequence[Reading], asked: int, shares: Shares, stopped: str) -> str:
    """Description of the kernels, the number of readings above the floor, and the error of the fit."""
    names = ", ".join(dict.fromkeys(reading.by for reading in used))
    memory_note = "" if shares.told_apart else f", memory taken as {100 * shares.memory:.3g}%"
    ended = f", stopped by {stopped}" if stopped else ""
    return (f"{names}: {shares.used} of {asked} readings, {used[0].shape} to {used[-1].shape}, "
            f"median error {shares.error:.1%}{memory_note}{ended}")
