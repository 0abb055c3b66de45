"""Rows in the order of experts, and back, by Triton's kernels: for how many operators of torch they keep the host busy.

TransformerEngine 2.9 `pytorch/permutation.py` (moe_permute_with_probs, moe_unpermute) and NeMo Automodel 2f805abd
`moe/megatron/fused_indices_converter.py` were run with kernels that do nothing (`tests/truth/host/`,
permutation-te-2.9.json). Megatron's calls of the same have a number of their own, `host.permutation`.
"""

from __future__ import annotations

from typing import Final

from simcore.recording.host_operators import Operators, operators

__all__ = ["MULTIHOT", "PERMUTE", "UNPERMUTE"]

PERMUTE: Final = Operators(operators(6.1, triton=4), operators(7.8, triton=1))
UNPERMUTE: Final = Operators(operators(3.0, triton=1), operators(5.9, triton=1))
MULTIHOT: Final = Operators(operators(3.5, triton=1), operators(5.7, triton=1))
