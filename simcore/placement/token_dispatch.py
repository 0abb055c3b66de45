"""Tokens on their way to experts: one copy a rank, not one a choice.

[Note: what a dispatch sends]
DeepEP sends a token once to every node that has one of its experts, to the rank that stands where its own does, and
from there over NVLink to the ranks that want it (DeepEP dd758ca `csrc/kernels/legacy/layout.cu`, get_dispatch_layout:
is_token_in_rank, num_tokens_per_rdma_rank; `internode.cu`: kRDMAAndNVLForwarder). Coming back, rows are summed where
they were forwarded, so as many bytes go the other way. HybridEP is taken to be equal. Choices are uniform.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph
from simcore.placement.libraries import KernelLibraries

__all__ = ["Dispatch", "dispatch_of"]


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
    blocks = (branch.block for kind in graph.kinds for branch in kind.branches)
    return next((Dispatch(block.num_experts, block.top_k) for block in blocks if isinstance(block, Moe)), None)
