"""Rows that ranks receive when loads of experts are drawn at random: `training.routing: {seed, draws, concentration}`.

[Note: how routing is drawn]
A draw is one step. For each layer it draws how popular the experts are: alike, or from a symmetric Dirichlet
distribution of the given concentration (1 is any popularity alike likely, large values come near balance). No expert
can be chosen by more than every token, so what lies above is shared out among the others. Then for each microbatch and
each expert group the tokens' choices fall on ranks by the popularity of their experts: one multinomial draw of all
rows. That is `top_k` choices with replacement; a real router chooses without, which scatters a little less. Popularity
is the router's, so all groups share it; their tokens are their own. Ranks of an expert-tensor group receive alike.
Assumed, all of it: no measured distribution of loads stands behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.placement.mesh import IntArray

__all__ = ["ExpertLoad", "Floats", "sample_received_rows"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """Parameters for drawing random routing: how many tokens the experts of each rank receive.

    `tokens`: of one microbatch, sent by each of the `ep * etp` ranks of an expert group. `num_groups` (expert groups),
    `num_microbatches`: for each of them rows are drawn independently. `concentration`: of the Dirichlet distribution of
    experts' popularity; None: all alike.
    """

    seed: int
    num_draws: int
    concentration: float | None
    num_experts: int
    top_k: int
    tokens: int
    ep: int
    etp: int
    num_groups: int
    num_microbatches: int

    @property
    def balanced(self) -> int:
        """Number of rows that a rank receives in a layer and microbatch when all experts get equally many.

        A row is a token for one of the experts that it chooses.
        """
        return self.tokens * self.top_k

    @property
    def most(self) -> int:
        """Largest number of rows (tokens, once per chosen expert) that a rank can receive in a layer and microbatch.

        Every token then chooses as many of the rank's experts as it can.
        """
        return self.tokens * self.ep * min(self.top_k, self.num_experts // self.ep)


def sample_received_rows(loads: ExpertLoad, layer: int) -> IntArray:
    """Drawn numbers of rows received in one layer, as [microbatch, draw, group, ep coordinate].

    A row is a token for one of the experts that it chooses. Each number is at least `top_k`, so that no rank has none.
    `layer`: number in the whole model, which seeds the draw together with `loads.seed`.
    """
    random = np.random.default_rng([loads.seed, layer])
    shares = _popularity(loads, random).reshape(loads.num_draws, loads.ep, -1).sum(axis=2)
    shares /= shares.sum(axis=1, keepdims=True)
    shape = (loads.num_microbatches, loads.num_groups, loads.num_draws)
    sent = np.full(shape, loads.balanced * loads.ep * loads.etp, dtype=np.int64)
    rows = np.swapaxes(random.multinomial(sent, shares), 1, 2) // loads.etp
    return np.clip(rows, loads.top_k, loads.most)


def _popularity(loads: ExpertLoad, random: np.random.Generator) -> Floats:
    """Shares of the experts, [draw, expert]; at most 1 / top_k each."""
    shape = loads.num_draws, loads.num_experts
    if loads.concentration is None:
        return np.full(shape, 1 / loads.num_experts)
    drawn = np.maximum(random.standard_gamma(loads.concentration, shape), np.finfo(np.float64).tiny)
    return _capped(drawn / drawn.sum(axis=1, keepdims=True), 1 / loads.top_k)


def _capped(shares: Floats, most: float) -> Floats:
    """Shares above `most` are cut to it, those below grow alike until the sum is 1 again."""
    full = np.zeros(shares.shape, dtype=bool)
    for _ in range(round(1 / most)):
        rest = np.where(full, 0, shares)
        left = 1 - most * full.sum(axis=1, keepdims=True)
        total = rest.sum(axis=1, keepdims=True)
        shares = np.where(full, most, rest * np.divide(left, total, out=np.zeros_like(left), where=total > 0))
        if not (shares > most).any():
            break
        full |= shares >= most
    return np.minimum(shares, most)
