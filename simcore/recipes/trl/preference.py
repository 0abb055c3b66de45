"""Training by preferences (`trl dpo`, `kto`, `reward`): DPOTrainer, KTOTrainer and RewardTrainer of TRL 1.16.0.

An older recipe is read by v0.24.0, which makes whole logits and is given the outputs of all layers.

`trainer/dpo_trainer.py`: chosen and rejected sequences of a microbatch pass together; dropout is off; heads score
tokens without whole logits; with adapters the reference is the model without them, in full a second model, which passes
inside each loss unless its log-probabilities are there from before the first step. A reward model is a number for each
sequence. `trainer/kto_trainer.py`: sequences are no pairs.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.fields import fields_of
from simcore.recipes.huggingface.trainer import double_batches, turn_off_dropout
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, On, Row, read_rows
from simcore.recipes.trl.grpo.defaults import NEWEST, Release
from simcore.recipes.trl.stages import KTO, REWARD, SFT

__all__ = ["fields_of_stage", "gone_of", "read_pairs", "write_pairs"]

_TRAINER: Final = "TRL 1.16.0 trainer/dpo_trainer.py"
_KTO_TRAINER: Final = "TRL 1.16.0 trainer/kto_trainer.py"
_KTO_CONFIG: Final = "TRL 1.16.0 trainer/kto_config.py"
_BEFORE: Final = "precompute_ref_log_probs"
_LOSSES: Final = ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
                  "aot_unpaired", "aot_pair", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm")
_OWN: Final = frozenset({
    "beta", "disable_dropout", "discopop_tau", "f_alpha_divergence_coef", "f_divergence_type", "label_smoothing",
    "ld_alpha", "loss_weights", "precompute_ref_batch_size", _BEFORE, "ref_model_mixup_alpha", "ref_model_sync_steps",
    "sync_ref_model", "use_weighting", "ignore_bias_buffers"})
_OF_KTO: Final = frozenset({
    "beta", "desirable_weight", "disable_dropout", "precompute_ref_batch_size", _BEFORE, "ref_model_mixup_alpha",
    "ref_model_sync_steps", "sync_ref_model", "undesirable_weight"})
_OF_REWARD: Final = frozenset({"center_rewards_coefficient", "chat_template_path", "disable_dropout", "eos_token"})
_OF_SFT: Final = frozenset({
    "assistant_only_loss", "chat_template_path", "completion_only_loss", "dataset_kwargs", "dataset_text_field",
    "eos_token", "eval_packing", "packing", "packing_strategy", "shuffle_dataset"})
"""Arguments of `trl sft` alone (trainer/sft_config.py), at which `trl dpo` stops."""
_GONE: Final = frozenset({
    "max_prompt_length", "max_completion_length", "rpo_alpha", "reference_free", "generate_during_eval",
    "label_pad_token_id", "padding_value", "is_encoder_decoder", "use_logits_to_keep", "use_num_logits_to_keep",
    "use_liger_loss", "ref_model_init_kwargs", "model_adapter_name", "ref_adapter_name", "force_use_ref_model",
    "base_model_attribute_name", "tools"})
"""Arguments of older releases (v0.24.0 trainer/dpo_config.py, kto_config.py)."""
_OLD_ROWS: Final[tuple[Row, ...]] = (
    Off("use_liger_loss", "Liger's loss of preferences"),
    *(Off(name, "logits of answers alone") for name in ("use_logits_to_keep", "use_num_logits_to_keep")),
    Off("use_weighting", "weights of WPO, of whole logits"),
    Off("padding_free", "batches of pairs without padding"),
    Off("is_encoder_decoder", "a model with an encoder"),
    Off("force_use_ref_model", "a reference model of its own beside adapters"),
    Off("ref_adapter_name", "a reference with adapters of its own"),
    Off("model_adapter_name", "adapters by name"),
    Idle(("generate_during_eval", "label_pad_token_id", "padding_value", "tools", "base_model_attribute_name"),
         "evaluation, and values of what is padded"),
    Idle(("reference_free",), "its log-probabilities are not read, and are made all the same (v0.24.0 trainer/"
         "dpo_trainer.py get_batch_loss_metrics)"),
)
_BOTH: Final[tuple[Row, ...]] = (
    On("disable_dropout", "a loss of preferences with dropout"),
    Off("sync_ref_model", "a reference model that follows the policy"),
    Idle(("precompute_ref_batch_size", "precompute_ref_batch_size.*"), "passes before the first step"),
    Idle(("ref_model_mixup_alpha", "ref_model_sync_steps"), "of a reference model that follows the policy"),
)
_ROWS_OF_KTO: Final[tuple[Row, ...]] = (
    *_BOTH, Idle(("beta", "desirable_weight", "undesirable_weight"), "of one number a sequence"))
_ROWS: Final[tuple[Row, ...]] = (
    *_BOTH,
    Idle(("padding_free",), f"{_TRAINER}: temporarily unavailable, and off"),
    Idle(("beta", "label_smoothing", "ld_alpha", "loss_weights", "f_divergence_type", "f_alpha_divergence_coef",
          "discopop_tau", "use_weighting"), "of one number a token or less"),
)


def fields_of_stage(stage: str) -> frozenset[str]:
    """Keys at the top of a recipe of a training."""
    own = _OF_REWARD if stage == REWARD else (_OF_KTO if stage == KTO else _OWN) | gone_of(stage)
    return fields_of("trl") if stage == SFT else (fields_of("trl") - _OF_SFT) | own


def gone_of(stage: str) -> frozenset[str]:
    """Arguments of a training of preferences that the newest release has no more."""
    return _GONE | {"truncation_mode"} if stage == KTO else _GONE


def read_pairs(reader: Reader, draft: Draft, release: Release, stage: str) -> None:
    """Reads the keys of the loss of preferences or of rewards, and writes it."""
    if stage == REWARD:
        _read_rewards(reader, draft, release)
        return
    if stage == KTO:
        _read_kto(reader, draft, release)
        return
    kinds, before = reader.words("loss_type"), reader.flag(_BEFORE)
    unknown = [kind for kind in kinds.value if kind not in _LOSSES] if kinds is not None else []
    if kinds is not None and unknown:
        draft.use(kinds)
        draft.fail(kinds.where, f"Unknown loss type: {unknown[0]}. Should be one of {list(_LOSSES)} ({_TRAINER})")
    elif kinds is not None and "exo_pair" in kinds.value and not reader.look("label_smoothing"):
        draft.use(kinds)
        draft.fail(kinds.where, f"Label smoothing must be greater than 0.0 when using 'exo_pair' loss ({_TRAINER})")
    else:
        draft.idle(kinds, "of one number a token or less")
    loss, rule, source = ("preference_fused", "each token's score by the head", f"{_TRAINER} _compute_loss") if (
        release is NEWEST) else ("preference_whole", "whole logits, and the outputs of all layers",
                                 "TRL v0.24.0 trainer/dpo_trainer.py concatenated_forward")
    if before is not None and before.value:
        draft.infer("training.loss", f"{loss}_alone", f"{rule}; no reference passes in a step, and its passes before "
                    "the first one are not counted", before, source=source)
    else:
        draft.infer("training.loss", loss, f"{rule}, of the reference too", before, source=source, where=draft.path)
    if release is not NEWEST:
        _refuse_arguments(reader, draft)
        draft.refuse(reader.number("rpo_alpha"), "a loss of the chosen sequences beside that of pairs")
        if kinds is not None and "sft" in kinds.value:
            draft.fail(kinds.where, "not yet: a loss of the chosen sequences beside that of pairs")
        read_rows(reader, draft, _OLD_ROWS)
    read_rows(reader, draft, _ROWS)


def _refuse_arguments(reader: Reader, draft: Draft) -> None:
    for one in reader.matching("ref_model_init_kwargs", "ref_model_init_kwargs.*"):
        draft.refuse(one, "arguments of a reference model of its own")


def _read_kto(reader: Reader, draft: Draft, release: Release) -> None:
    """Reads the keys of KTO, and writes its loss."""
    kind, before, sampling = reader.text("loss_type"), reader.flag(_BEFORE), reader.text("train_sampling_strategy")
    if kind is not None and kind.value not in ("kto", "apo_zero_unpaired"):
        draft.use(kind)
        draft.fail(kind.where, f"loss_type: expected kto or apo_zero_unpaired, got {kind.value} ({_KTO_CONFIG})")
    elif kind is not None and kind.value != "kto":
        draft.refuse(kind, "a loss of KTO's trainer without completions of other prompts")
    else:
        draft.idle(kind, "the default")
    if sampling is not None and sampling.value != "sequential" and release is NEWEST:
        draft.use(sampling)
        draft.fail(sampling.where, f"Loss type 'kto' estimates the KL divergence term and requires "
                                   f"train_sampling_strategy='sequential' ({_KTO_TRAINER} __init__)")
    else:
        draft.idle(sampling, "which samples are read")
    loss, source = ("kto_fused", f"{_KTO_TRAINER} _compute_loss") if release is NEWEST else (
        "kto_whole", "TRL v0.24.0 trainer/kto_trainer.py forward")
    draft.infer("training.loss", f"{loss}_alone" if before is not None and before.value else loss,
                "sequences and completions of other prompts", before, source=source, where=draft.path)
    if release is not NEWEST:
        _refuse_arguments(reader, draft)
        if reader.look("use_peft"):
            draft.fail(draft.path, "not yet: a second model beside adapters, which `trl kto` gives the trainer (TRL "
                                   "v0.24.0 scripts/kto.py: ref_model)")
        read_rows(reader, draft, _OLD_ROWS)
    read_rows(reader, draft, _ROWS_OF_KTO)


def _read_rewards(reader: Reader, draft: Draft, release: Release) -> None:
    if release is not NEWEST:
        draft.fail(draft.path, f"not yet: rewards of {release.name}, in which chosen and rejected sequences pass apart "
                               "(v0.24.0 trainer/reward_trainer.py compute_loss)")
    draft.infer("training.loss", "rewards", "one number for each sequence of a pair", where=draft.path,
                source="TRL 1.16.0 trainer/reward_trainer.py compute_loss")
    read_rows(reader, draft, [On("disable_dropout", "a loss of rewards with dropout"),
                              Idle(("center_rewards_coefficient",), "of one number a sequence")])


def write_pairs(reader: Reader, draft: Draft, stage: str) -> None:
    """Writes what the trainer makes of a recipe that is otherwise read for next tokens: pairs, and no dropout."""
    where = reader.document.path
    if stage != KTO:
        double_batches(draft, where, f"{_TRAINER} DataCollatorForPreference")
    turn_off_dropout(draft, where, "TRL 1.16.0 trainer/dpo_config.py disable_dropout")
