"""A host's NVMe drives, and which tensors DeepSpeed swaps to them.

[Note: ZeRO-3 and NVMe] DeepSpeed 0.19.6 `runtime/swap_tensor/` (optimizer_utils.py, partitioned_optimizer_swapper.py,
utils.py), `runtime/zero/stage3.py`: masters and moments of each sub-group of 1 MiB or more are files. To update it they
are read into pinned buffers with its gradient, updated by the CPU, and written back, one after the other unless
`pipeline_read` and `pipeline_write` are set. There are `buffer_count` buffers as long as the largest sub-group. In the
last microbatch gradients are cast to fp32 on the device, a bucket's all together, copied to such buffers and written;
one of less than 1 MiB, or that leaves a remainder of 256 elements, stays on the device until its sub-group is updated
(`_adjust_for_misaligned_lengths`: the rest is a view of it). 16-bit gradients rest on the host as with `device: cpu`.
"""

from __future__ import annotations

from typing import Final

from simcore.inputs.quantity import Frozen, Rate

__all__ = ["Nvme", "aligned", "is_swapped", "stays_on_device", "whole_pieces"]

FP32: Final = 4
MIN_BYTES: Final = 2**20
"""MIN_AIO_BYTES, and the default block of aio_config.py."""
ALIGNED: Final = 1024 // FP32
"""AIO_ALIGNED_BYTES in elements, for one thread a request (AIO_INTRA_OP_PARALLELISM_DEFAULT)."""


class Nvme(Frozen):
    """Bandwidths of all NVMe drives of one host together; the host's ranks share them evenly."""

    read: Rate
    write: Rate


def is_swapped(numel: int) -> bool:
    """True if DeepSpeed keeps an fp32 tensor of `numel` elements in a file on the drives: 1 MiB or more."""
    return FP32 * numel >= MIN_BYTES


def aligned(numel: int) -> int:
    """Elements of the buffer for `numel` fp32 elements: `numel` rounded up to a multiple of 256.

    Requests to the drives are multiples of 1,024 bytes.
    """
    return -(-numel // ALIGNED) * ALIGNED


def whole_pieces(numel: int) -> int:
    """Elements of a gradient that are written to a file: `numel` rounded down to a multiple of 256."""
    return numel // ALIGNED * ALIGNED


def stays_on_device(numel: int) -> bool:
    """True if an fp32 gradient of `numel` elements, or what `whole_pieces` leaves of it, stays on the GPU until used.

    That is so below 1 MiB, and where `numel` is no multiple of 256, see [Note: ZeRO-3 and NVMe].
    """
    return not is_swapped(numel) or numel % ALIGNED > 0
