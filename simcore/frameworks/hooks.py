"""How buffers flow around the layers: gathered for use (`unshard`, `queued`), or resident (`resident`, `reduced`)."""

from __future__ import annotations

from simcore.frameworks.bytes_at_rest import exact_at_rest, mean_at_rest, padding_bytes
from simcore.frameworks.ddp.hooks import ReducedFlow
from simcore.frameworks.deepspeed.zero3_hooks import FetchedFlow
from simcore.frameworks.deepspeed.zero12_hooks import PartitionFlow
from simcore.frameworks.fsdp1.hooks import WrappedFlow
from simcore.frameworks.fsdp2.hooks import GatheredFlow
from simcore.frameworks.megatron.hooks import ResidentFlow
from simcore.frameworks.megatron_fsdp.hooks import QueuedFlow
from simcore.placement.ddp_words import Reducer
from simcore.placement.framework import Framework, Queues, UnshardFlow
from simcore.placement.fsdp1_words import Wrapped
from simcore.placement.zero_words import Zero
from simcore.program.hooks import FlowMaker

__all__ = ["exact_at_rest", "flow_of", "mean_at_rest", "padding_bytes"]


def flow_of(framework: Framework) -> FlowMaker:
    """The flow that a framework's table asks for."""
    if isinstance(framework.flow, UnshardFlow):
        return GatheredFlow
    if isinstance(framework.flow, Reducer):
        return ReducedFlow
    if isinstance(framework.flow, Wrapped):
        return WrappedFlow
    if isinstance(framework.flow, Zero):
        return PartitionFlow if framework.flow.stage < 3 else FetchedFlow
    return QueuedFlow if isinstance(framework.flow, Queues) else ResidentFlow
