"""How much longer attention takes for heads of other sizes than 128: each score needs an exponential as well.

[Note: exponentials]
Of a score the tensor cores do four FLOPs for every number of a head (two products of a multiply-add), backward ten, and
the special function units one exponential each time (flash-attention computes it again in backward). A multiprocessor
has 16 of those a cycle (FlashAttention-3, arXiv 2407.08608, section 3: 3.9 TFLOPS of special functions beside 989 of
products on H100), Blackwell Ultra twice as many (NVIDIA, "Making Softmax More Efficient with NVIDIA Blackwell Ultra").
Both are added, as arithmetic and traffic are (`cost.py`). Shares of peaks were measured with heads of 128
(`tests/truth/fit_priors.py`), so what is told here is the ratio to those: small heads are slower for their FLOPs, wide
ones faster, and 8-bit products save nothing of the exponentials.
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
    """By how much each kernel of attention takes longer for its FLOPs than with heads of 128 in 16 bits.

    `shapes`: FLOPs of an exponential by those that heads of 128 have, as `product.shape_of_heads` packs them (0: of
    unknown heads: 1). `older`: products are issued as on Ampere.
    """
    out = np.ones(len(shapes))
    at = np.flatnonzero(shapes)
    if len(at):
        of_one, of_128, _, _ = unpacked(shapes[at])
        adds = np.where(older[at], multiply_adds(device, as_on_ampere=True), multiply_adds(device))
        beside = 2 * adds / _A_CYCLE.get(device.compute_capability, _OTHERS)
        out[at] = (1 + beside * 16 / operand_bits[at] / of_one) / (1 + beside / of_128)
    return out
