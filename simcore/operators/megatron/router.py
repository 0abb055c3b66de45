"""Megatron-Core's routers: the gate in fp32 or the input's dtype, scores, top-k, probabilities.

megatron-core 0.16.1 `transformer/moe/router.py`, `moe_utils.py`.
"""

from __future__ import annotations

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Moe
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.rows import HELD, Rows
from simcore.recording.tape import Tape, Tensor

__all__ = ["route", "route_by_softmax"]


def route(c: Context, block: Moe, rows: Rows, x: Tensor) -> Tensor:
    """Probabilities [tokens, all experts] in fp32 of a sigmoid router, 0 for experts that are not chosen.

    `x` [tokens, hidden]: gate in fp32, scores, top-k. The dispatcher, unless it is flex, holds them and the map of
    chosen experts. Raises NotYet for an adapter of the router.
    """
    logits = _gate(c, block, rows, x)
    t, e, k = rows.tokens, block.num_experts, block.top_k

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        # Gather and division over k, then the scatter of gather's backward and the scores' own: fp32 (t, e) each.
        top = c.new(t, k, "grad_top_scores", "fp32")
        spread = c.new(t, e, "grad_scores", "fp32")
        grad = c.new(t, e, "grad_logits", "fp32")
        c.elementwise(grad, 8)
        del top, spread
        return [grad]

    scores = c.new(t, e, "router.scores", "fp32")
    biased = c.new(t, e, "router.biased_scores", "fp32")
    indices = c.new(t, k, "router.top_indices", "int64")
    del biased
    top = c.new(t, k, "router.top_scores", "fp32")
    total = c.new(t, 1, "router.top_sum", "fp32")
    balance = c.new(t, e + 1, "router.balance_scores", "fp32")  # sequence-wise balance loss
    probs = c.new(t, e, "router.probs", "fp32", HELD)
    chosen = c.new(t, e, "router.routing_map", "uint8", HELD)
    c.elementwise(scores, 14)
    c.node(probs, (logits,), (scores, indices, top, total, balance), back)
    if c.options.dispatcher != "flex":
        c.held.update(probs=probs.detach(), map=chosen)
    return probs


def route_by_softmax(c: Context, block: Moe, rows: Rows, x: Tensor) -> Tensor:
    """Probabilities [tokens, all experts] of a softmax router, 0 for experts that are not chosen.

    `x` [tokens, hidden]: the router's input. Raises NotYet for an adapter of the router. Top-k of the logits, softmax
    of the chosen in fp32; the balance loss has another one. `moe_utils.py`: topk_routing_with_score_function,
    compute_routing_scores_for_aux_loss. Logits and probabilities are in the dtype of moe_router_dtype. DeepSeek-V2
    takes the softmax before the choice (Bridge 0.3.1 `models/deepseek/deepseek_v2_bridge.py`, moe_router_pre_softmax),
    which keeps it for all experts. GPT-OSS has no balance loss (Bridge 0.3.1 `models/gpt_oss/gpt_oss_provider.py`,
    moe_router_load_balancing_type none).
    """
    dtype, balanced = c.options.moe_router_dtype, block.router == "softmax"
    logits = _gate(c, block, rows, x, dtype)
    t, e, k = rows.tokens, block.num_experts, block.top_k

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        # The balance loss ran last: its softmax and cast; then scatter, softmax and top-k; both are added.
        wide = c.new(t, e, "grad_balance_scores", "fp32") if balanced else None
        balance = c.new(t, e, "grad_balance_logits", dtype) if balanced and dtype != "fp32" else wide
        del wide
        top = c.new(t, k, "grad_top_scores", "fp32")
        spread = c.new(t, e, "grad_top_logits", dtype)
        del top
        grad = c.new(t, e, "grad_logits", dtype) if balanced else spread
        c.elementwise(grad, 8)
        del balance, spread
        return [grad]

    indices = c.new(t, k, "router.top_indices", "int64")
    top = c.new(t, e if c.kind.family == "deepseek_v2" else k, "router.top_scores", "fp32")
    probs = c.new(t, e, "router.probs", dtype, HELD)
    chosen = c.new(t, e, "router.routing_map", "uint8", HELD)
    balance = (c.new(t, e, "router.balance_scores", "fp32"),) * balanced
    c.elementwise(probs, 14)
    c.node(probs, (logits,), (indices, top, *balance), back)
    if c.options.dispatcher != "flex":
        c.held.update(probs=probs.detach(), map=chosen)
    return probs


def _gate(c: Context, block: Moe, rows: Rows, x: Tensor, dtype: str = "fp32") -> Tensor:
    """`RouterGatingLinearFunction`: keeps its bf16 input whether it trains or not; casts to fp32 in backward."""
    weight, t, e, h = c.param("mlp.router.weight"), rows.tokens, block.num_experts, block.hidden
    bias = c.run.params.get("mlp.router.bias")

    def back_alike(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(t, h, "grad_router_input")
        c.gemm(t, h, e)
        c.gemm(e, h, t)
        return [grad, c.small_grad(weight), c.small_grad(bias) if bias else None]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        wide = c.tape.empty(weight.shape, "fp32", "router.weight_fp32")
        grad32 = c.new(t, h, "grad_router_input_fp32", "fp32")
        c.gemm(t, h, e)
        del wide
        x32 = c.new(t, h, "router_input_fp32", "fp32")
        c.elementwise(x32, 2)
        wgrad32 = c.tape.empty(weight.shape, "fp32", "grad_router_weight_fp32")
        c.gemm(e, h, t)
        del x32
        grad = c.new(t, h, "grad_router_input")
        c.elementwise(grad, 3)
        del grad32
        wgrad = c.small_grad(weight)
        del wgrad32
        return [grad, wgrad, c.small_grad(bias) if bias else None]

    logits = c.new(t, e, "router.logits", dtype)
    c.gemm(t, e, h)
    c.node(logits, (x, weight, bias), (x,), back_alike if dtype == c.dtype else back)
    if c.pair("mlp.router"):
        raise NotYet(Problem("training.lora.target_modules", "adapters of the router are not modelled"))
    return logits
