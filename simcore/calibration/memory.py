"""What a process takes of a GPU before its first tensor, and what torch's allocator reserves for a fixed probe."""

from __future__ import annotations

from multiprocessing.connection import wait
from typing import Any, Final

from simcore.calibration.bench import Bench
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Value
from simcore.hardware.topology import Topology

__all__ = ["allocator", "device_memory"]

_PROBE: Final = (512, 2**20, 5 * 2**20, 11 * 2**20, 30 * 2**20)
"""Bytes of blocks: two small ones, one of the 20 MiB segments, two that get segments of their own."""
_PATIENCE: Final = 300  # seconds for another process to load torch; assumed


def device_memory(bench: Bench, topology: Topology) -> dict[str, Value]:
    """Values by key of a topology's `device.memory`; NotMeasured without a GPU, or on one of another size.

    A second process starts and makes one tensor; what the driver has less then, but for that tensor's segment, is its
    context. Others that use the GPU meanwhile spoil it.
    """
    if not bench.machine.is_gpu:
        raise NotMeasured("no GPU")
    before, usable = bench.torch.cuda.mem_get_info()
    if usable > int(topology.device.memory.total):
        raise NotMeasured(f"{usable} bytes are more than {topology.device.name} has")
    context = before - _free_beside_another(bench)
    if context <= 0:
        raise NotMeasured("memory was freed by others meanwhile")
    told = f"torch.cuda.mem_get_info; {bench.machine.told}"
    return {"usable": Value(f"{usable} B", "measured", told),
            "context": Value(f"{context} B", "measured", f"another process with one tensor: {told}")}


def _free_beside_another(bench: Bench) -> int:
    """Free bytes while another process has a context, its one segment counted as free."""
    processes = bench.torch.multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=_hold, args=(there,))
    other.start()
    try:
        wait([here, other.sentinel], _PATIENCE)  # it may fail, and then says nothing
        if not here.poll():
            raise NotMeasured("another process could not use the GPU")
        return int(bench.torch.cuda.mem_get_info()[0]) + int(here.recv())
    finally:
        here.send("done")
        other.join()


def _hold(pipe: Any) -> None:
    """The other process: says what its tensor reserved, and holds it until it is told."""
    torch = optional("torch")
    made = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    pipe.send(torch.cuda.memory_reserved())
    pipe.poll(_PATIENCE)
    del made


def allocator(bench: Bench) -> dict[str, int]:
    """Bytes allocated and reserved, and segments, that blocks of fixed sizes add; NotMeasured without a GPU.

    It goes into no file: what `simcore/memory/reserved.py` supposes can be held against it.
    """
    if not bench.machine.is_gpu:
        raise NotMeasured("no GPU")
    torch, keys = bench.torch, ("allocated_bytes", "reserved_bytes", "segment")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()
    held = [torch.empty(size, dtype=torch.int8, device="cuda") for size in _PROBE]
    after = torch.cuda.memory_stats()
    del held
    return {key: int(after[f"{key}.all.current"] - before[f"{key}.all.current"]) for key in keys}
