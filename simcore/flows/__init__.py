"""How buffers flow around the layers: gathered for use (`unshard`), or resident with buckets (`resident`)."""

from __future__ import annotations

from simcore.flows.resident import ResidentFlow
from simcore.flows.unshard import GatheredFlow
from simcore.framework import Framework, Moment
from simcore.lower import FlowMaker

__all__ = ["flow_of"]


def flow_of(framework: Framework) -> FlowMaker:
    """The flow that a framework's table asks for: are parameters brought for each unit, or always there?"""
    brought = {rule.life.brought for rule in framework.rules}
    return GatheredFlow if Moment.UNIT_FORWARD_BEGIN in brought else ResidentFlow
