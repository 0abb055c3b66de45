"""The scan of Mamba-2 by mamba_ssm's Triton kernels: for how many operators of torch it keeps the host busy.

mamba_ssm e9594ce1 `ops/triton/ssd_combined.py`, MambaSplitConv1dScanCombinedFn, was run with kernels that do nothing
(`tests/truth/host/mamba-e9594ce1.json`); the convolution's kernels, one forward and two backward, are launched as
torch's are. Beside it stand core's mixer around it and the norm behind it.
"""

from __future__ import annotations

from typing import Final

from simcore.recording.host_operators import Operators, operators

__all__ = ["BACKWARD_OPERATORS", "FORWARD_OPERATORS", "MIXER", "NORM"]

FORWARD_OPERATORS: Final = operators(43.1, triton=5, torch=1)
BACKWARD_OPERATORS: Final = operators(130.8, triton=15, torch=17 + 2)
MIXER: Final = Operators(operators(5.7, torch=3), operators(6.0, torch=3))
"""Core 0.16.1 `ssm/mamba_mixer.py`, _ssm_training (`tests/truth/host/mixer-core-0.16.1.json`), with launches of exp,
neg and a cast; copies have rows of their own."""
NORM: Final = Operators(operators(6.1, triton=1), operators(11.3, triton=1, torch=1))
"""The gated norm where the scan has none inside (`ops/triton/layernorm_gated.py`, RMSNorm, in the scan's file);
backward with the sum of its weight's gradient."""
