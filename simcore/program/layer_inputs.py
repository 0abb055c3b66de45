"""Inputs of layers, with their gradients, that outlast a microbatch because the layer itself refers to its graph.

[Note: inputs behind a dispatcher]
Where Megatron-Core runs a layer as nodes with separate backward passes (`overlap_moe_expert_parallel_comm`), a node's
input is a leaf of its graph, and the leaf's `.grad` is what the node below gets (core 0.16.1
`pipeline_parallel/utils.py`, ScheduleNode). The all-to-all dispatcher keeps the router's probabilities as an attribute
(`moe/token_dispatcher.py`, dispatch_preprocess: `self.probs`); they refer to the graph of their node, hence to that
leaf. So the input of a layer with experts and its gradient stay until the layer routes the next microbatch; those of a
step's last microbatch stay into the next step. The flex dispatcher is given detached probabilities
(`models/gpt/fine_grained_callables.py`) and keeps nothing. With several stages nothing is counted: the one measured
run (Megatron-LM's golden values, `gpt3_mcore_te_tp2_pp2_ep4_etp1_selective_recompute_experimental`) has no room for it.
"""

from __future__ import annotations

from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.record_layers import keys_of
from simcore.program.stage_borders import Edges

__all__ = ["LayerInputs"]


class LayerInputs:
    """Tracker of inputs that layers of `Framework.kept_layer_inputs` keep, see [Note: inputs behind a dispatcher].

    Its methods append the allocations and frees to the program. An input without a gradient is no leaf of a graph.
    """

    def __init__(self, plan: Plan, builder: Builder, edges: Edges) -> None:
        self.out, self.edges, keys = builder, edges, keys_of(plan)
        self.layers = [layer for layer in plan.framework.kept_layer_inputs if keys[layer][2]]
        self.holds = False

    def hold(self) -> None:
        """Keeps inputs and gradients when a backward pass is over; also of the previous step, before this one."""
        self.holds = True
        for layer in self.layers:
            self.out.tile(self.edges.keep_hidden, layer - 1)
            self.out.tile(self.edges.keep_grad, layer)

    def drop(self) -> None:
        """Frees what layers keep, before a forward pass.

        Upstream each layer frees its own when it routes; the peak comes after the last of them.
        """
        for layer in self.layers if self.holds else ():
            self.out.tile(self.edges.drop_hidden, layer - 1)
            self.out.tile(self.edges.drop_grad, layer)
        self.holds = False
