"""Tokens on their way to experts: rows that a rank sends and receives, and how many copies of a token that takes.

[Note: rows of the busiest rank]
`training.routing` says how tokens choose experts. A token is sent to `top_k` of them. The mean over ranks of the rows
that a rank receives per token it sends is `top_k`; the answer is for the busiest rank, because it decides whether a job
fits. Rows are in units of 2**-16.

[Note: what a dispatch sends]
DeepEP sends one copy a rank, not one a choice: a token goes once to every node that has one of its experts, to the rank
that stands where its own does, and from there over NVLink to the ranks that want it (DeepEP dd758ca
`csrc/kernels/legacy/layout.cu`, get_dispatch_layout: is_token_in_rank, num_tokens_per_rdma_rank; `internode.cu`:
kRDMAAndNVLForwarder). Coming back, rows are summed where they were forwarded, so as many bytes go the other way.
HybridEP is taken to be equal. Choices are uniform.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from simcore.inputs.training import Capacity, Imbalance, Routing
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph
from simcore.placement.libraries import KernelLibraries

__all__ = ["Dispatch", "dispatch_of", "expert_hidden", "received_per_token", "sent_per_token", "top_k_of"]

_ONE = 1 << 16


def top_k_of(graph: ModelGraph) -> int:
    """Number of experts to which a token is sent; 0 in a model without experts."""
    block = _moe_block(graph)
    return block.top_k if block else 0


def expert_hidden(graph: ModelGraph) -> int:
    """Values of one token as it is sent to experts (often the hidden size); 0 in a model without experts."""
    block = _moe_block(graph)
    return block.expert_hidden if block else 0


@lru_cache(maxsize=64)
def _moe_block(graph: ModelGraph) -> Moe | None:
    """First block of experts; None in a model without experts."""
    blocks = (branch.block for kind in graph.kinds for branch in kind.branches)
    return next((block for block in blocks if isinstance(block, Moe)), None)


def sent_per_token(routing: Routing, top_k: int) -> int:
    """Returns how many copies a rank sends to experts for each of its tokens, in units of 2**-16.

    It is `top_k`, times the capacity factor if `routing` is a capacity: every expert's share is then cut, or filled up,
    to it. Without padding it is only cut, so that a capacity above the mean load changes nothing while experts are
    loaded alike. Core 0.16.1 `moe/moe_utils.py`, apply_router_token_dropping, with and without
    `moe_pad_expert_input_to_capacity`.
    """
    if not isinstance(routing, Capacity):
        return top_k * _ONE
    factor = routing.capacity_factor if routing.pad else min(routing.capacity_factor, 1.0)
    return int(top_k * factor * _ONE)


def received_per_token(routing: Routing, top_k: int, ep: int) -> int:
    """Returns how many copies of tokens the busiest rank's experts receive, in units of 2**-16.

    For each token that a rank has. It is what a rank sends, times the scenario's imbalance if `routing` states one, at
    most times `ep`: all that the `ep` ranks of an expert group send. Random loads (`Draws`) count as balanced.
    """
    busiest = min(routing.imbalance, ep) if isinstance(routing, Imbalance) else 1
    return int(sent_per_token(routing, top_k) * busiest)


class Dispatch(NamedTuple):
    """The choice of experts for a token: `top_k` of `num_experts`, uniformly.

    The payload of a dispatch, in the methods of this class, counts one copy of a token for every rank with one of its
    experts, the sender included.
    """

    num_experts: int
    top_k: int

    def places(self, number: int) -> float:
        """Returns the mean number of parts with an expert of a token, of `number` equal parts of the experts."""
        others = self.num_experts - self.num_experts // number
        missed = math.prod((others - i) / (self.num_experts - i) for i in range(self.top_k))
        return number * (1 - missed)

    def crossing(self, group_size: int, num_nodes: int) -> tuple[float, float]:
        """Returns the fractions of the payload that leave a rank, as (over NVLink, over the network).

        Means over the `group_size` ranks of the group, which is on `num_nodes` nodes. NVLink carries copies to ranks of
        the same node, and copies that came over the network and are forwarded.
        """
        in_node = group_size / num_nodes
        copies = self.places(num_nodes) / self.places(group_size)
        handed_on = (group_size - in_node) / group_size * (in_node - 1) / in_node
        return (in_node - 1) / group_size + handed_on, copies * (num_nodes - 1) / num_nodes


def dispatch_of(graph: ModelGraph, libraries: KernelLibraries) -> Dispatch | None:
    """Returns how a token chooses experts in the model's mixture of experts, if it is sent once to a rank.

    So do DeepEP and HybridEP. None without experts, or if each choice is sent as a separate copy (NCCL's all-to-all).
    """
    if libraries.dispatcher == "nccl":
        return None
    block = _moe_block(graph)
    return Dispatch(block.num_experts, block.top_k) if block else None
