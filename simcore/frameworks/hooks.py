"""How buffers flow around the layers: gathered for use (`unshard`, `queued`), or resident (`resident`, `reduced`)."""

from __future__ import annotations

from simcore.frameworks.bytes_at_rest import exact_at_rest, mean_at_rest, padding_bytes
from simcore.frameworks.ddp.hooks import DdpHooks
from simcore.frameworks.deepspeed.zero3_hooks import Zero3Hooks
from simcore.frameworks.deepspeed.zero12_hooks import Zero12Hooks
from simcore.frameworks.fsdp1.hooks import Fsdp1Hooks
from simcore.frameworks.fsdp2.hooks import Fsdp2Hooks
from simcore.frameworks.megatron.hooks import MegatronHooks
from simcore.frameworks.megatron_fsdp.hooks import MegatronFsdpHooks
from simcore.placement.ddp_words import DdpSpec
from simcore.placement.framework import Framework, Fsdp2Spec, MegatronFsdpSpec
from simcore.placement.fsdp1_words import Fsdp1Spec
from simcore.placement.zero_words import ZeroSpec
from simcore.program.hooks import HooksFactory

__all__ = ["exact_at_rest", "hooks_of", "mean_at_rest", "padding_bytes"]


def hooks_of(framework: Framework) -> HooksFactory:
    """The flow that a framework's table asks for."""
    if isinstance(framework.flow, Fsdp2Spec):
        return Fsdp2Hooks
    if isinstance(framework.flow, DdpSpec):
        return DdpHooks
    if isinstance(framework.flow, Fsdp1Spec):
        return Fsdp1Hooks
    if isinstance(framework.flow, ZeroSpec):
        return Zero12Hooks if framework.flow.stage < 3 else Zero3Hooks
    return MegatronFsdpHooks if isinstance(framework.flow, MegatronFsdpSpec) else MegatronHooks
