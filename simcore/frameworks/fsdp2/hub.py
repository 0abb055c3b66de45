"""The trainer of layers from a model's own repository, which transformers 4 loads and runs, under plain FSDP2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.torch import check_optimizer_in_backward
from simcore.inputs.training import Draws
from simcore.operators.hf.options import HfOptions
from simcore.placement.job import Draft, Job

__all__ = ["TRAINER"]

_FILE: Final = "the model's modeling_nemotron_h.py"
OPTIONS: dict[str, tuple[Any, ...]] = {
    **{name: _transformers.OPTIONS[name] for name in (
        "wrap", "reshard_after_forward", "set_last_reshard", "sync_gradients", "prefetch", "optimizer_in_bwd")},
    "attn_implementation": (None, "eager", "sdpa", "flash_attention_2"),
}
DEFAULTS = replace(_transformers.DEFAULTS, loss=("hf", f"{_FILE}: CrossEntropyLoss of fp32 logits"))


def check(job: Job, options: dict[str, Any]) -> None:
    """Raises NotYet unless the job has only data parallelism, no packs, no random routing, a known loss.

    IllegalLayout for a capacity of experts, and for an optimizer inside backward with several microbatches.
    """
    training = job.scenario.training
    if job.mesh.tp > 1 or job.mesh.ep > 1:
        raise job.not_yet("mesh", f"tensor and expert parallelism of {_FILE}")
    if training.lengths == "packed":
        raise job.not_yet("training.lengths", f"packed sequences in {_FILE}, which is not told where one begins")
    if isinstance(training.routing, Draws):
        raise job.not_yet("training.routing", f"routing drawn at random in the loop over experts of {_FILE}")
    job.refuse_capacity(f"{_FILE}: tokens are never dropped")
    job.one_of("training.loss", training.loss, ("auto", "hf", "hf_keep_logits"))
    if options.get("optimizer_in_bwd"):
        check_optimizer_in_backward(job)


def options_of(job: Draft, options: dict[str, Any]) -> HfOptions:
    """Returns the settings of the layers (`HfOptions`): the attention kernel, all else by default.

    `options`: the framework options that the scenario sets, by name. A causal mask is made unless the kernel is
    flash-attn's.
    """
    given = options.get("attn_implementation")
    if given != "flash_attention_2":
        job.auto("framework_options.attn_implementation", "auto", "SDPA over repeated keys and values",
                 f"{_FILE}, NemotronHAttention and NemotronHSdpaAttention: both call it, eager too")
    return HfOptions(attn_implementation="flash_attention_2" if given == "flash_attention_2" else "eager")


TRAINER: Final = replace(_transformers.TRAINER, options=OPTIONS, defaults=DEFAULTS, check=check,
                         layer_options=options_of, serves_muon=False)
