"""The all-gather dispatcher: every rank of ep x etp gets all tokens of them, and picks those of its experts.

megatron-core 0.16.1 `transformer/moe/token_dispatcher.py` (MoEAllGatherTokenDispatcher), `moe_utils.py` (permute and
unpermute without fusion). Tokens are gathered into the global "mpu" buffer, which is one of all layers
(`simcore/memory/workspace.py`).
"""

from __future__ import annotations

from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.host_operators import UNFUSED_PERMUTE, UNFUSED_UNPERMUTE
from simcore.recording.tape import Tape, Tensor

__all__ = ["gather_tokens", "reduce_tokens"]

_HELD = "dispatcher"


def gather_tokens(c: Context, rows: int, local_experts: int, x: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens [`rows`, hidden] in the order of this rank's experts, their probabilities [`rows`, 1]).

    All tokens of the ep x etp group are gathered, those of this rank's experts are copied. `x`: this rank's tokens;
    `probs`: [tokens, all experts].
    """
    ranks = c.run.ep * c.run.etp
    whole = x.shape[0] * ranks
    c.held["local_map"] = c.new(whole, local_experts, "dispatcher.local_map", "uint8", _HELD)
    weights = _picked(c, _local_probs(c, probs, local_experts), rows)
    return _permuted(c, x, rows), weights


def _local_probs(c: Context, probs: Tensor, local_experts: int) -> Tensor:
    """Gathered, cut to the experts of this rank."""
    tokens, experts, dtype = *probs.shape, probs.dtype
    ranks = c.run.ep * c.run.etp

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        wide = c.new(tokens * ranks, experts, "grad_gathered_probs", dtype)
        grad = c.new(tokens, experts, "grad_probs", dtype) if ranks > 1 else wide
        _over_ranks(c, "reduce_scatter", wide)
        return [grad]

    gathered = c.new(tokens * ranks, experts, "gathered_probs", dtype) if ranks > 1 else probs
    _over_ranks(c, "all_gather", gathered)
    out = c.new(tokens * ranks, local_experts, "dispatcher.local_probs", dtype)
    c.node(out, (probs,), (), back)
    return out


def _picked(c: Context, probs: Tensor, rows: int) -> Tensor:
    """`probs.T.contiguous().masked_select(map.T.contiguous())`: keeps both transposed copies."""
    tokens, experts, dtype = *probs.shape, probs.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        return [c.new(tokens, experts, "grad_local_probs", dtype)]

    turned = c.new(experts, tokens, "local_probs_turned", dtype)
    mask = c.new(experts, tokens, "local_map_turned", "uint8")
    out = c.new(rows, 1, "permuted_probs", dtype, _HELD)
    c.elementwise(turned, 4)
    c.node(out, (probs,), (turned, mask), back)
    c.held["local_probs"] = out.detach()
    return out


def _permuted(c: Context, x: Tensor, rows: int) -> Tensor:
    """`index_select`: keeps the places, which the dispatcher holds too for the way back."""
    tokens, h = x.shape
    ranks = c.run.ep * c.run.etp

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        wide = c.new(tokens * ranks, h, "grad_gathered")
        c.permutation(c.size * h * (rows + tokens * ranks), UNFUSED_PERMUTE.backward)
        grad = c.new(tokens, h, "grad_dispatched") if ranks > 1 else wide
        _over_ranks(c, "reduce_scatter", wide)
        return [grad]

    places = c.new(rows, 1, "dispatcher.places", "int64", _HELD)
    if ranks > 1:
        c.tape.collective("all_gather", c.expert_axis, x.nbytes * ranks, c.dtype)
    out = c.new(rows, h, "permuted")
    if not c.fuses_permutation:
        c.tape.stop()
    c.permutation(c.size * h * (rows + tokens * ranks), UNFUSED_PERMUTE.forward)
    c.node(out, (x,), (places,), back)
    c.held["places"] = places
    return out


def reduce_tokens(c: Context, x: Tensor) -> Tensor:
    """Sum of the experts' outputs `x` [rows, hidden] for each token of this rank: [local tokens, hidden].

    Rows are added into a zeroed tensor of the group's tokens, which is reduce-scattered; the row numbers are saved.
    `scatter_add_` saves no more; `index_add_`, which deterministic algorithms take, saves the rows too (torch 2.13
    `tools/autograd/derivatives.yaml`).
    """
    rows, h = x.shape
    ranks = c.run.ep * c.run.etp
    whole = c.local * ranks

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        wide = c.new(whole, h, "grad_combined_all") if ranks > 1 else grads[0]
        assert wide is not None
        _over_ranks(c, "all_gather", wide)
        grad = c.new(rows, h, "grad_unpermute")
        c.permutation(c.size * h * (rows + whole), UNFUSED_UNPERMUTE.backward)
        return [grad]

    full = c.new(whole, h, "unpermuted")
    c.permutation(c.size * h * (rows + whole), UNFUSED_UNPERMUTE.forward)
    out = full
    if ranks > 1:
        out = c.new(c.local, h, "combined")
        _over_ranks(c, "reduce_scatter", full)
    del full
    c.node(out, (x,), (c.held["places"], x) if c.is_deterministic else (c.held["places"],), back)
    return out


def _over_ranks(c: Context, collective: str, tensor: Tensor) -> None:
    if c.run.ep * c.run.etp > 1:
        c.send(collective, c.expert_axis, tensor)
