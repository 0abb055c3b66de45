"""Experts beside an MLP (`Gemma4TextDecoderLayer` with `enable_moe_block`, `Gemma4TextRouter`, transformers 5.23).

The MLP's output passes a norm of its own. Router and experts read the stream before the MLP, the experts behind another
norm; a third norm is behind them. The sum of both is normed once more, and added to the stream. All of it are variables
of the layer's forward, which live until that returns, the router's probabilities among them.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import LayerKind, Moe
from simcore.operators.hf.families import mix, norm
from simcore.operators.hf.layers import Inputs, linear
from simcore.operators.hf.moe import as_rows, routed
from simcore.operators.shared import aten
from simcore.operators.shared.rms_norm import rms_norm_by_power
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["beside_mlp"]


def beside_mlp(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs,
               held: object) -> tuple[Tensor, object]:
    """(stream [b, s, h] with what the last two branches of `kind` make of `inputs.hidden`; what the layer holds).

    `held`: what the layer holds of attention, in a variable that the router's probabilities take.
    """
    dense, sparse = kind.branches[-2:]
    block, x = sparse.block, inputs.hidden
    assert isinstance(block, Moe)

    def normed(name: str, x: Tensor) -> Tensor:
        tape.scope = f"{name}."
        return norm(tape, run, f"{name}.", x, kind.family)

    made = normed(dense.norm, x)
    tape.scope = f"{dense.name}."
    made = mix(tape, run, dense, inputs._replace(hidden=made), kind.family)[0]
    first = normed(dense.behind, made)
    flat = as_rows(tape, x, (run.tokens, block.hidden))
    tape.scope = "router."
    probabilities, weights, indices = _route(tape, run, block, flat)
    if isinstance(held, list):
        held.clear()
    rows = normed(sparse.norm, flat)
    tape.scope = f"{sparse.name}."
    second = routed(tape, _inside(run, sparse.name), sparse.name, block, rows, indices, weights).view(*x.shape)
    del rows
    second = normed(sparse.behind, second)
    tape.scope = ""
    both = aten.add(tape, first, second, "both")
    del made
    both = normed(kind.joined, both)
    tape.scope = ""
    return aten.add(tape, x, both, "residual"), (first, second, flat, probabilities, weights, indices)


def _inside(run: LayerWorkload, name: str) -> LayerWorkload:
    """The workload with experts' parameters named as those of a block `name` that holds the experts' module."""
    moved = {f"{name}.{at}": param for at, param in run.params.items() if at.startswith(f"{name}.")}
    return replace(run, params={**run.params, **moved})


def _route(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(probabilities [tokens, experts] in fp32, weights in fp32, indices, both [tokens, top_k]) of rows `x`."""
    x = rms_norm_by_power(tape, None, x)
    x = aten.mul_scalar(tape, aten.mul(tape, x, run.params["router.scale"]))
    _scores = linear(tape, run, "router.proj", x)
    probabilities = aten.softmax(tape, aten.cast(tape, _scores, "fp32"))
    weights, indices = aten.topk(tape, probabilities, block.top_k)
    aten.div_(tape, weights, aten.sum_last(tape, weights, keepdim=True))
    weights = aten.mul(tape, weights, aten.index(tape, run.params["router.per_expert_scale"], indices, "scales"))
    return probabilities, weights, indices
