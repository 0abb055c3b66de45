"""`MoEAlltoAllTokenDispatcher`: rows permuted by expert, sent over ep, gathered over etp, and the way back.

megatron-core 0.16.1 `transformer/moe/token_dispatcher.py`, `moe_utils.py` (permute fusion on); TransformerEngine 2.18
`pytorch/permutation.py`.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.megatron.grouped_mlp import grouped_mlp
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.rows import HELD, Rows
from simcore.recording.host_operators import UNFUSED_PERMUTE, UNFUSED_UNPERMUTE
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["all_to_all", "gather_counts", "permute", "routed_experts", "unpermute"]


def gather_counts(c: Context, block: Moe) -> None:
    """Records the all-gather of each rank's int64 token count for each expert; nothing for a single rank.

    `token_dispatcher.py:538`, preprocess.
    """
    ranks = c.run.ep * c.run.etp
    if ranks > 1:
        c.tape.collective("all_gather", c.expert_axis, 8 * block.num_experts * ranks, "int64")


def permute(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """(copies of tokens in expert order [sent rows, hidden], their probabilities [sent rows, 1]).

    `x`: this rank's tokens; `probs`: [tokens, all experts]; `rows`: numbers of rows on this rank. For backward it saves
    only the map from tokens to rows, which the dispatcher module holds.
    """
    h, t, e, dtype = block.expert_hidden, rows.tokens, block.num_experts, probs.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(t, h, "grad_permute")
        grad_probs = c.new(t, e, "grad_probs", dtype)
        c.permutation(c.size * h * (rows.sent + t), UNFUSED_PERMUTE.backward)
        return [grad, grad_probs]

    row_map = c.new(t, 2 * e + 1, "row_id_map", "int32", HELD) if c.fuses_permutation else \
        c.new(rows.sent, 1, "row_places", "int64", HELD)
    out = c.new(rows.sent, h, "permuted")
    out_probs = c.new(rows.sent, 1, "permuted_probs", dtype)
    if not c.fuses_permutation:
        c.tape.stop()
    c.permutation(c.size * h * (rows.sent + t), UNFUSED_PERMUTE.forward)
    c.node(out, (x, probs), (row_map,), back)
    out_probs.node, out_probs.output = out.node, 1
    c.held["row_map"] = row_map
    return out, out_probs


def all_to_all(c: Context, x: Tensor, rows: int, name: str) -> Tensor:
    """Exchange of rows over expert parallelism: returns [`rows`, columns of `x`]; `x` itself if ep is 1.

    `name`: name of the output's storage.
    """
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


def unpermute(c: Context, rows: Rows, x: Tensor) -> Tensor:
    """Sum of the rows of each token: `x` [sent rows, hidden] becomes [local tokens, hidden].

    Probabilities are in the rows already; only the map from tokens to rows is saved. Without permutation fusion and
    with deterministic algorithms `index_add_` saves the rows (`moe_utils.py`).
    """
    n, h = x.shape

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(n, h, "grad_unpermute")
        c.permutation(c.size * h * (n + rows.tokens), UNFUSED_UNPERMUTE.backward)
        return [grad]

    out = c.new(rows.tokens, h, "unpermuted")
    c.permutation(c.size * h * (n + rows.tokens), UNFUSED_UNPERMUTE.forward)
    apart = c.is_deterministic and not c.fuses_permutation
    c.node(out, (x,), (c.held["row_map"], x) if apart else (c.held["row_map"],), back)
    return out


# ---- experts ---------------------------------------------------------------------------------------------------------
def routed_experts(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """Outputs of this rank's experts for its received rows, in the same order.

    `routed_experts_compute`: gather over etp, sort, two grouped GEMMs, sort back, scatter over etp. `x`: [received
    rows, hidden]; `probs`: [received rows, 1].
    """
    if c.run.etp > 1:
        x, probs = _etp_gather(c, x, "gathered"), _etp_gather(c, probs, "gathered_probs")
    ordered, weights = _sorted(c, rows, x, probs, "sorted")
    assert weights is not None
    del x, probs
    out = grouped_mlp(c, block, rows, ordered, weights)
    back, _ = _sorted(c, rows, out, None, "unsorted")
    return _etp_scatter(c, back, weights.dtype) if c.run.etp > 1 else back
