"""Megatron-Core's MoE layer: norm, shared expert, fp32 router, all-to-all dispatcher, grouped experts.

megatron-core 0.16.1: `transformer/transformer_layer.py` (`_forward_mlp`), `transformer/moe/moe_layer.py`,
`router.py`, `moe_utils.py`, `token_dispatcher.py` (`MoEAlltoAllTokenDispatcher`, permute fusion on), `experts.py`
(`TEGroupedMLP`), `fusions/fused_weighted_squared_relu.py`; TransformerEngine 2.18 `pytorch/permutation.py`.

`LayerWorkload.rows_per_token` counts the rows that this rank receives in its all-to-all for each token that it sends:
under sequence parallelism every tp rank sends its own part of the sequence. Expert tensor parallelism then gathers the
rows of its etp ranks, so the experts see etp times as many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Moe
from simcore.operators.megatron.allgather import PERMUTED, UNPERMUTED, gather_tokens, reduce_tokens
from simcore.operators.megatron.biased import clamped, with_scaled_bias, with_second_bias
from simcore.operators.megatron.context import Context, Discarded, Grads, Saved, discarded_region
from simcore.operators.megatron.ops import act, add, column, grouped, norm, norm_discarded, row, swiglu, whole
from simcore.operators.megatron.parts import biased
from simcore.operators.shared import aten
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["moe"]

_HELD = "dispatcher"


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens of the residual stream here, rows sent, rows received, rows that the experts compute."""

    tokens: int
    sent: int
    received: int
    computed: int
    local_experts: int


def moe(c: Context, block: Moe, x: Tensor) -> Tensor:
    """The MoE block on the residual stream `x`; the caller adds the residual."""
    rows = _rows(c, block)
    discarded = None
    if c.recomputes("layernorm") and not c.inside:
        ln_out, discarded = norm_discarded(c, "pre_mlp_layernorm", x)
    else:
        ln_out = norm(c, "pre_mlp_layernorm", x)
    out = c.region(lambda: _layer(c, block, rows, ln_out)) if c.recomputes("moe") else _layer(c, block, rows, ln_out)
    return discarded.drop_after(out) if discarded else out


def _rows(c: Context, block: Moe) -> Rows:
    """How many rows go where, on a rank that gets its even share, or the busiest one's.

    With moe_router_padding_for_quantization more tokens are chosen, until the rows for each expert are whole multiples:
    those of each sender (`token_dispatcher.py:617`), under flex those that it receives (`:1291`).
    """
    received = c.local * c.run.rows_per_token >> 16
    sent = c.local * (c.run.sent_per_token or block.top_k << 16) >> 16
    here, computed = block.num_experts // c.run.ep, received * c.run.etp
    if c.scaling is not None and c.pads_routing:
        if dict(c.run.options).get("moe_token_dispatcher_type") == "flex" and c.run.ep > 1:
            return Rows(c.local, sent, received, c.scaling.padded_rows(computed, here), here)
        sent = c.scaling.padded_rows(sent, block.num_experts)
        received = c.scaling.padded_rows(received, here * c.run.ep)
        computed = received * c.run.etp
    return Rows(c.local, sent, received, computed, here)


