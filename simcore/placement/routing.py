"""Number of rows that a rank's experts receive: the numbers behind `training.routing`.

A token is sent to `top_k` experts. The mean over ranks of the rows that a rank receives per token it sends is `top_k`;
the answer is for the busiest rank, because it decides whether a job fits. Rows are in units of 2**-16.
"""

from __future__ import annotations

from simcore.inputs.training import Capacity, Imbalance, Routing
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph

__all__ = ["expert_hidden", "received_per_token", "sent_per_token", "top_k_of"]

_ONE = 1 << 16


def top_k_of(graph: ModelGraph) -> int:
    """Number of experts to which a token is sent; 0 in a model without experts."""
    blocks = (branch.block for kind in graph.kinds for branch in kind.branches)
    return next((block.top_k for block in blocks if isinstance(block, Moe)), 0)


def expert_hidden(graph: ModelGraph) -> int:
    """Values of one token as it is sent to experts (often the hidden size); 0 in a model without experts."""
    blocks = (branch.block for kind in graph.kinds for branch in kind.branches)
    return next((block.expert_hidden for block in blocks if isinstance(block, Moe)), 0)


def sent_per_token(routing: Routing, top_k: int) -> int:
    """Returns how many copies a rank sends to experts for each of its tokens, in units of 2**-16.

    It is `top_k`, times the capacity factor if `routing` is a capacity: every expert's share is then cut, or filled up,
    to it. Core 0.16.1 `moe/moe_utils.py`, apply_router_token_dropping with `moe_pad_expert_input_to_capacity`.
    """
    return int(top_k * routing.capacity_factor * _ONE) if isinstance(routing, Capacity) else top_k * _ONE


def received_per_token(routing: Routing, top_k: int, ep: int) -> int:
    """Returns how many copies of tokens the busiest rank's experts receive, in units of 2**-16.

    For each token that a rank has. It is what a rank sends, times the scenario's imbalance if `routing` states one, at
    most times `ep`: all that the `ep` ranks of an expert group send. Random loads (`Draws`) count as balanced.
    """
    busiest = min(routing.imbalance, ep) if isinstance(routing, Imbalance) else 1
    return int(sent_per_token(routing, top_k) * busiest)
