"""Numbers of rows in a MoE layer: sent, received, computed by the experts of this rank.

`LayerWorkload.rows_per_token` counts the rows that this rank receives in its all-to-all for each token that it sends:
under sequence parallelism every tp rank sends its own part of the sequence. Expert tensor parallelism then gathers the
rows of its etp ranks, so the experts see etp times as many.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.models.blocks import Moe
from simcore.operators.megatron.ops.context import Context

__all__ = ["HELD", "Rows", "rows_of"]

HELD = "dispatcher"


@dataclass(frozen=True, slots=True)
class Rows:
    """Numbers of rows (tokens or their copies) of one microbatch in one MoE layer on one rank.

    `tokens`: in the residual stream; `sent`, `received`: in the all-to-all; `computed`: by this rank's experts, all
    together; `local_experts`: number of these experts. `room`: rows of buffers whose size does not depend on routing,
    0 where it does.
    """

    tokens: int
    sent: int
    received: int
    computed: int
    local_experts: int
    room: int = 0

    @property
    def held(self) -> int:
        """Number of rows of the experts' tensors: those that are computed, or as many as there is room for."""
        return self.room or self.computed


def rows_of(c: Context, block: Moe) -> Rows:
    """Numbers of rows of the MoE `block` on this rank, for one microbatch.

    The workload says which share the rank gets: an even one, or the busiest rank's. With
    moe_router_padding_for_quantization more tokens are chosen, until the rows for each expert are whole multiples:
    those of each sender (`token_dispatcher.py:617`), under flex those that it receives (`:1291`).
    """
    received = c.local * c.run.rows_per_token >> 16
    sent = c.local * (c.run.sent_per_token or block.top_k << 16) >> 16
    here, computed = block.num_experts // c.run.ep, received * c.run.etp
    if c.pads_routing:
        if c.options.dispatcher == "flex" and c.run.ep > 1:
            return Rows(c.local, sent, received, c.padded_rows(computed, here), here)
        sent = c.padded_rows(sent, block.num_experts)
        received = c.padded_rows(received, here * c.run.ep)
        computed = received * c.run.etp
    return Rows(c.local, sent, received, computed, here)
