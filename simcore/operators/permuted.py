"""Rows in the order of experts, and back, by Triton's kernels: for how many operators of torch they keep the host busy.

TransformerEngine 2.9 `pytorch/permutation.py` (moe_permute_with_probs, moe_unpermute) and NeMo Automodel 2f805abd
`moe/megatron/fused_indices_converter.py` were run with kernels that do nothing (`tests/truth/host/`,
permutation-te-2.9.json). Python is 16 of the 21 us of an operator (`host.operator`); on top comes each launch, 18 us
(triton pull request 3648). Megatron's calls of the same have a number of their own, `host.permutation`.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.counted import Operators

__all__ = ["MULTIHOT", "PERMUTE", "UNPERMUTE"]

PERMUTE: Final = Operators(8, 7)
"""(6.1 * 16 + 4 * 18) / 21 and (7.8 * 16 + 18) / 21."""
UNPERMUTE: Final = Operators(3, 5)
"""(3.0 * 16 + 18) / 21 and (5.9 * 16 + 18) / 21."""
MULTIHOT: Final = Operators(4, 5)
"""(3.5 * 16 + 18) / 21 and (5.7 * 16 + 18) / 21."""
