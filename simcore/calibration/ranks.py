"""Collectives between the GPUs of this node: their curves, and the cost model's constants from them.

[Note: curves] Each collective runs in groups of 2, 4, 8 ... ranks at several payloads. A group's curve is a latency and
a bus bandwidth, as nccl-tests defines it: bytes on the wire over seconds (`simcore.timing.collective.wire_factor`).
Bandwidths are those of the largest group. Latencies grow by a hop for each rank of a ring, twice for an all-reduce: a
line through those of all rings gives the latency of a call and of a hop (`simcore.timing.collective`).
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from simcore.calibration.bench import Bench
from simcore.calibration.fit import fit_line
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Value
from simcore.timing.collective import wire_factor

__all__ = ["Point", "curves", "fabric", "library"]

_PAYLOADS: Final = {"nccl": tuple(2**power for power in range(9, 30)), "gloo": (2**12, 2**16, 2**20)}
_REPEATS: Final = 9
_IN_A_ROW: Final = 5
_MOST_HOPS: Final = 7  # as `simcore.timing.collective` counts them
_RINGS: Final = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""Collectives whose latency is a number of rounds over a ring."""


@dataclass(frozen=True, slots=True)
class Point:
    """One timed collective: median `seconds` of a call of `payload` bytes in a group of `ranks` processes.

    Payload as in a report's traffic: full gathered output, full input of a reduce-scatter, else the buffer.
    """

    collective: str
    ranks: int
    payload: int
    seconds: float


def curves(bench: Bench) -> list[Point]:
    """Times collectives at several payloads in groups of 2, 4, 8 ... ranks, up to the GPUs of this node.

    All-gather, reduce-scatter, all-reduce, all-to-all and one message from rank 0 to rank 1: by NCCL on GPUs, by gloo
    (in 2 processes) on a CPU. NotMeasured with one GPU; an error of the processes is raised.
    """
    if bench.machine.count < 2:
        raise NotMeasured("one GPU")
    backend, points = "nccl" if bench.machine.is_gpu else "gloo", list[Point]()
    for ranks in (2**power for power in range(1, bench.machine.count.bit_length())):
        points += _group(bench.torch, backend, ranks)
    return points


def library(bench: Bench) -> str:
    """NCCL's version such as "2.21.5"; on a CPU "gloo, not NCCL"."""
    return ".".join(map(str, bench.torch.cuda.nccl.version())) if bench.machine.is_gpu else "gloo, not NCCL"


def _group(torch: Any, backend: str, ranks: int) -> list[Point]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, args=(ranks, backend, folder), nprocs=ranks)
        rows = json.loads((Path(folder) / "points.json").read_text(encoding="utf-8"))
    return [Point(*row) for row in rows]


def _rank(rank: int, ranks: int, backend: str, folder: str) -> None:
    """Main function of one process of the group; the first one writes the readings."""
    torch = optional("torch")
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    store = (Path(folder) / "store").as_uri()
    torch.distributed.init_process_group(backend, init_method=store, rank=rank, world_size=ranks)
    points = list(_points(torch, device, ranks, _PAYLOADS[backend]))
    if rank == 0:
        (Path(folder) / "points.json").write_text(json.dumps(points), encoding="utf-8")
    torch.distributed.destroy_process_group()


def _points(torch: Any, device: str, ranks: int, payloads: Sequence[int]) -> Iterator[tuple[str, int, int, float]]:
    for payload in payloads:
        buffer = torch.zeros(payload // 2, dtype=torch.bfloat16, device=device)
        part = torch.zeros(payload // 2 // ranks, dtype=torch.bfloat16, device=device)
        for name, call in _calls(torch.distributed, buffer, part).items():
            yield name, ranks, payload, _seconds(torch, device, call)


def _calls(ranks: Any, whole: Any, part: Any) -> Mapping[str, Callable[[], object]]:
    """Every collective, with the payload of `whole`."""
    other = whole.clone()
    # torch 2.13 has new names for two of them and warns of the old ones.
    gather = getattr(ranks, "all_gather_single", None) or ranks.all_gather_into_tensor
    scatter = getattr(ranks, "reduce_scatter_single", None) or ranks.reduce_scatter_tensor
    return {
        "all_gather": lambda: gather(whole, part),
        "reduce_scatter": lambda: scatter(part, whole),
        "all_reduce": lambda: ranks.all_reduce(whole),
        "all_to_all": lambda: ranks.all_to_all_single(other, whole),
        "send_recv": lambda: _message(ranks, whole),
    }


def _message(ranks: Any, whole: Any) -> None:
    """Sends from the first rank to the second."""
    if ranks.get_rank() == 0:
        ranks.send(whole, 1)
    elif ranks.get_rank() == 1:
        ranks.recv(whole, 0)


def _seconds(torch: Any, device: str, call: Callable[[], object]) -> float:
    """Time of one of several calls in a row, as nccl-tests times them; the first two rows warm up."""
    row = _row_on_cpu if device == "cpu" else _row_on_gpu
    times = []
    for _ in range(_REPEATS + 2):
        torch.distributed.barrier()
        times.append(row(torch, call) / _IN_A_ROW)
    return median(times[2:])


def _row_on_cpu(_torch: Any, call: Callable[[], object]) -> float:
    begin = perf_counter()
    for _ in range(_IN_A_ROW):
        call()
    return perf_counter() - begin


def _row_on_gpu(torch: Any, call: Callable[[], object]) -> float:
    """Seconds of a row of calls; the issuing stream waits for the collective's stream, so events include its end."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_IN_A_ROW):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def fabric(points: Sequence[Point], machine: str) -> dict[str, Value]:
    """Values of a link between GPUs, fitted to measured collectives, by key below the link in a topology file.

    Keys: `bus_bandwidth.COLLECTIVE` in GB/s, of the largest group; `latency` of a call and `hop_latency` in us.
    `points`: timed collectives of groups of any size; `machine`: text for the source of each value. See [Note: curves].
    """
    lines = {key: fit_line(line) for key, line in _by_group(points).items()}
    most = max(ranks for _, ranks in lines)
    values = {f"bus_bandwidth.{name}": Value(f"{rate / 1e9:.4g} GB/s", "fitted", f"{name}, {ranks} ranks; {machine}")
             for (name, ranks), (_, rate) in lines.items() if ranks == most}
    hops = [(float(_RINGS[name] * min(ranks - 1, _MOST_HOPS)), max(latency, 1e-9))
            for (name, ranks), (latency, _) in lines.items() if name in _RINGS]
    latency, per_hop = fit_line(hops)
    rings = f"{', '.join(_RINGS)} of {', '.join(str(n) for n in sorted({r for _, r in lines}))} ranks; {machine}"
    values["latency"] = Value(f"{latency * 1e6:.3g} us", "fitted", rings)
    values["hop_latency"] = Value(f"{1e6 / per_hop:.3g} us", "fitted", rings)
    return values


def _by_group(points: Sequence[Point]) -> dict[tuple[str, int], list[tuple[float, float]]]:
    lines: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        wire = point.payload * wire_factor(point.collective, point.ranks)
        lines[point.collective, point.ranks].append((wire, point.seconds))
    return dict(lines)
