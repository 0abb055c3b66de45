"""Refusals of losses of preferences under FSDP2, and the head that their trainer reads by itself.

[Note: a head read apart] TRL 1.16.0 `trainer/utils.py` add_fused_lm_head reads the head's weight and does not call its
module. Beside adapters accelerate 1.15.0 wraps the head alone ([Note: accelerate's tail]), whose hooks then never run:
each pass gathers the weight by itself, in the type in which it is stored (`full_tensor`), and the policy's stays until
the head's backward is over. Without adapters the head is in one unit with the last norm, which gathers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.frameworks.preference import check_preference
from simcore.placement.job import Draft, Job
from simcore.recording.layer import FUSED_PAIRS, PREFERENCE, REFERENCED

__all__ = ["REFERENCE_OPTION", "check_pairs", "reads_head_apart", "stored_reference"]

REFERENCE_OPTION: Final = "reference_dtype"
"""Type in which a reference model's parameters rest: accelerate upcasts the policy's, and nothing the reference's."""
_OLD: Final = "preference_whole"
_TAIL: Final = "embedding_tail"


def check_pairs(job: Draft, options: Mapping[str, Any]) -> None:
    """Raises NotYet, or what `check_preference` raises, for a loss of preferences that is not served under FSDP2."""
    training, mesh = job.scenario.training, job.mesh
    if training.loss not in PREFERENCE:
        job.refuse_idle(dict(options), REFERENCE_OPTION, "without a reference model")
        return
    if training.loss == _OLD and training.method == "full":
        raise job.illegal("training.loss", "a reference model under FSDP 2, which this release wraps by FSDP 1's: "
                          "'MixedPrecisionPolicy' object has no attribute '_module_classes_to_ignore' (served: "
                          "preference_fused)", "TRL 0.24.0 models/utils.py:394 prepare_fsdp")
    job.one_of("training.loss", training.loss, FUSED_PAIRS)
    check_preference(job, options, second=True)
    second = training.loss in REFERENCED and training.method == "full"
    if not second:
        job.refuse_idle(dict(options), REFERENCE_OPTION, "without a reference model of its own")
    for refused, key, what in (
            (mesh.ep > 1, "mesh.ep", "a loss of preferences beside expert parallelism"),
            (training.method == "qlora", "training.method", "a loss of preferences of packed weights under fsdp2"),
            (training.offload.part("params")[1] > 0, "training.offload", "a loss of preferences with parameters on the "
             "host under fsdp2"),
            (second and options.get("reshard_after_forward") not in (None, True),
             "framework_options.reshard_after_forward", "a reference model that stays whole, or with few ranks")):
        if refused:
            raise job.not_yet(key, what)


def reads_head_apart(job: Job, options: Mapping[str, Any]) -> bool:
    """True if the head's unit never runs, see [Note: a head read apart]."""
    training = job.scenario.training
    return (training.loss in FUSED_PAIRS and training.method != "full" and options.get("wrap") == _TAIL
            and not job.graph.has_tied_head)


def stored_reference(job: Job, stored: str) -> str:
    """Type in which a reference model rests beside a policy in the type `stored`, which is the default.

    TRL 1.16.0 `trainer/dpo_trainer.py` __init__ reads it in the type in which the policy was read; accelerate 1.15.0
    `utils/fsdp_utils.py` fsdp2_prepare_model upcasts what trains under mixed precision, and prepare_fsdp does not.
    """
    return str(job.scenario.framework_options.get(REFERENCE_OPTION) or stored)
