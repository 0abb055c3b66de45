"""The scan of Mamba-2 by mamba_ssm's Triton kernels: how often a pass of it launches something.

mamba_ssm e9594ce1 `ops/triton/ssd_combined.py`, _mamba_chunk_scan_combined_fwd and _bwd.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BACKWARD_LAUNCHES", "FORWARD_LAUNCHES"]

FORWARD_LAUNCHES: Final = 5
"""Sums of dt, the chunks' states, their passing, C B, the scan."""
BACKWARD_LAUNCHES: Final = FORWARD_LAUNCHES - 1 + 15
"""What forward made but for the scan, made again; gradients of the gate, of states, of their passing, of x; of B, C and
C B, each with a sum over heads; a cast, two products; of what decays, of dt."""
