"""Copies between a GPU and pinned memory of its host."""

from __future__ import annotations

from typing import Any, Final

from simcore.calibration.bench import Bench
from simcore.calibration.fit import fit_line
from simcore.calibration.reading import NotMeasured, Value

__all__ = ["host_link"]

_BYTES: Final = (2**12, 2**16, 2**20, 2**24, 2**28)


def host_link(bench: Bench) -> dict[str, Value]:
    """Measured keys of `node.host_link` in a topology: bandwidths `to_device`, `to_host`, and `latency`.

    Copies between the GPU and pinned memory; bandwidths in GB/s, latency of a copy (of the slower direction) in us.
    NotMeasured without a GPU.
    """
    if not bench.machine.is_gpu:
        raise NotMeasured("no GPU")
    down, up = _lines(bench)
    source = f"{_BYTES[0]} B to {_BYTES[-1] >> 20} MiB of pinned memory; {bench.machine.told}"
    return {"to_device": Value(_rate(down[1]), "fitted", source), "to_host": Value(_rate(up[1]), "fitted", source),
            "latency": Value(f"{max(down[0], up[0]) * 1e6:.3g} us", "fitted", source)}


def _lines(bench: Bench) -> tuple[tuple[float, float], tuple[float, float]]:
    """((latency, rate) to the device, (latency, rate) to the host)."""
    torch, down, up = bench.torch, list[tuple[float, float]](), list[tuple[float, float]]()
    for size in _BYTES:
        there: Any = torch.empty(size, dtype=torch.int8, device="cuda")
        here = torch.empty(size, dtype=torch.int8, pin_memory=True)
        for points, target, source in ((down, there, here), (up, here, there)):
            copy = _copy(target, source)
            points.append((float(size), bench.stopwatch.seconds(copy)))
    return fit_line(down), fit_line(up)


def _copy(target: Any, source: Any) -> Any:
    return lambda: target.copy_(source, non_blocking=True)


def _rate(si: float) -> str:
    return f"{si / 1e9:.4g} GB/s"
