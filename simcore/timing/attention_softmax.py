"""Extra time of attention for heads of other sizes than 128, because each score also needs an exponential.

[Note: exponentials]
For a score the tensor cores do four FLOPs per element of a head (two products of a multiply-add), ten in backward, and
the special function units one exponential in each pass (flash-attention computes it again in backward). A
multiprocessor has 16 of those a cycle (FlashAttention-3, arXiv 2407.08608, section 3: 3.9 TFLOPS of special functions
and 989 of products on H100), Blackwell Ultra twice as many (NVIDIA, "Making Softmax More Efficient with NVIDIA
Blackwell Ultra"). Both times are added, as arithmetic and traffic are (`kernel.py`). Shares of peaks were measured with
heads of 128 (`tests/truth/fit_priors.py`), so the result is the ratio to those: small heads are slower for their FLOPs,
wide heads faster, and 8-bit products do not shorten the exponentials.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from simcore.hardware.device import Device
from simcore.placement.mesh import IntArray
from simcore.recording.kernel_shape import unpacked
from simcore.timing.gemm_waves import multiply_adds

__all__ = ["softmax_stretch"]

_A_CYCLE: Final = {"10.3": 32}
_OTHERS: Final = 16


def softmax_stretch(device: Device, shapes: IntArray, operand_bits: IntArray, *,
                    older: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Factor, for each attention kernel, by which its FLOPs take longer than with heads of 128 in 16 bits.

    Below 1 for wider heads. `shapes`: FLOPs per exponential, relative to heads of 128, as `kernel_shape.shape_of_heads`
    packs them (0: unknown heads, factor 1). `operand_bits`: bits of an element. `older`: True for kernels that issue
    products as on Ampere.
    """
    out = np.ones(len(shapes))
    at = np.flatnonzero(shapes)
    if len(at):
        packed = unpacked(shapes[at])
        adds = np.where(older[at], multiply_adds(device, as_on_ampere=True), multiply_adds(device))
        exponential_flops = 2 * adds / _A_CYCLE.get(device.compute_capability, _OTHERS)
        out[at] = ((1 + exponential_flops * 16 / operand_bits[at] / packed.rows)
                   / (1 + exponential_flops / packed.columns))
    return out
