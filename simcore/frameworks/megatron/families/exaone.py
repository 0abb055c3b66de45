"""EXAONE 4 and K-EXAONE in Megatron-Bridge: what it builds of them, and since when.

Megatron-Bridge 067f987d `models/exaone/`. EXAONE 4's own layers have norms behind attention and MLP, norms of heads by
their configuration, which core 0.16.1 makes from a layer's specification alone (transformer/attention.py:1280), and
core's own attention.
"""

from __future__ import annotations

from collections.abc import Mapping

from simcore.models.blocks import Attention
from simcore.placement.job import Draft, Job

__all__ = ["accumulates_in_product", "check_exaone", "has_core_attention"]


def has_core_attention(job: Job, options: Mapping[str, object]) -> bool:
    """True if attention is core's own `DotProductAttention`, whose scores are tensors.

    It is where no layer is TransformerEngine's, and in EXAONE 4's layers (`exaone4/exaone4_provider.py`:79), which no
    attention_backend changes. `options`: those that the scenario sets, by name.
    """
    return options.get("transformer_impl") == "local" or job.graph.architecture.family == "exaone4"


def accumulates_in_product(job: Draft, options: Mapping[str, object]) -> bool:
    """True if weight gradients are added to main gradients inside the product's kernel: K-EXAONE's default is not."""
    if job.graph.architecture.family != "exaone_moe":
        return options.get("gradient_accumulation_fusion") is not False
    return job.flag(options, "gradient_accumulation_fusion", "Bridge 067f987d models/exaone/exaone_moe/"
                    "exaone_moe_provider.py:237", default=False)


def check_exaone(job: Job, *, chunks: int) -> None:
    """Raises IllegalLayout for what Bridge does not do with EXAONE.

    Releases before it was there; windows of EXAONE 4, which Bridge leaves out; virtual stages of K-EXAONE, whose
    specification of layers takes what it is given by any name, so that Bridge gives it no virtual stage. `chunks`: of
    the model that a rank has.
    """
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
    if family == "exaone_moe" and chunks > 1:
        raise job.illegal("training.pipeline.virtual_stages", "vp_stage must be provided if virtual pipeline model "
                          "parallel size is set", "Bridge 067f987d models/gpt_provider.py, provide: a specification "
                          "that does not name vp_stage (exaone_moe_provider.py:148) gets none; Megatron-LM d98e8a64 "
                          "core/transformer/transformer_layer.py:125")
