"""How buffers flow around the layers: gathered for use (`unshard`), or resident with buckets (`resident`)."""

from __future__ import annotations

from simcore.flow import FlowMaker
from simcore.flows.resident import ResidentFlow
from simcore.flows.unshard import GatheredFlow
from simcore.framework import Framework, UnshardFlow

__all__ = ["flow_of"]


def flow_of(framework: Framework) -> FlowMaker:
    """The flow that a framework's table asks for."""
    return GatheredFlow if isinstance(framework.flow, UnshardFlow) else ResidentFlow
