"""EXAONE 4 and K-EXAONE in Megatron-Bridge: what it builds of them, and since when.

Megatron-Bridge 067f987d `models/exaone/`. EXAONE 4's own layers have norms behind attention and MLP, norms of heads by
their configuration, which core 0.16.1 makes from a layer's specification alone (transformer/attention.py:1280), and
core's own attention.
"""

from __future__ import annotations

from collections.abc import Mapping

from simcore.models.blocks import Attention
from simcore.placement.job import Job

__all__ = ["check_exaone", "has_core_attention"]


def has_core_attention(job: Job, options: Mapping[str, object]) -> bool:
    """True if attention is core's own `DotProductAttention`, whose scores are tensors.

    It is where no layer is TransformerEngine's, and in EXAONE 4's layers (`exaone4/exaone4_provider.py`:79), which no
    attention_backend changes. `options`: those that the scenario sets, by name.
    """
    return options.get("transformer_impl") == "local" or job.graph.architecture.family == "exaone4"


def check_exaone(job: Job) -> None:
    """Raises IllegalLayout for EXAONE before Bridge has it, and for windows of EXAONE 4, which Bridge leaves out."""
    family = job.graph.architecture.family
    if not family.startswith("exaone"):
        return
    if not job.scenario.framework_version.startswith("main"):
        raise job.illegal("framework_version", f"Bridge 0.3.1 has no bridge for {family}; use framework_version: main "
                          "2026-08-22", "Bridge 067f987d models/exaone/")
    if family == "exaone4" and any(isinstance(branch.block, Attention) and branch.block.window
                                   for kind in job.graph.kinds for branch in kind.branches):
        raise job.illegal("model", "32B model introduces hybrid attention (LLLG pattern), a future extension: Bridge "
                          "has no window in layers of EXAONE 4, and rotates in all",
                          "Bridge 067f987d models/exaone/exaone4/exaone4_bridge.py:77")
