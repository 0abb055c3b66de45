"""GPU memory of a process before its first tensor, and memory that torch's allocator reserves for a fixed probe."""

from __future__ import annotations

from multiprocessing.connection import wait
from typing import Any, Final

from simcore.calibration.bench import Bench
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Value
from simcore.hardware.topology import Topology

__all__ = ["allocator", "device_memory"]

_PROBE: Final = (512, 2**20, 5 * 2**20, 11 * 2**20, 30 * 2**20)
"""Bytes of blocks: two small ones, one from a 20 MiB segment, two with separate segments."""
_PATIENCE: Final = 300  # seconds for another process to load torch; assumed


def device_memory(bench: Bench, topology: Topology) -> dict[str, Value]:
    """Measured keys of `device.memory` in a topology, in bytes: `usable`, and `context` of one CUDA process.

    `usable`: total of the GPU as CUDA gives it. For the context a second process starts and makes one tensor; the
    decrease of free memory, without that tensor's segment, is its context. Other processes on the GPU at that time
    falsify it. NotMeasured without a GPU, with one that has more memory than the topology's, or if the second process
    fails.
    """
    if not bench.machine.is_gpu:
        raise NotMeasured("no GPU")
    before, usable = bench.torch.cuda.mem_get_info()
    if usable > int(topology.device.memory.total):
        raise NotMeasured(f"{usable} bytes are more than {topology.device.name} has")
    context = before - _free_beside_another(bench)
    if context <= 0:
        raise NotMeasured("memory was freed by others meanwhile")
    source = f"torch.cuda.mem_get_info; {bench.machine.told}"
    return {"usable": Value(f"{usable} B", "measured", source),
            "context": Value(f"{context} B", "measured", f"another process with one tensor: {source}")}


def _free_beside_another(bench: Bench) -> int:
    """Free bytes while another process has a context, with its one segment counted as free."""
    processes = bench.torch.multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=_hold, args=(there,))
    other.start()
    try:
        wait([here, other.sentinel], _PATIENCE)  # it may fail, and then sends nothing
        if not here.poll():
            raise NotMeasured("another process could not use the GPU")
        return int(bench.torch.cuda.mem_get_info()[0]) + int(here.recv())
    finally:
        here.send("done")
        other.join()


def _hold(pipe: Any) -> None:
    """Main function of the other process: sends what its tensor reserved, and holds it until a message arrives."""
    torch = optional("torch")
    tensor = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    pipe.send(torch.cuda.memory_reserved())
    pipe.poll(_PATIENCE)
    del tensor


def allocator(bench: Bench) -> dict[str, int]:
    """Increase of `allocated_bytes`, `reserved_bytes` and `segment` (count) by blocks of fixed sizes.

    Keys as in torch's `memory_stats`. It is not written to a topology; it serves to check the assumptions of
    `simcore/memory/reserved.py`. NotMeasured without a GPU.
    """
    if not bench.machine.is_gpu:
        raise NotMeasured("no GPU")
    torch, keys = bench.torch, ("allocated_bytes", "reserved_bytes", "segment")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()
    blocks = [torch.empty(size, dtype=torch.int8, device="cuda") for size in _PROBE]
    after = torch.cuda.memory_stats()
    del blocks
    return {key: int(after[f"{key}.all.current"] - before[f"{key}.all.current"]) for key in keys}