def _layer(c: Context, block: Moe, rows: Rows, x: Tensor) -> Tensor:
    """`MoELayer.forward`: its variables keep what was sent and received alive until it returns.

    [Note: latent experts] With moe_latent_size every token is projected down after router and shared expert have read
    it, and up once its rows are summed, before the shared expert's output is added (`preprocess`, `postprocess`; main
    of 2026-08-22 the same). Permutation, dispatch and experts see latent rows alone. Both projections lie whole on
    every tp rank and read this rank's tokens; each keeps its input, the permutation keeps nothing of it.
    """
    c.tape.module = Module.SHARED_EXPERTS
    shared = _shared(c, block, x) if block.shared_ffn else None
    c.tape.module = Module.MOE_ROUTER
    probs = _route(c, block, rows, x) if block.router == "sigmoid" else _route_by_softmax(c, block, rows, x)
    c.tape.module = Module.MOE_PREPROCESS
    x = _projected(c, block, "fc1", x)
    if dict(c.run.options).get("moe_token_dispatcher_type") == "flex" and c.run.ep > 1:
        c.tape.stop()  # DeepEP waits for what each rank sends
        c.tape.module = Module.MOE
        out = _projected(c, block, "fc2", _flex(c, block, rows, x, probs))
        return _with_shared(c, out, shared) if shared else out
    if dict(c.run.options).get("moe_token_dispatcher_type") == "allgather":
        c.tape.stop()  # rows of each expert go to the host
        c.tape.module = Module.MOE
        given, weights = gather_tokens(c, rows.computed, rows.local_experts, x, probs)
        out = _projected(c, block, "fc2", reduce_tokens(c, _grouped_mlp(c, block, rows, given, weights)))
        return add(c, out, shared, "mlp.output") if shared else out
    _gather_counts(c, block)
    c.tape.stop()  # rows of each expert: `_maybe_dtoh_and_synchronize`
    sent, sent_probs = _permute(c, block, rows, x, probs)
    c.tape.module = Module.MOE
    del x
    received = _all_to_all(c, sent, rows.received, "dispatched")
    received_probs = _all_to_all(c, sent_probs, rows.received, "dispatched_probs")
    out = _experts(c, block, rows, received, received_probs)
    out = _all_to_all(c, out, rows.sent, "combined")
    out = _projected(c, block, "fc2", _unpermute(c, rows, out))
    return _with_shared(c, out, shared) if shared else out


def _projected(c: Context, block: Moe, name: str, x: Tensor) -> Tensor:
    """To the experts' width or back, where it is not the model's ([Note: latent experts])."""
    return whole(c, f"mlp.{name}_latent_proj", x) if block.latent else x


# ---- shared expert ---------------------------------------------------------------------------------------------------
def _shared(c: Context, block: Moe, x: Tensor) -> Tensor:
    def run() -> Tensor:
        inner = column(c, "mlp.shared_experts.linear_fc1", x)
        inner = act(c, inner, "mlp.shared_experts.activation", gated=block.gated)
        out = row(c, "mlp.shared_experts.linear_fc2", inner)
        return _gated(c, x, out) if block.shared_gate else out

    return c.region(run) if c.recomputes("shared_experts") else run()


def _gated(c: Context, x: Tensor, out: Tensor) -> Tensor:
    """`moe/shared_experts.py`, SharedExpertMLP.forward: torch's own linear, a sigmoid and a product."""
    logits = aten.linear(c.tape, x, c.run.params["mlp.shared_experts.gate_weight"], "mlp.shared_experts.gate_logits")
    score = aten.sigmoid(c.tape, logits)
    return aten.mul(c.tape, out, score, "mlp.shared_experts.gated")


def _with_shared(c: Context, out: Tensor, shared: Tensor) -> Tensor:
    """The sum. Where layers are cut into nodes the shared expert's output crosses from one to another, which keeps it.

    `models/gpt/fine_grained_callables.py`: TransformerLayerNode.detach, before_detached.
    """
    total = add(c, out, shared, "mlp.output")
    if c.is_cut_into_nodes:
        c.tape.save(total.node, shared)
    return total


# ---- router ----------------------------------------------------------------------------------------------------------
def _route(c: Context, block: Moe, rows: Rows, x: Tensor) -> Tensor:
    """Gate in fp32, scores, top-k, probabilities spread over all experts; the dispatcher holds them and the map."""
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
    probs = c.new(t, e, "router.probs", "fp32", _HELD)
    chosen = c.new(t, e, "router.routing_map", "uint8", _HELD)
    c.elementwise(scores, 14)
    c.node(probs, (logits,), (scores, indices, top, total, balance), back)
    if dict(c.run.options).get("moe_token_dispatcher_type") != "flex":
        c.held.update(probs=probs.detach(), map=chosen)
    return probs


