"""The scan of Mamba-2 by mamba_ssm's Triton kernels: for how many operators of torch it keeps the host busy.

mamba_ssm e9594ce1 `ops/triton/ssd_combined.py`, MambaSplitConv1dScanCombinedFn, was run with kernels that do nothing
(`tests/truth/host/mamba-e9594ce1.json`). What Python does around 5 kernels forward and 32 backward takes as long as 37
and 110 operators of torch, whose Python is 16 of the 21 us of one (`host.operator`); on top comes each launch, of
Triton's kernels 18 us (triton pull request 3648), of torch's and of the convolution's 5 us.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BACKWARD_OPERATORS", "FORWARD_OPERATORS"]

FORWARD_OPERATORS: Final = 33
"""(37.4 * 16 + 5 * 18 + 1 * 5) / 21."""
BACKWARD_OPERATORS: Final = 101
"""(109.6 * 16 + 15 * 18 + (17 + 2) * 5) / 21."""
