"""Liger's kernels in transformers' layers (`use_liger_kernel`, or one by one), and the loss that comes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.models.blocks import Attention
from simcore.operators.hf.options import LigerKernels
from simcore.placement.job import Job

__all__ = ["LIGER_DEFAULTS", "LIGER_FAMILIES", "LIGER_OPTION", "LIGER_OPTIONS", "asks_for_liger", "every_kernel",
           "liger_kernels", "loss_with"]

LIGER_OPTION: Final = "use_liger_kernel"
_PARTS: Final = {"liger_rope": "rope", "liger_rms_norm": "rms_norm", "liger_glu_activation": "gated"}
_IN_CLASSES: Final = "liger_in_classes"
LIGER_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    LIGER_OPTION: (True, False), **dict.fromkeys(_PARTS, (None, True, False)), _IN_CLASSES: (True, False)}
"""Framework options: all kernels of transformers' Trainer, each by axolotl's name, and where they are put."""
LIGER_DEFAULTS: Final = ("llama", "mistral", "qwen2", "qwen3")
"""Families in which NeMo Automodel's own default is simulated."""
LIGER_FAMILIES: Final = (*LIGER_DEFAULTS, "gemma", "gemma2", "gemma3_text", "glm4", "granite", "olmo2", "phi3")
_RULE: Final = "Liger-Kernel 0.7.0 transformers/monkey_patch.py"


def asks_for_liger(options: Mapping[str, Any]) -> bool:
    """True if `options` (those that the scenario sets, by name) ask for any of Liger's kernels in layers."""
    return any(options.get(name) for name in (LIGER_OPTION, *_PARTS))


def every_kernel(*, asked: bool) -> LigerKernels:
    """Returns all kernels, put into an instance, or none."""
    return LigerKernels(rope=asked, rms_norm=asked, gated=asked)


def liger_kernels(job: Job, options: Mapping[str, Any]) -> LigerKernels:
    """Returns which of Liger's kernels replace those of the layers, by `options` that the scenario sets.

    NotYet for model families and settings with which they are not modelled, IllegalLayout for kernels that Liger
    refuses.
    """
    family, every = job.graph.architecture.family, bool(options.get(LIGER_OPTION))
    if not asks_for_liger(options):
        job.refuse_idle(options, _IN_CLASSES, "without Liger's kernels")
        return LigerKernels()
    first = next(name for name in (LIGER_OPTION, *_PARTS) if options.get(name))
    at = f"framework_options.{first}"
    if family not in LIGER_FAMILIES:
        raise job.not_yet(at, f"Liger's kernels in {family} (served: {', '.join(LIGER_FAMILIES)})")
    if options.get("FastLanguageModel"):
        raise job.not_yet(at, "Liger's kernels in Unsloth's layers")
    if not every and (job.mesh.tp > 1 or job.mesh.cp > 1):
        raise job.not_yet(at, "some of Liger's kernels in layers that ranks split")
    given = {part: every if options.get(name) is None else bool(options[name]) for name, part in _PARTS.items()}
    if family == "glm4":
        if options.get("liger_rope"):
            raise job.illegal("framework_options.liger_rope", "liger_rotary_pos_emb is not available for Glm4 models",
                              _RULE)
        given["rope"] = False
    made = LigerKernels(**given, in_classes=bool(options.get(_IN_CLASSES)))
    _check(job, at, made, every=every)
    return made


def _check(job: Job, at: str, kernels: LigerKernels, *, every: bool) -> None:
    """Raises NotYet, or IllegalLayout, for kernels that a family's layers or its head do not go with."""
    family, loss = job.graph.architecture.family, job.scenario.training.loss
    attentions = [branch.block for kind in job.graph.kinds for branch in kind.branches
                  if isinstance(branch.block, Attention)]
    if family == "gemma3_text" and kernels.rms_norm and not kernels.rope:
        raise job.not_yet(at, "Liger's norms of query and key, whose heads come first, before a rotation that is not "
                          "Liger's")
    if kernels.rope and any(0 < block.rotated < block.head_dim for block in attentions):
        raise job.not_yet(at, f"Liger's rotation of a part of each head of {family}: it turns all of a head")
    if family == "granite" and loss == "liger":
        raise job.illegal("training.loss", "LigerFusedLinearCrossEntropy is not available for Granite models", _RULE)
    if family == "granite" and every and loss in ("auto", "liger"):
        raise job.not_yet(at, "Liger's loss over whole logits, which comes with all of its kernels in Granite (served: "
                          "with training.loss: hf)")


def loss_with(options: Mapping[str, Any], default: tuple[str, str]) -> tuple[str, str]:
    """Returns the loss that runs where the scenario leaves it open, as (loss, source).

    If `options` ask for Liger's kernels it is their fused_linear_cross_entropy ("liger"), otherwise `default`.
    """
    return ("liger", f"{_RULE}: fused_linear_cross_entropy=True") if options.get(LIGER_OPTION) else default