def _route_by_softmax(c: Context, block: Moe, rows: Rows, x: Tensor) -> Tensor:
    """Top-k of the logits, softmax of the chosen in fp32, spread over all experts; the balance loss has another one.

    `moe_utils.py`: topk_routing_with_score_function, compute_routing_scores_for_aux_loss. Logits and probabilities are
    in the dtype of moe_router_dtype. DeepSeek-V2 takes the softmax before the choice (Bridge 0.3.1
    `models/deepseek/deepseek_v2_bridge.py`, moe_router_pre_softmax), which keeps it for all experts. GPT-OSS has no
    balance loss (Bridge 0.3.1 `models/gpt_oss/gpt_oss_provider.py`, moe_router_load_balancing_type none).
    """
    dtype, balanced = dict(c.run.options).get("moe_router_dtype", "fp32"), block.router == "softmax"
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
    probs = c.new(t, e, "router.probs", dtype, _HELD)
    chosen = c.new(t, e, "router.routing_map", "uint8", _HELD)
    balance = (c.new(t, e, "router.balance_scores", "fp32"),) * balanced
    c.elementwise(probs, 14)
    c.node(probs, (logits,), (indices, top, *balance), back)
    if dict(c.run.options).get("moe_token_dispatcher_type") != "flex":
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


# ---- dispatcher ------------------------------------------------------------------------------------------------------
def _gather_counts(c: Context, block: Moe) -> None:
    """How many tokens every rank has for each expert, in int64 (`token_dispatcher.py:538`, preprocess)."""
    ranks = c.run.ep * c.run.etp
    if ranks > 1:
        c.tape.collective("all_gather", c.expert_axis, 8 * block.num_experts * ranks, "int64")


