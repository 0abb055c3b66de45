"""The scan of Mamba-2 by mamba_ssm's Triton kernels: for how many operators of torch it keeps the host busy.

mamba_ssm e9594ce1 `ops/triton/ssd_combined.py`, MambaSplitConv1dScanCombinedFn, was run with kernels that do nothing
(`tests/truth/host/mamba-e9594ce1.json`). What Python does around 5 kernels forward and 32 backward takes as long as 43
and 131 operators of torch, whose Python is 16 of the 21 us of one (`host.operator`); on top comes each launch, of
Triton's kernels 18 us (triton pull request 3648), of torch's and of the convolution's 5 us.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.counted import Operators

__all__ = ["BACKWARD_OPERATORS", "FORWARD_OPERATORS", "MIXER", "NORM"]

FORWARD_OPERATORS: Final = 37
"""(43.1 * 16 + 5 * 18 + 1 * 5) / 21."""
BACKWARD_OPERATORS: Final = 117
"""(130.8 * 16 + 15 * 18 + (17 + 2) * 5) / 21."""
MIXER: Final = Operators(5, 5)
"""Around the scan, core 0.16.1 `ssm/mamba_mixer.py`, _ssm_training (`tests/truth/host/mixer-core-0.16.1.json`):
(5.7 * 16 + 3 * 5) / 21 and (6 * 16 + 3 * 5) / 21, with launches of exp, neg and a cast; copies have their rows."""
NORM: Final = Operators(6, 10)
"""Of the gated norm where the scan has none inside, `ops/triton/layernorm_gated.py`, RMSNorm: (6.1 * 16 + 18) / 21 and
(11.3 * 16 + 18 + 5) / 21, the last for the sum of its weight's gradient."""
