"""GPT-OSS in transformers 5.23 (`models/gpt_oss/modeling_gpt_oss.py`): what differs from other families.

Norm weights meet the hidden state in fp32 (`GptOssRMSNorm`), rotary tables have half a head's size
(`_apply_rotary_emb`), the router's softmax is over the chosen logits (`GptOssTopKRouter`), and experts with biases
gate interleaved columns that are clamped (`GptOssExperts._apply_gate`). The layer holds the router's scores until it
returns.
"""

from __future__ import annotations

import math

from simcore.models.blocks import Branch, Moe
from simcore.operators.hf.layers import Core
from simcore.operators.hf.moe import as_rows, by_expert, by_token
from simcore.operators.shared import aten
from simcore.operators.shared.eager_attention import added_mask, from_largest, scores_of, weighted_values
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["eager_core", "moe", "rotate"]


def rotate(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotated `x` [b, s, heads, d], in its shape: both halves with tables [1, s, 1, d / 2], then joined."""
    first, second = aten.chunk(tape, x)
    left = aten.sub(tape, aten.mul(tape, first, cos, "rotary"), aten.mul(tape, second, sin, "rotary"), "rotary")
    right = aten.add(tape, aten.mul(tape, second, cos, "rotary"), aten.mul(tape, first, sin, "rotary"), "rotary")
    return aten.cat(tape, left, right)


def eager_core(tape: Tape, run: LayerWorkload, name: str, mask: Tensor | None, held: list[Tensor]) -> Core:
    """Attention function with sinks: (query, key, value), each [b, s, heads, d], to query's shape.

    `eager_attention_forward`. `name`: the attention module; `mask`: added to the scores. `held`: list that gets the
    probabilities, which the module returns to the layer.
    """
    assert mask is not None
    sinks = run.params[f"{name}.sinks"]

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (aten.repeat_heads(tape, x, q.shape[2] // x.shape[2]) for x in (k, v))
        square = (q.shape[0], q.shape[2], q.shape[1], q.shape[1])
        weights = added_mask(tape, scores_of(tape, q, keys, []), mask)
        logits = _with_sinks(tape, weights, sinks)
        logits = from_largest(tape, logits)
        probabilities = aten.softmax(tape, logits)
        weights = _without_sinks(tape, probabilities, square)
        held.append(weights)
        return weighted_values(tape, weights, values, [])

    return core


def _with_sinks(tape: Tape, x: Tensor, sinks: Param) -> Tensor:
    """One column more, the head's sink in every row."""
    shape, last = x.shape, (*x.shape[:-1], 1)

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        (grad,) = grads
        assert grad is not None
        if math.prod(last) == math.prod(sinks.shape):  # one row: AccumulateGrad copies what is strided
            return [grad.view(*shape), aten.new(tape, last, grad.dtype, "grad_sinks")]
        return [grad.view(*shape), grad.view(*last)]

    node = tape.node((x, sinks), (), backward, reduce_to=(shape, sinks.shape))
    out = aten.new(tape, (*shape[:-1], shape[-1] + 1), x.dtype, "with_sinks", x.nbytes)
    out.node = node
    return out


def _without_sinks(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view of all columns but the last; its gradient is written into zeros of the whole shape."""
    whole, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [aten.new(tape, whole, dtype, "grad_slice")])
    return Tensor(x.storage, shape, dtype, node)


def moe(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor) -> tuple[Tensor, Tensor]:
    """(output of `GptOssMLP` for `x` [b, s, hidden], in x's shape; the router's scores [tokens, top_k])."""
    block, name = branch.block, branch.name
    assert isinstance(block, Moe)
    flat = as_rows(tape, x, (run.tokens, block.hidden))
    # The logits stay in a local variable that is not read.
    _logits, scores, indices = _route(tape, run, name, block, flat)
    return _experts(tape, run, name, block, flat, indices, scores).view(*x.shape), scores


def _route(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with a bias, the top k of them, their softmax in the compute dtype."""
    weight, bias = run.params[f"{name}.router.weight"], run.params[f"{name}.router.bias"]
    logits = aten.linear(tape, x, weight, "router", bias=bias)
    values, indices = aten.topk(tape, logits, block.top_k)
    return logits, aten.softmax(tape, values), indices


def _experts(tape: Tape, run: LayerWorkload, name: str, block: Moe, hidden: Tensor, indices: Tensor,
             scores: Tensor) -> Tensor:
    """`grouped_mm_experts_forward` of transformers 5.23 `integrations/moe.py`, with biases of every row's expert."""
    params = {part: run.params[f"{name}.experts.{part}"] for part in (
        "gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")}
    found = by_expert(tape, block, hidden, indices, scores)
    biases = aten.index(tape, params["gate_up_proj_bias"], found.ids, "row_biases")
    x = _grouped_linear(tape, found.rows, params["gate_up_proj"], biases, found.offsets)
    x = _gate(tape, x)
    biases = aten.index(tape, params["down_proj_bias"], found.ids, "row_biases")
    x = _grouped_linear(tape, x, params["down_proj"], biases, found.offsets)
    return by_token(tape, run, block, x, found, hidden.dtype)


def _grouped_linear(tape: Tape, x: Tensor, weight: Param, biases: Tensor, offsets: Tensor) -> Tensor:
    """Rows by expert times its matrix [in, out]; the biases are added in place."""
    out = aten.grouped_mm(tape, x, weight, offsets, weight.name.removeprefix(tape.scope), transposed=True)
    aten.add_(tape, out, biases)
    return out


def _gate(tape: Tape, gate_up: Tensor) -> Tensor:
    """`(clamp(up) + 1) * gate * sigmoid(gate * alpha)`, gate clamped from above; columns alternate."""
    gate, up = aten.slice_half(tape, gate_up), aten.slice_half(tape, gate_up)
    gate = aten.clamp(tape, gate, 1)
    up = aten.clamp(tape, up, 2)
    glu = aten.mul(tape, gate, aten.sigmoid(tape, aten.mul_scalar(tape, gate)))
    return aten.mul(tape, aten.add_scalar(tape, up), glu)
