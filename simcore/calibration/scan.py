"""Mamba-2's scan in plain PyTorch, which is timed if mamba_ssm's kernels are not installed.

[Note: chunked scan] State-space duality (Dao and Gu 2024, arXiv 2405.21060, section 6). The recurrence is
h_t = exp(dt_t a) h_(t-1) + dt_t B_t x_t, y_t = C_t h_t, one h for each head. In chunks of tokens: the contribution of
tokens to later ones of their chunk is a masked product, like attention; the result of a chunk is its state; states pass
from chunk to chunk; what they give to tokens is a product again. Decays are sums of dt a, kept as logarithms.
"""

from __future__ import annotations

from typing import Any

__all__ = ["chunked_scan"]


def chunked_scan(torch: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, *, chunk: int) -> Any:
    """Output y [batch, seq, heads, width] of x of that shape, dt [batch, seq, heads], a [heads] (negative).

    b, c: [batch, seq, groups, state]; heads of a group share them. `seq` is a multiple of `chunk`.
    See [Note: chunked scan].
    """
    batch, seq, heads, width = x.shape
    groups, state = b.shape[2:]
    cut, split = (batch, seq // chunk, chunk), (groups, heads // groups)
    b, c = (part.view(*cut, groups, state) for part in (b, c))
    decay = (dt * a).float().view(*cut, *split).cumsum(2)
    inputs = (x * dt[..., None]).view(*cut, *split, width)
    decay_to_end = (decay[:, :, -1:] - decay).exp().to(x.dtype)
    states = torch.einsum("znjgs,znjgrp->zngrps", b, inputs * decay_to_end[..., None])
    before = _passed(torch, states, decay[:, :, -1].exp().to(x.dtype))
    across = torch.einsum("znigs,zngrps->znigrp", c, before) * decay.exp().to(x.dtype)[..., None]
    return (_inside(torch, decay, inputs, b, c) + across).reshape(batch, seq, heads, width)


def _inside(torch: Any, decay: Any, given: Any, b: Any, c: Any) -> Any:
    """Contribution of tokens to later ones of their chunk, and to themselves."""
    later = torch.ones(decay.shape[2], decay.shape[2], dtype=torch.bool, device=decay.device).tril()
    between = decay[:, :, :, None] - decay[:, :, None]
    weights = between.masked_fill(~later[:, :, None, None], float("-inf")).exp().to(given.dtype)
    scores = torch.einsum("znigs,znjgs->znijg", c, b)[..., None] * weights
    return torch.einsum("znijgr,znjgrp->znigrp", scores, given)


def _passed(torch: Any, states: Any, left: Any) -> Any:
    """State at the begin of each chunk, from those after the previous ones; `left`: decay of a state over a chunk."""
    states_before, state = [], torch.zeros_like(states[:, 0])
    for i in range(states.shape[1]):
        states_before.append(state)
        state = state * left[:, i, ..., None, None] + states[:, i]
    return torch.stack(states_before, dim=1)
