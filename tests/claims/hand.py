"""Arithmetic by hand: expected values as formulas of counts and bytes, none of them from the simulator.

[Note: sources]
Shapes are those of the published configurations. Bytes that a layer keeps of a token for backward are derived from the
sources of Megatron-LM d98e8a64 with TransformerEngine d0067d0d, Megatron-Bridge 067f987d and Automodel 36044ad3:
inputs of norms and products, outputs that an activation needs. `frag`: tests/truth/measured, the median of 17 readings
of reserved over allocated memory. `nccl`: aiconfigurator 095f58a5, 392 MiB a communicator. `ctx`: a CUDA context on an
H100, nvidia-smi of an idle process.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["SYMBOLS", "by_hand"]

_ROUTED: Final = 23 * 128 * 2 * 2688 * 1856
_SHARED: Final = 23 * 2 * 2688 * 3712
_MAMBA: Final = 23 * (2688 * 10304 + 5 * 6144 + 3 * 64 + 4096 + 4096 * 2688)
_ATTENTION: Final = 6 * (2688 * 4608 + 4096 * 2688)
_ENDS: Final = 2 * 131_072 * 2688
_ROUTERS: Final = 23 * 128 * (2688 + 1) + 53 * 2688
_DENSE: Final = _SHARED + _MAMBA + _ATTENTION + _ENDS + _ROUTERS
_LINEARS: Final = 72 * (2 * 10240**2 + 2 * 10240 * 1024 + 3 * 10240 * 36480)
_QWEN: Final = 151_936 * 2048 + 36 * (2 * 2048**2 + 2048 + 2 * 256 * 2049 + 3 * 2048 * 11008 + 2 * 2048) + 2048
_LLAMA: Final = 128_256 * 3072 + 28 * (2 * 3072**2 + 2 * 3072 * 1024 + 3 * 3072 * 8192 + 2 * 3072) + 3072

SYMBOLS: Final[Mapping[str, tuple[float, str]]] = {
    "X": (_ROUTED, "Nano, routed experts: 23 x 128 x 2 x 2688 x 1856"),
    "D": (_DENSE, "Nano, everything else: shared experts, Mamba, attention, both embeddings, routers, norms"),
    "M": (_MAMBA, "Nano, Mamba: 23 x (2688 x 10304 + 5 x 6144 + 3 x 64 + 4096 + 4096 x 2688)"),
    "A": (_ATTENTION, "Nano, attention: 6 x (2688 x 4608 + 4096 x 2688)"),
    "S": (_SHARED, "Nano, shared experts: 23 x 2 x 2688 x 3712"),
    "E": (_ENDS, "Nano, embedding and head: 2 x 131072 x 2688"),
    "R": (_ROUTERS, "Nano, routers and norms: 23 x 128 x 2689 + 53 x 2688"),
    "V": (131_072, "Nano, words of the vocabulary"),
    "AM": (1_042_752, "Megatron-Bridge's adapters on a rank, a unit of rank: 23 x 19776 (Mamba) + 6 x 14080 "
           "(attention) + 23 x 12800 (shared) + 23 x 9088 (one for all experts of the rank)"),
    "AX": (209_024, "of these, adapters of experts: 23 x 2 x (2688 + 1856)"),
    "AA": (843_712, "Automodel's adapters without experts and out_proj, a unit of rank: 23 x 12992 + 6 x 19456 + 23 x "
           "12800 + 133760 (the head)"),
    "AE": (23 * 128 * 2 * 4544, "adapters of every routed expert, a unit of rank: 23 x 128 x 2 x (2688 + 1856)"),
    "KM": (3_891_284, "Nano, bytes that all layers keep of a token, Megatron with LoRA 32: 23 x 56100 (Mamba) + "
           "23 x 105438 (MoE) + 6 x 28420 (attention) + 5380"),
    "KA": (2_229_490, "the same, Automodel with adapters beside the experts: 23 x 39588 + 23 x 49498 + 6 x 28292 + "
           "2 x 5380"),
    "P": (2 * 128_256 * 10240 + _LINEARS + 145 * 10240, "dense 100 B: linears, both embeddings, 145 norms"),
    "L": (_LINEARS, "of these, linears of layers: 72 x (2 x 10240 x 10240 + 2 x 10240 x 1024 + 3 x 10240 x 36480)"),
    "A16": (72 * 16 * 203_648, "its adapters of rank 16 on all linears: 72 x 16 x (2 x 20480 + 2 x 11264 + 3 x 46720)"),
    "W": (128_256, "words of Llama 3's vocabulary"),
    "B": (_LLAMA, "Llama-3.2-3B, its embedding tied to the head"),
    "Q": (_QWEN, "Qwen2.5-3B, its embedding tied to the head"),
    "frag": (1.038, "allocated memory with what the allocator cannot use, in measured runs"),
    "card": (79.1 * 2**30, "bytes of an H100 of 80 GB, the total capacity that torch names"),
    "ctx": (0.551e9, "bytes of a CUDA context"),
    "libs": (0.42e9, "bytes of DeepEP's buffer by its size hint for 8 ranks (32 MiB and 10 channels x 8 ranks x 256 "
             "tokens x 5.4 kB and more), and of workspaces of cuBLAS and TransformerEngine"),
    "nccl": (392 * 2**20, "bytes of a communicator of NCCL"),
}
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow}


def by_hand(formula: str) -> float:
    """Value of a formula of numbers, symbols and `ceil`; a ValueError for anything else."""
    return _value(ast.parse(formula, mode="eval").body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        return SYMBOLS[node.id][0]
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "ceil" and len(node.args) == 1:
        return float(math.ceil(_value(node.args[0])))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"no arithmetic: {ast.unparse(node)}")
