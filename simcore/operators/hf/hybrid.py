"""Parts of transformers 5.23's hybrids: GraniteMoeHybrid (`models/granitemoehybrid`), Falcon-H1 (`models/falcon_h1`).

GraniteMoeHybrid: the router's softmax is of the chosen logits, in fp32. The output of an MLP whose gate and up are one
matrix is added to that of the experts, which is held until the layer returns.

Falcon-H1 multiplies by numbers on the way, which are Python's: each makes a tensor and keeps nothing. What comes out of
Mamba's first projection is multiplied by a buffer with a number a column.
"""

from __future__ import annotations

from simcore.models.blocks import Branch, Mamba2, Moe
from simcore.operators.hf.layers import Inputs, attention, linear
from simcore.operators.hf.moe import as_rows, routed
from simcore.operators.hf.recurrent import mamba
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["attention_with_factors", "mamba_with_factors", "mlp_with_factors", "moe", "shared_mlp"]


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


# ---- Falcon-H1 -------------------------------------------------------------------------------------------------------
def attention_with_factors(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> Tensor:
    """Output of `FalconH1Attention` for `inputs.hidden`, in its shape, between the layer's two factors."""
    return aten.mul_scalar(tape, attention(tape, run, branch, inputs._replace(
        hidden=aten.mul_scalar(tape, inputs.hidden)), of_key=aten.mul_scalar))


def mamba_with_factors(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor) -> Tensor:
    """Output of `FalconH1Mixer` for `x` [b, s, hidden], in x's shape, times the layer's factor."""
    block = branch.block
    assert isinstance(block, Mamba2)
    columns = Param(f"{branch.name}.mup_vector", (1, 1, block.in_proj), run.compute, trainable=False)

    def multiplied(projected: Tensor) -> Tensor:
        return aten.mul(tape, projected, columns)

    return aten.mul_scalar(tape, mamba(tape, run, branch, aten.mul_scalar(tape, x), multiplied))


def mlp_with_factors(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Output of `FalconH1MLP` for `x` [..., hidden], in x's shape; `name`: the module in the layer."""
    up = linear(tape, run, f"{name}.up_proj", x)
    gate = aten.silu(tape, aten.mul_scalar(tape, linear(tape, run, f"{name}.gate_proj", x)))
    product = aten.mul(tape, up, gate)
    del up, gate
    return aten.mul_scalar(tape, linear(tape, run, f"{name}.down_proj", product))
