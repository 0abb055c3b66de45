"""Liger's kernels in transformers' layers (`use_liger_kernel`), and the loss that comes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.placement.job import Job

__all__ = ["LIGER_FAMILIES", "LIGER_OPTION", "has_liger", "loss_with"]

LIGER_OPTION: Final = "use_liger_kernel"
LIGER_FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
_RULE: Final = "Liger-Kernel 0.7.0 transformers/monkey_patch.py"


def has_liger(job: Job, options: Mapping[str, Any]) -> bool:
    """True if `options` (those that the scenario sets, by name) ask for Liger's kernels.

    NotYet for model families and settings with which they are not modelled.
    """
    if not options.get(LIGER_OPTION):
        return False
    at, family = f"framework_options.{LIGER_OPTION}", job.graph.architecture.family
    if family not in LIGER_FAMILIES:
        raise job.not_yet(at, f"Liger's kernels in {family} (served: {', '.join(LIGER_FAMILIES)})")
    if options.get("autocast") or options.get("prepare_model_for_kbit_training"):
        raise job.not_yet(at, "Liger's kernels under autocast (parameters or adapters in fp32)")
    if options.get("FastLanguageModel"):
        raise job.not_yet(at, "Liger's kernels in Unsloth's layers")
    return True


def loss_with(options: Mapping[str, Any], default: tuple[str, str]) -> tuple[str, str]:
    """Returns the loss that runs where the scenario leaves it open, as (loss, source).

    If `options` ask for Liger's kernels it is their fused_linear_cross_entropy ("liger"), otherwise `default`.
    """
    return ("liger", f"{_RULE}: fused_linear_cross_entropy=True") if options.get(LIGER_OPTION) else default
