"""How buffers flow around the layers: gathered for use (`unshard`, `queued`), or resident (`resident`, `reduced`)."""

from __future__ import annotations

from simcore.flow import FlowMaker
from simcore.flows.fetched import FetchedFlow
from simcore.flows.owned import exact_at_rest, mean_at_rest, padding_bytes
from simcore.flows.partition import PartitionFlow
from simcore.flows.queued import QueuedFlow
from simcore.flows.reduced import ReducedFlow
from simcore.flows.resident import ResidentFlow
from simcore.flows.unshard import GatheredFlow
from simcore.flows.wrapped import WrappedFlow
from simcore.placement.ddp_words import Reducer
from simcore.placement.framework import Framework, Queues, UnshardFlow
from simcore.placement.fsdp1_words import Wrapped
from simcore.placement.zero_words import Zero

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
