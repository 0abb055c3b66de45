"""Megatron-Core's MoE layer: norm, shared expert, fp32 router, dispatcher, grouped experts.

megatron-core 0.16.1: `transformer/transformer_layer.py` (`_forward_mlp`), `transformer/moe/moe_layer.py`,
`shared_experts.py`. Its pieces are in `router`, `dispatch_alltoall`, `dispatch_allgather`, `dispatch_flex`,
`grouped_mlp`; numbers of rows, in `rows`.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.megatron.dispatch_allgather import gather_tokens, reduce_tokens
from simcore.operators.megatron.dispatch_alltoall import all_to_all, gather_counts, permute, routed_experts, unpermute
from simcore.operators.megatron.dispatch_flex import flex
from simcore.operators.megatron.grouped_mlp import grouped_mlp
from simcore.operators.megatron.ops.context import Context
from simcore.operators.megatron.ops.elementwise import act, add
from simcore.operators.megatron.ops.linear import column, row, whole
from simcore.operators.megatron.ops.norm import norm, norm_discarded
from simcore.operators.megatron.router import route, route_by_softmax
from simcore.operators.megatron.rows import Rows, rows_of
from simcore.operators.shared import aten
from simcore.recording.rows import Module
from simcore.recording.tape import Tensor

__all__ = ["moe"]


def moe(c: Context, block: Moe, x: Tensor) -> Tensor:
    """Output of the MoE block for the residual stream `x` [local tokens, hidden], in x's shape.

    The norm before it is included; the caller adds the residual. Local: after sequence parallelism.
    """
    rows = rows_of(c, block)
    discarded = None
    if c.recomputes("layernorm") and not c.inside:
        ln_out, discarded = norm_discarded(c, "pre_mlp_layernorm", x)
    else:
        ln_out = norm(c, "pre_mlp_layernorm", x)
    out = c.region(lambda: _layer(c, block, rows, ln_out)) if c.recomputes("moe") else _layer(c, block, rows, ln_out)
    return discarded.drop_after(out) if discarded else out


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
    probs = route(c, block, rows, x) if block.router == "sigmoid" else route_by_softmax(c, block, rows, x)
    c.tape.module = Module.MOE_PREPROCESS
    x = _projected(c, block, "fc1", x)
    if c.options.dispatcher == "flex" and c.run.ep > 1:
        if not c.options.moe_expert_rank_capacity_factor:
            c.tape.stop()  # DeepEP waits for what each rank sends
        c.tape.module = Module.MOE
        out = _projected(c, block, "fc2", flex(c, block, rows, x, probs))
        return _with_shared(c, out, shared) if shared else out
    if c.options.dispatcher == "allgather":
        c.tape.stop()  # rows of each expert go to the host
        c.tape.module = Module.MOE
        given, weights = gather_tokens(c, rows.computed, rows.local_experts, x, probs)
        out = _projected(c, block, "fc2", reduce_tokens(c, grouped_mlp(c, block, rows, given, weights)))
        return add(c, out, shared, "mlp.output") if shared else out
    gather_counts(c, block)
    c.tape.stop()  # rows of each expert: `_maybe_dtoh_and_synchronize`
    sent, sent_probs = permute(c, block, rows, x, probs)
    c.tape.module = Module.MOE
    del x
    received = all_to_all(c, sent, rows.received, "dispatched")
    received_probs = all_to_all(c, sent_probs, rows.received, "dispatched_probs")
    out = routed_experts(c, block, rows, received, received_probs)
    out = all_to_all(c, out, rows.sent, "combined")
    out = _projected(c, block, "fc2", unpermute(c, rows, out))
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
