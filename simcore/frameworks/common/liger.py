"""Whether Liger's kernels stand in transformers' layers (`use_liger_kernel`), and the loss that comes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.placement.job import Job

__all__ = ["LIGER", "LIGER_FAMILIES", "LIGER_OPTION", "liger_kernels", "loss_with"]

LIGER_OPTION: Final = "use_liger_kernel"
LIGER_FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
LIGER: Final = (("kernels", "liger"),)
"""`LayerWorkload.options` of layers that have them."""
_RULE: Final = "Liger-Kernel 0.7.0 transformers/monkey_patch.py"


def liger_kernels(job: Job, options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """`LIGER` where they are asked for."""
    if not options.get(LIGER_OPTION):
        return ()
    at, family = f"framework_options.{LIGER_OPTION}", job.graph.architecture.family
    if family not in LIGER_FAMILIES:
        raise job.not_yet(at, f"Liger's kernels in {family} (served: {', '.join(LIGER_FAMILIES)})")
    if options.get("autocast") or options.get("prepare_model_for_kbit_training"):
        raise job.not_yet(at, "Liger's kernels under autocast over fp32 parameters")
    if options.get("FastLanguageModel"):
        raise job.not_yet(at, "Liger's kernels in Unsloth's layers")
    return LIGER


def loss_with(options: Mapping[str, Any], default: tuple[str, str]) -> tuple[str, str]:
    """The loss where nobody names one, and its source: fused_linear_cross_entropy comes with the kernels."""
    return ("liger", f"{_RULE}: fused_linear_cross_entropy=True") if options.get(LIGER_OPTION) else default
