"""Memory pools beside the allocator's own: segments that hold nothing else, such as buffers that NCCL registers.

[Note: registered buffers]
With `nccl_ub` Megatron allocates buffers under `torch.cuda.use_mem_pool` of a pool whose segments come from
ncclMemAlloc (core 0.16.1 and main d98e8a64 `nccl_allocator.py`). They count as allocated and reserved as any tensor,
but no other tensor uses what is left of their segments. Sizes of segments are those of torch's allocator
(`c10/cuda/CUDACachingAllocator.cpp`, get_allocation_size; [Note: reserved] in `simcore/memory/reserved.py`);
ncclMemAlloc rounds up to the device's granularity, 2 MiB, which segments have already (nccl 2.27.3 to 2.30.7
`src/allocator.cc`). Registration maps these pages into other ranks and adds none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["unused_bytes"]

_MIB: Final = 2**20
_ROUND: Final = 512
_SMALL_SEGMENT, _LARGE_SEGMENT, _LARGE_REQUEST = 2 * _MIB, 20 * _MIB, 10 * _MIB


def unused_bytes(sizes: Iterable[int]) -> int:
    """Bytes of a pool's segments beyond tensors of `sizes` bytes, which are allocated in that order and stay."""
    free: dict[bool, list[int]] = {True: [], False: []}
    unused = 0
    for size in sizes:
        if not size:
            continue
        request = -(-size // _ROUND) * _ROUND
        is_small = request <= _MIB
        fitting = [block for block in free[is_small] if block >= request]
        if fitting:
            block = min(fitting)
            free[is_small].remove(block)
        else:
            block = _segment(request)
            unused += block
        unused -= size
        free[is_small].append(block - request)  # the allocator keeps what serves no request of the kind in the block
    return unused


def _segment(request: int) -> int:
    if request <= _MIB:
        return _SMALL_SEGMENT
    if request < _LARGE_REQUEST:
        return _LARGE_SEGMENT
    return -(-request // _SMALL_SEGMENT) * _SMALL_SEGMENT