def _permute(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of the tokens in expert order, with their probabilities; keeps only the row map, held besides."""
    h, t, e, dtype = block.expert_hidden, rows.tokens, block.num_experts, probs.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(t, h, "grad_permute")
        grad_probs = c.new(t, e, "grad_probs", dtype)
        c.permutation(c.size * h * (rows.sent + t), PERMUTED[1])
        return [grad, grad_probs]

    row_map = c.new(t, 2 * e + 1, "row_id_map", "int32", _HELD) if c.fuses_permutation else \
        c.new(rows.sent, 1, "row_places", "int64", _HELD)
    out = c.new(rows.sent, h, "permuted")
    out_probs = c.new(rows.sent, 1, "permuted_probs", dtype)
    if not c.fuses_permutation:
        c.tape.stop()
    c.permutation(c.size * h * (rows.sent + t), PERMUTED[0])
    c.node(out, (x, probs), (row_map,), back)
    out_probs.node, out_probs.output = out.node, 1
    c.held["row_map"] = row_map
    return out, out_probs


def _all_to_all(c: Context, x: Tensor, rows: int, name: str) -> Tensor:
    """Over expert parallelism; nothing at all on one rank."""
    if c.run.ep == 1:
        return x
    back_rows, columns, dtype = *x.shape, x.dtype
    larger = max(rows, back_rows) * x.nbytes // back_rows

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(back_rows, columns, f"grad_{name}", dtype)
        c.tape.collective("all_to_all", c.run.ep_axis, larger, dtype)
        return [grad]

    out = c.new(rows, columns, name, dtype)
    c.tape.collective("all_to_all", c.run.ep_axis, larger, dtype)
    c.node(out, (x,), (), back)
    return out


def _sorted(c: Context, rows: Rows, x: Tensor, probs: Tensor | None, name: str) -> tuple[Tensor, Tensor | None]:
    """Rows by local expert and back (`sort_chunks_by_idxs`): keeps a row map; nothing for a single expert."""
    if rows.local_experts == 1:
        return x, probs
    n, columns, dtype = *x.shape, probs.dtype if probs else ""

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(n, columns, f"grad_{name}")
        grad_probs = c.new(n, 1, f"grad_{name}_probs", dtype) if dtype else None
        c.tape.compute(Kernel.PERMUTE, 0, 2 * grad.nbytes)
        return [grad, grad_probs]

    row_map = c.new(n, 1, f"{name}_map", "int32")
    out = c.new(n, columns, name)
    out_probs = c.new(n, 1, f"{name}_probs", dtype) if dtype else None
    c.tape.compute(Kernel.PERMUTE, 0, 2 * out.nbytes)
    c.node(out, (x, probs), (row_map,), back)
    if out_probs is not None:
        out_probs.node, out_probs.output = out.node, 1
    return out, out_probs


def _etp_gather(c: Context, x: Tensor, name: str) -> Tensor:
    """Rows of all expert-tensor ranks; the gradient is reduce-scattered."""
    n, columns, dtype = *x.shape, x.dtype

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        assert grads[0] is not None
        grad = c.new(n, columns, f"grad_{name}", dtype)
        c.send("reduce_scatter", "etp", grads[0])
        return [grad]

    out = c.new(n * c.run.etp, columns, name, dtype)
    c.send("all_gather", "etp", out)
    c.node(out, (x,), (), back)
    return out


def _etp_scatter(c: Context, x: Tensor, dtype: str) -> Tensor:
    """Sum over the expert-tensor ranks, in the probabilities' dtype (`combine_preprocess`)."""
    n, columns = x.shape
    own = n // c.run.etp
    if dtype == c.dtype:
        return _etp_scatter_alike(c, x, own)

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        wide = c.new(own, columns, "grad_expert_sum_fp32", "fp32")
        full = c.new(n, columns, "grad_expert_out_fp32", "fp32")
        c.send("all_gather", "etp", full)
        grad = c.new(n, columns, "grad_expert_out")
        c.elementwise(grad, 3)
        del wide, full
        return [grad]

    wide = c.new(n, columns, "expert_out_fp32", "fp32")
    c.elementwise(wide, 2)
    part = c.new(own, columns, "expert_sum_fp32", "fp32")
    c.send("reduce_scatter", "etp", wide)
    del wide
    out = c.new(own, columns, "expert_sum")
    c.elementwise(out, 3)
    del part
    c.node(out, (x,), (), back)
    return out


def _etp_scatter_alike(c: Context, x: Tensor, own: int) -> Tensor:
    """The same where the probabilities have the rows' dtype: nothing is cast."""
    n, columns = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(n, columns, "grad_expert_out")
        c.send("all_gather", "etp", grad)
        return [grad]

    out = c.new(own, columns, "expert_sum")
    c.send("reduce_scatter", "etp", x)
    c.node(out, (x,), (), back)
    return out


def _unpermute(c: Context, rows: Rows, x: Tensor) -> Tensor:
    """Sums the rows of each token (probabilities are in them already): keeps only the row map.

    Without permutation fusion and with deterministic algorithms `index_add_` keeps the rows (`moe_utils.py`).
    """
    n, h = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(n, h, "grad_unpermute")
        c.permutation(c.size * h * (n + rows.tokens), UNPERMUTED[1])
        return [grad]

    out = c.new(rows.tokens, h, "unpermuted")
    c.permutation(c.size * h * (n + rows.tokens), UNPERMUTED[0])
    apart = c.is_deterministic and not c.fuses_permutation
    c.node(out, (x,), (c.held["row_map"], x) if apart else (c.held["row_map"],), back)
    return out


# ---- flex dispatcher: DeepEP, HybridEP ------------------------------------------------------------------------------
def distinct_ranks(block: Moe, ep: int) -> float:
    """Ranks that a token goes to, on average: the rows that each rank receives for each token it has.

    All experts of a token are in a few groups (`moe_utils.py`, group_limited_topk), which lie on neighbouring ranks.
    """
    groups, few = block.num_groups, block.chosen_groups
    size, held = block.num_experts // groups, max(1, groups // ep)
    here, reached = min(size, block.num_experts // ep), few * size
    missed = sum(math.comb(held, j) * math.comb(groups - held, few - j) * math.comb(reached - j * here, block.top_k)
                 for j in range(min(held, few) + 1))
    return ep * (1 - missed / math.comb(groups, few) / math.comb(reached, block.top_k))


def _flex(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """`MoEFlexTokenDispatcher`: a token crosses once for each rank, and is copied for its experts there.

    Metadata is an estimate (20 %, 0.3 % of what a layer keeps). HybridEP is taken to be equal. The communication
    buffers come from cudaMalloc, so PyTorch does not see them (`token_dispatcher.py`, `fused_a2a.py`). Probabilities
    are sent in fp32 whatever the router's format (core 0.16.1 `token_dispatcher.py:1034`). In fp8 HybridEP puts rows
    where they are padded at once (`:1036`), and there is nothing left to pad for the experts.
    """
    t, e, k, h, ep = rows.tokens, block.num_experts, block.top_k, block.expert_hidden, c.run.ep
    pads = c.scaling is not None and dict(c.run.options).get("moe_flex_dispatcher_backend") == "hybridep"
    here = min(ep, distinct_ranks(block, ep) * rows.received / (t * k))
    landed = int(t * here)
    metadata = int(t * (12 * k + 5 * ep + 4 * here + here * (e // ep) + here * k)) + 32 * rows.received
    c.held["metadata"] = c.new(metadata, 1, "dispatch_metadata", "uint8", _HELD)
    received = _crossed(c, (x, aten.cast(c.tape, probs, "fp32")), (t, e), landed, "dispatched")
    if pads and c.scaling:
        rows = replace(rows, computed=c.scaling.padded_rows(rows.computed, rows.local_experts))
    ordered, weights = _expanded(c, rows, received, e // ep, h)
    out = (_expert_layers if pads else _grouped_mlp)(c, block, rows, ordered, weights)
    folded = _folded(c, out, landed, h)
    del out
    return _crossed(c, (folded,), (landed, 0), t, "combined")


def _crossed(c: Context, inputs: tuple[Tensor, ...], shape: tuple[int, int], rows: int, name: str) -> Tensor:
    """One of DeepEP's two exchanges; in backward it is the other one."""
    (before, spread), h = shape, inputs[0].shape[1]
    payload = max(rows, before) * h * c.size

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grads: list[Tensor | None] = [c.new(before, h, f"grad_{name}")]
        c.tape.collective("all_to_all", c.run.ep_axis, payload, c.dtype)
        return [*grads, c.new(before, spread, "grad_probs", "fp32")] if spread else grads

    out = c.new(rows, h, name)
    c.tape.collective("all_to_all", c.run.ep_axis, payload, c.dtype)
    c.node(out, inputs, (c.held["metadata"],), back)
    return out


def _expanded(c: Context, rows: Rows, x: Tensor, experts: int, h: int) -> tuple[Tensor, Tensor]:
    """Received tokens copied in the order of the local experts (`permute`, fused), gathered over etp."""
    landed = x.shape[0]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(landed, h, "grad_permute")
        c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (rows.computed + landed))
        return [grad]

    row_map = c.new(landed, 2 * experts + 1, "row_id_map", "int32", _HELD)
    out, weights = c.new(rows.computed, h, "sorted"), c.new(rows.computed, 1, "sorted_probs", "fp32")
    c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (rows.computed + landed))
    c.node(out, (x,), (row_map,), back)
    weights.node, weights.output = out.node, 1
    c.held["row_map"] = row_map
    return out, weights


def _folded(c: Context, x: Tensor, landed: int, h: int) -> Tensor:
    """Rows of the same token summed before they go back."""
    n = x.shape[0]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(n, h, "grad_unpermute")
        c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (n + landed))
        return [grad]

    out = c.new(landed, h, "unpermuted")
    c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (n + landed))
    c.node(out, (x,), (c.held["row_map"],), back)
    return out


# ---- experts ---------------------------------------------------------------------------------------------------------
def _experts(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """`routed_experts_compute`: gather over etp, sort, two grouped GEMMs, sort back, scatter over etp."""
    if c.run.etp > 1:
        x, probs = _etp_gather(c, x, "gathered"), _etp_gather(c, probs, "gathered_probs")
    ordered, weights = _sorted(c, rows, x, probs, "sorted")
    assert weights is not None
    del x, probs
    out = _grouped_mlp(c, block, rows, ordered, weights)
    back, _ = _sorted(c, rows, out, None, "unsorted")
    return _etp_scatter(c, back, weights.dtype) if c.run.etp > 1 else back


def _grouped_mlp(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """`TEGroupedMLP.forward`. For fp8 every expert's rows are copied to a multiple of 16 (mxfp8: 32) rows and back."""
    if c.scaling is None or c.pads_routing:
        return _expert_layers(c, block, rows, x, probs)
    computed = c.scaling.padded_rows(rows.computed, rows.local_experts)
    wide, weights = _resized(c, x, computed, "padded"), _resized(c, probs, computed, "padded_probs")
    return _resized(c, _expert_layers(c, block, rows, wide, weights), rows.computed, "unpadded")


def _resized(c: Context, x: Tensor, rows: int, name: str) -> Tensor:
    """`Fp8Padding`, `Fp8Unpadding`: keep nothing. Real loads are never all multiples, so it always copies.

    One call that copies rows in their order (TransformerEngine 2.18 `common/util/padding.cu`): no permutation, for
    which a dispatcher makes maps and counts.
    """
    before, columns, dtype = *x.shape, x.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(before, columns, f"grad_{name}", dtype)
        c.tape.compute(Kernel.ELEMENTWISE, 0, 2 * grad.nbytes)
        return [grad]

    out = c.new(rows, columns, name, dtype)
    c.tape.compute(Kernel.ELEMENTWISE, 0, 2 * out.nbytes)
    c.node(out, (x,), (), back)
    return out


def _in_one(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """TransformerEngine's fused grouped MLP in mxfp8 (main `moe/experts.py`, _with_fused_impl; TE `pytorch/ops`).

    The first GEMM's epilogue is activation, probabilities and cast for the second; in backward the second's is their
    gradient and the cast for the first. What is kept is taken to be the same, without the halves of a clamp.
    """
    inner = grouped(c, "mlp.experts.linear_fc1", x, rows.local_experts, casts_grad=False)
    if block.bias:
        inner = biased(c, "mlp.experts.linear_fc1", inner)
    out, _ = _weighted(c, block, inner, probs, discard=False, kernels=False)
    out = grouped(c, "mlp.experts.linear_fc2", out, rows.local_experts, casts_input=False)
    return with_scaled_bias(c, "mlp.experts.linear_fc2", out, probs) if block.bias else out


def _expert_layers(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    if dict(c.run.options).get("use_transformer_engine_op_fuser") == "true" and c.scaling is not None:
        return _in_one(c, block, rows, x, probs)
    inner = grouped(c, "mlp.experts.linear_fc1", x, rows.local_experts)
    if block.bias:
        return _biased_second(c, block, rows, inner, probs)
    if not _fuses_experts(c, block):
        return _unfused_second(c, block, rows, inner, probs)
    if not c.recomputes("moe_act") or c.inside:
        out, _ = _weighted(c, block, inner, probs, discard=False)
        return grouped(c, "mlp.experts.linear_fc2", out, rows.local_experts)
    out, discarded = _weighted(c, block, inner, probs, discard=True)
    result = grouped(c, "mlp.experts.linear_fc2", out, rows.local_experts)
    assert discarded is not None
    return discarded.drop_after(result)


def _biased_second(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """GPT-OSS: a clamp before the fused activation, and a bias after the second GEMM.

    Each activation, made again or not, puts a number on the device (`fused_bias_geglu.py`, weighted_bias_quick_geglu_
    impl: torch.tensor), and the host waits for the stream until it is there (torch 2.13 `native/cuda/Copy.cu`,
    memcpy_and_sync).
    """
    if not c.fuses_activation:
        raise NotYet(Problem("framework_options.bias_activation_fusion", "not yet: experts with biases without the "
                             "fused activation"))
    path = "mlp.experts.linear_fc2"
    x = biased(c, "mlp.experts.linear_fc1", x)

    def run() -> tuple[Tensor, ...]:
        cut = clamped(c, x)
        c.tape.stop()
        return _weighted(c, block, cut, probs, discard=False)[:1]

    if not c.recomputes("moe_act") or c.inside:
        (out,) = run()
        return with_second_bias(c, path, grouped(c, path, out, rows.local_experts), probs, rows.local_experts)
    (out,), drop_after = discarded_region(c, run)
    out = drop_after(grouped(c, path, out, rows.local_experts))
    return with_second_bias(c, path, out, probs, rows.local_experts)


def _unfused_second(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """Activation and second GEMM; under recompute `moe_act` the activation runs without a graph and is made again."""
    path = "mlp.experts.linear_fc2"
    if not c.recomputes("moe_act") or c.inside:
        return grouped(c, path, _unfused(c, block, x, probs), rows.local_experts)
    (out,), drop_after = discarded_region(c, lambda: (_unfused(c, block, x, probs),))
    return drop_after(grouped(c, path, out, rows.local_experts))


def _fuses_experts(c: Context, block: Moe) -> bool:
    """Whether activation and probabilities are one kernel: SwiGLU, and relu^2 where it is asked for."""
    relu = dict(c.run.options).get("use_fused_weighted_squared_relu", "true") == "true"
    return c.fuses_activation if block.gated else relu and not block.gelu


def _unfused(c: Context, block: Moe, x: Tensor, probs: Tensor) -> Tensor:
    """The activation, then times the probabilities (`experts.py`, bias_act_func): keeps what both read.

    No kernel fuses GELU with probabilities. Experts one after the other (SequentialMLP) keep the same in parts.
    """
    name = "experts.activation"
    inner = swiglu(c, x, name) if block.gated else act(c, x, name, gated=False)
    rows, columns, wide = *inner.shape, "fp32" if "fp32" in (inner.dtype, probs.dtype) else inner.dtype
    probs_dtype = probs.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        each = c.new(rows, columns, "grad_experts_probs_each", wide)
        grad = c.new(rows, columns, "grad_experts_weighted", wide)
        c.elementwise(grad, 6)
        if wide != c.dtype:
            grad = c.new(rows, columns, "grad_experts_activation")
        grad_probs = c.new(rows, 1, "grad_experts_probs", probs_dtype)
        del each
        return [grad, grad_probs]

    out = c.new(rows, columns, "experts.weighted", wide)
    c.elementwise(out, 3)
    if wide != c.dtype:
        out = c.new(rows, columns, "experts.weighted")
        c.elementwise(out, 3)
    c.node(out, (inner, probs), (inner, probs), back)
    return out


def _weighted(c: Context, block: Moe, x: Tensor, probs: Tensor, *, discard: bool,
              kernels: bool = True) -> tuple[Tensor, Discarded | None]:
    """Fused weighted relu^2 or SwiGLU: keeps its input and the fp32 probabilities; without `kernels`: GEMMs do it."""
    rows, wide, dtype = *x.shape, probs.dtype
    narrow = wide // (2 if block.gated else 1)
    holder: list[Discarded] = []

    def again() -> list[Tensor]:
        made = c.new(rows, narrow, "experts.activation", category="recompute")
        c.elementwise(made, 3 if block.gated else 2)
        return [made]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(rows, wide, "grad_experts_activation")
        grad_probs = c.new(rows, 1, "grad_experts_probs", dtype)
        if kernels:
            c.elementwise(grad, 3)
        for discarded in holder:
            discarded.made.clear()
        return [grad, grad_probs]

    out = c.new(rows, narrow, "experts.activation")
    if kernels:
        c.elementwise(out, 3 if block.gated else 2)
    c.node(out, (x, probs), (x, probs), back)
    if discard:
        holder.append(Discarded(c, out, again))
    return out, holder[0] if holder else None
