"""Losses of preferences: pairs of sequences, or wanted and unwanted ones, against a reference that passes beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcore.errors import InputError, Problem
from simcore.models.blocks import Head
from simcore.models.saved import ORIGINAL
from simcore.operators.shared.features import features
from simcore.placement.job import Draft
from simcore.recording.layer import (
    FUSED_PAIRS,
    KEPT_REFERENCED,
    PREFERENCE,
    REFERENCED,
    REWARDS,
    UNPAIRED,
    WHOLE_PAIRS,
)

__all__ = ["check_preference"]

_AT = "training.loss"
_PAIR = 2
_RULE = "TRL 1.8.0 and 1.16.0 trainer/dpo_trainer.py"
_KTO = "trainer/kto_trainer.py"
_PACKED = ("preference_fp32", REWARDS)


def check_preference(job: Draft, options: Mapping[str, Any], *, second: bool) -> None:
    """Refuses what a loss of preferences cannot be, or is not modelled with; notes how its reference is counted.

    `options`: the framework options that the scenario sets; `second`: a reference model of its own is modelled. Raises
    InputError for half a pair, IllegalLayout for KTO of single sequences, NotYet for the rest.
    """
    training = job.scenario.training
    if training.loss not in PREFERENCE:
        return
    if training.loss != KEPT_REFERENCED:
        (_check_batch if training.loss in UNPAIRED else _check_pairs)(job)
    _check_fused(job)
    beside = training.loss in REFERENCED
    for refused, key, what in (
            (beside and training.method == "full" and not second, "training.method", "a loss of preferences in full, "
             f"beside a second model, under {job.scenario.framework} (served: ddp, zero0, zero1, zero2)"),
            (training.loss in ("kto_whole", "kto_rows") and training.method == "full", "training.method",
             f"{training.loss} in full, whose reference keeps keys and values of its layers as it passes"),
            (training.loss == REWARDS and training.method != "full", "training.method", "a loss of rewards with "
             "adapters, beside which the head trains or not"),
            (job.graph.implementation != "hf", _AT, f"a loss of preferences of {job.graph.implementation} layers"),
            (job.graph.architecture.has_tower and ("softmax" not in training.loss or training.loss in UNPAIRED),
             "training.images", "a loss of preferences of TRL's, or of KTO, over images"),
            (beside and _trains_tower(job), "training.method", "a loss of preferences of a model whose tower trains"),
            (any("dropout" in features(kind) for kind in job.graph.kinds), _AT, "a loss of preferences of a model with "
             "dropout, which trainers switch off"),
            (training.lengths != "fixed" and not _is_row_of_pairs(job), "training.lengths", "a loss of preferences of "
             "packed or drawn lengths"),
            (beside and _originals(job) < len({*training.lora.modules_to_save}), "training.lora.modules_to_save", "a "
             "loss of preferences beside modules that train as a whole, of a model whose head was tied"),
            (beside and training.offload.part("activations")[1], "training.offload.activations", "a loss of "
             "preferences with activations on the host"),
            (any(options.get(name) for name in ("compile", "FastLanguageModel")), "framework_options", "a loss of "
             "preferences of compiled layers or Unsloth's")):
        if refused:
            raise job.not_yet(key, what)
    _note(job, beside=beside)


def _note(job: Draft, *, beside: bool) -> None:
    """Says how a reference, completions and answers are counted; `beside`: a reference passes inside the loss."""
    training = job.scenario.training
    if beside:
        told = "a second model" if training.method == "full" else "the model with its adapters off"
        job.note("reference model", f"{told}, in a pass without a graph before the loss",
                 f"{_RULE} _compute_loss, LLaMA-Factory ff6d4d12 train/dpo/trainer.py compute_reference_log_probs")
    if training.loss in UNPAIRED:
        job.note("mismatched completions", "as long as the sequences themselves, in a pass of the model without a graph"
                 f"{' and one of the reference' * beside}", f"TRL 1.16.0 {_KTO} _compute_kl_logps, LLaMA-Factory "
                 "ff6d4d12 train/kto/trainer.py concatenated_forward")
    if training.loss not in (REWARDS, KEPT_REFERENCED):
        job.note("answers", "all tokens of a sequence but its first", f"{_RULE} _compute_loss: completion_mask")


def _is_row_of_pairs(job: Draft) -> bool:
    """True if a microbatch is one packed row of whole pairs, as OpenRLHF's trainers make it.

    OpenRLHF 0.11.0 `models/actor.py`, `models/model.py`: unpad_and_slice_tensor, then the same scores of a token, which
    gather_and_pad_tensor lays back.
    """
    training = job.scenario.training
    return training.loss in _PACKED and training.lengths == "packed" and training.micro_batch_size == 1 and (
        training.packed_length is not None and training.seq_len % (_PAIR * training.packed_length) == 0)


def _check_pairs(job: Draft) -> None:
    training = job.scenario.training
    if _is_row_of_pairs(job):
        return
    sizes = ("micro_batch_size", training.micro_batch_size), ("global_batch_size", training.global_batch_size)
    for name, size in sizes:
        if size is not None and size % _PAIR:
            raise InputError(Problem(job.scenario.where("training", name), f"{name}: expected an even number of "
                                     f"sequences, chosen and rejected, got {size:,}"))


def _check_batch(job: Draft) -> None:
    """Refuses one sequence a pass, at which TRL's trainer stops; LLaMA-Factory's does not."""
    if job.scenario.training.micro_batch_size == 1 and job.scenario.training.loss != "kto_softmax":
        raise job.illegal("training.micro_batch_size", "Actual (not effective) batch size must be > 1. KTO will not "
                          "work properly because the KL term will be equivalent to the implied reward",
                          f"TRL 1.16.0 {_KTO} __init__, 0.24.0 {_KTO} __init__")


def _check_fused(job: Draft) -> None:
    """Refuses a head that the trainer refuses, and one that ranks share, where it scores tokens itself."""
    training, mesh = job.scenario.training, job.mesh
    if training.loss not in (*FUSED_PAIRS, *WHOLE_PAIRS):
        return
    heads = (number for number, kind in enumerate(job.graph.kinds) if isinstance(kind.block, Head))
    adapted = any(spec.module == "adapter" for number in heads for spec in job.graph.tensors[number])
    if adapted and training.loss in FUSED_PAIRS:
        raise job.illegal("training.lora.target_modules", "Applying a PEFT adapter to `lm_head` is not supported: the "
                          "log-probabilities are computed from `lm_head.weight` directly, so the adapter would never "
                          "be trained", "TRL 1.16.0 trainer/dpo_trainer.py and kto_trainer.py __init__")
    if max(mesh.tp, mesh.cp) > 1:
        raise job.not_yet(_AT, f"{training.loss} over ranks that share sequences or matrices")


def _originals(job: Draft) -> int:
    """Number of modules that train beside adapters whose originals lie beside them, which a reference reads."""
    return sum(spec.name == ORIGINAL for specs in job.graph.tensors for spec in specs)


def _trains_tower(job: Draft) -> bool:
    """True if a part of a vision tower has a gradient."""
    parts = job.graph.layers[1:1 + job.graph.num_tower_parts]
    return any(spec.trainable and not spec.is_buffer for part in parts for spec in job.graph.tensors[part.kind])
