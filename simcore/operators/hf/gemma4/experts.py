"""Experts beside an MLP (`Gemma4TextDecoderLayer` with `enable_moe_block`, `Gemma4TextRouter`, transformers 5.23).

The MLP's output passes a norm of its own. Router and experts read the stream before the MLP, the experts behind another
norm; a third norm is behind them. The sum of both is normed once more, and added to the stream. All of it are variables
of the layer's forward, which live until that returns, the router's probabilities among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from simcore.models.blocks import LayerKind, Moe
from simcore.operators.shared import aten
from simcore.operators.shared.rms_norm import rms_norm_by_power
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["Parts", "beside_mlp"]


class Parts(NamedTuple):
    """Modules of the layer: `norm` and `linear` by name, the MLP, and experts of rows by (rows, indices, weights).

    `rows`: the stream as rows of tokens, in which its gradients are added up.
    """

    norm: Callable[[str, Tensor], Tensor]
    mlp: Callable[[Tensor], Tensor]
    linear: Callable[[str, Tensor], Tensor]
    rows: Callable[[Tensor], Tensor]
    experts: Callable[[Tensor, Tensor, Tensor], Tensor]


def beside_mlp(tape: Tape, kind: LayerKind, run: LayerWorkload, x: Tensor, parts: Parts,
               held: object) -> tuple[Tensor, object]:
    """(stream `x` [b, s, h] with what the last two branches of `kind` make of it; what the layer holds).

    `held`: what the layer holds of attention, in a variable that the router's probabilities take.
    """
    dense, sparse = kind.branches[-2:]
    assert isinstance(sparse.block, Moe)
    made = parts.norm(dense.norm, x)
    tape.scope = f"{dense.name}."
    made = parts.mlp(made)
    first = parts.norm(dense.behind, made)
    flat = parts.rows(x)
    tape.scope = "router."
    probabilities, weights, indices = _route(tape, run, sparse.block, flat, parts)
    if isinstance(held, list):
        held.clear()
    rows = parts.norm(sparse.norm, flat)
    tape.scope = f"{sparse.name}."
    second = parts.experts(rows, indices, weights).view(*x.shape)
    del rows
    second = parts.norm(sparse.behind, second)
    tape.scope = ""
    both = aten.add(tape, first, second, "both")
    del made
    both = parts.norm(kind.joined, both)
    tape.scope = ""
    return aten.add(tape, x, both, "residual"), (first, second, flat, probabilities, weights, indices)


def _route(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor, parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """(probabilities [tokens, experts] in fp32, weights in fp32, indices, both [tokens, top_k]) of rows `x`."""
    x = rms_norm_by_power(tape, None, x)
    x = aten.mul_scalar(tape, aten.mul(tape, x, run.params["router.scale"]))
    _scores = parts.linear("router.proj", x)
    probabilities = aten.softmax(tape, aten.cast(tape, _scores, "fp32"))
    weights, indices = aten.topk(tape, probabilities, block.top_k)
    aten.div_(tape, weights, aten.sum_last(tape, weights, keepdim=True))
    weights = aten.mul(tape, weights, aten.index(tape, run.params["router.per_expert_scale"], indices, "scales"))
    return probabilities, weights, indices
