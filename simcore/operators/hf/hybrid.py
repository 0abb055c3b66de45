"""Experts and shared MLP behind the mixers of transformers 5.23's GraniteMoeHybrid (`models/granitemoehybrid`).

The router's softmax is of the chosen logits, in fp32. The output of an MLP whose gate and up are one matrix is added to
that of the experts, which is held until the layer returns.
"""

from __future__ import annotations

from simcore.models.blocks import Branch, Moe
from simcore.operators.hf.layers import linear
from simcore.operators.hf.moe import as_rows, routed
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["moe", "shared_mlp"]


def moe(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor) -> tuple[Tensor, Tensor]:
    """(sum of the experts' and the shared MLP's output for `x` [b, s, hidden]; the experts' output alone).

    Both have x's shape.
    """
    block = branch.block
    assert isinstance(block, Moe)
    chosen = _experts(tape, run, branch.name, block, x)
    return aten.add(tape, chosen, shared_mlp(tape, run, "shared_mlp", x)), chosen


def _experts(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> Tensor:
    """`GraniteMoeHybridMoE`: the logits stay in a local variable that is not read."""
    flat = as_rows(tape, x, (run.tokens, block.hidden))
    _logits, weights, indices = _route(tape, run, name, block, flat)
    return routed(tape, run, name, block, flat, indices, weights).view(*x.shape)


def _route(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`GraniteMoeHybridTopKRouter`."""
    logits = aten.cast(tape, aten.linear(tape, x, run.params[f"{name}.router.weight"], "router"), "fp32")
    values, indices = aten.topk(tape, logits, block.top_k)
    return logits, aten.cast(tape, aten.softmax(tape, values), run.compute), indices


def shared_mlp(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Output of `GraniteMoeHybridMLP` for `x` [b, s, hidden], in x's shape.

    `name`: the module in the layer. Both halves of its first product live until it returns.
    """
    gate, up = aten.chunk(tape, linear(tape, run, f"{name}.input_linear", x))
    product = aten.mul(tape, aten.silu(tape, gate), up)
    return linear(tape, run, f"{name}.output_linear", product)
