"""Training by preferences (`rl: dpo`, `ipo`, `orpo`, `kto`): TRL's trainers, axolotl's kernels of log-probabilities.

067b021c `core/builders/rl.py`; TRL 1.8.0 `trainer/dpo_trainer.py`, which makes the adapters itself, and
`experimental/orpo/orpo_trainer.py`, which is given a model with adapters and has no reference. Both switch dropout off,
and put chosen and rejected sequences of a microbatch into one forward. `trainer/kto_trainer.py`: sequences are no
pairs, and the model passes over completions of other prompts too. Nothing reads keys of Liger's losses: they are
of a forward that is given labels.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.trainer import double_batches, turn_off_dropout
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Row, read_rows

__all__ = ["CLASSIFIER", "read_rl", "write_preference"]

CLASSIFIER: Final = "AutoModelForSequenceClassification"
"""Class of reward models (utils/schemas/validation.py set_reward_model_defaults)."""
_ODDS: Final = "orpo"
_KTO: Final = "kto"
_READ: Final = ("dpo", "ipo", _ODDS, _KTO)
_BEFORE: Final = "precompute_ref_log_probs"
_OF_RL: Final = ("trl.*", "rl_*", "dpo_*", "kto_*", "orpo_*", "ebft.*", "vllm.*")
_TRAINER: Final = "TRL 1.8.0 trainer/dpo_trainer.py"
_ADAPTERS: Final = "peft_autocast_adapter_dtype"
_REWARDS: Final = "core/builders/causal.py; TRL 1.8.0 trainer/reward_trainer.py compute_loss"
_KERNELS: Final = "loaders/patch_manager.py _apply_trl_trainer_utils_patches, monkeypatch/trainer/utils.py"
_ROWS: Final[tuple[Row, ...]] = (
    Off("dpo_use_weighting", "weights of WPO"),
    Off("dpo_use_liger_kernel", "Liger's loss of preferences"),
    Off("rl_adapter_ref_model", "a reference model of its own beside adapters"),
    Idle(("dpo_padding_free",), f"{_TRAINER}: temporarily unavailable, and off"),
    Idle(("rl_beta", "dpo_label_smoothing", "dpo_loss_weights", "trl.beta"), "numbers of the loss"),
    Idle(("trl.*", "rl_*", "kto_*", "orpo_*", "simpo_*", "cpo_*", "ebft.*", "vllm.*"), "of training by another rl"),
)
_ROWS_OF_KTO: Final[tuple[Row, ...]] = (
    Off("rl_adapter_ref_model", "a reference model of its own beside adapters"),
    Idle(("rl_beta", "trl.beta", "kto_*"), "numbers of the loss"),
    Idle(("trl.*", "rl_*", "dpo_*", "orpo_*", "simpo_*", "cpo_*", "ebft.*", "vllm.*"), "of training by another rl"),
    Idle((_BEFORE,), "given to DPO's trainer alone (core/trainers/dpo/__init__.py)"),
)
_ROWS_OF_ODDS: Final[tuple[Row, ...]] = (
    Idle(("orpo_alpha", "rl_beta", "trl.beta"), "numbers of the loss"),
    Idle(("trl.*", "rl_*", "dpo_*", "kto_*", "simpo_*", "cpo_*", "ebft.*", "vllm.*", _BEFORE),
         "of training by another rl, or of a reference, which ORPO has not"),
)


def read_rl(reader: Reader, draft: Draft) -> None:
    """Refuses training by other means than preferences that are modelled, and settings of these that are not."""
    method = reader.text("rl")
    _read_reward(reader, draft)
    if method is None:
        return
    if method.value not in _READ:
        draft.refuse(method, f"training by {method.value}", always=True)
        draft.idle(reader.matching(*_OF_RL), f"settings of {method.value}")
        return
    draft.use(method)
    packing = reader.look("sample_packing")
    if packing:
        draft.fail(method.where, "`sample_packing: true` does not work with RLHF training (utils/schemas/validation.py "
                                 "check_sample_packing_w_rl)")
    if method.value == _KTO and reader.look("remove_unused_columns") is not False:
        draft.fail(method.where, "Set `remove_unused_columns: False` when using kto (utils/schemas/validation.py "
                                 "check_kto_config)")
    kinds = reader.words("dpo_loss_type")
    if kinds is not None and method.value != "dpo":
        draft.use(kinds)
        draft.fail(kinds.where, "`dpo_loss_type` and `dpo_loss_weights` are for DPO only (utils/schemas/validation.py "
                                "check_dpo)")
    elif kinds is not None and "sft" in kinds.value:
        draft.refuse(kinds, "a loss of the chosen sequences beside that of pairs")
    else:
        draft.idle(kinds, "sums of one number a sequence")
    read_rows(reader, draft, {_ODDS: _ROWS_OF_ODDS, _KTO: _ROWS_OF_KTO}.get(method.value, _ROWS))
    _read_before(reader, draft)


def _read_reward(reader: Reader, draft: Draft) -> None:
    """A reward model, which is TRL's RewardTrainer's (core/builders/causal.py), of one label."""
    switch, labels = reader.flag("reward_model"), reader.integer("num_labels")
    if switch is None or not switch.value:
        draft.idle(switch, "the default")
        draft.idle(labels, "of a head that classifies, which is not asked for, or is refused")
        return
    if reader.look("rl") is not None or reader.look("sample_packing") or reader.look("model_type") not in (
            None, CLASSIFIER):
        draft.refuse(switch, "a reward model beside rl, packing, or another class of model")
    else:
        draft.use(switch)
    if labels is not None and labels.value != 1:
        draft.refuse(labels, f"a reward model of {labels.value} labels")
    else:
        draft.idle(labels, "one number for each sequence")


def _read_before(reader: Reader, draft: Draft) -> None:
    """Refuses log-probabilities that are made before the first step beside a second model, which axolotl keeps."""
    before = reader.flag(_BEFORE) if reader.look("rl") not in (_ODDS, _KTO) else None
    if before is not None and before.value and reader.look("adapter") is None:
        draft.refuse(before, "log-probabilities of a second model that are there before the first step")
    elif before is not None and before.value:
        draft.use(before, why="no reference passes in a step; its passes before the first one are not counted")
    else:
        draft.idle(before, "the default")


def write_preference(reader: Reader, draft: Draft) -> None:
    """Writes what TRL's trainer makes of a recipe that is read for training by next tokens, if it asks for pairs."""
    reward = reader.look("reward_model") is True and reader.look("rl") is None
    if reader.look("rl") not in _READ and not reward:
        return
    training, where = draft.values.get("training", {}), reader.document.path
    if "loss" in training:
        draft.fail(where, f"not yet: a loss of preferences beside a plugin's, {training['loss']}")
    if reader.look(_ADAPTERS) is False and reader.look("rl") != _ODDS:
        draft.fail(where, f"not yet: {_ADAPTERS}: false, which TRL's own adapters do not read")
    loss, told = (("rewards", "reward_model: one number for each sequence of a pair") if reward else
                  ("preference_odds", "rl: logits of pairs") if reader.look("rl") == _ODDS else
                  ("kto_rows", "rl: logits of all passes") if reader.look("rl") == _KTO else
                  ("preference_rows_alone", "rl: logits of pairs, no reference") if reader.look(_BEFORE) else
                  ("preference_rows", "rl: logits of pairs, and of the reference"))
    draft.infer("training.loss", loss, told, source=_REWARDS if reward else _KERNELS, where=where)
    if reader.look("rl") != _KTO or reward:
        double_batches(draft, where, f"{_TRAINER} DataCollatorForPreference")
    if training.get("method", "full") == "full" and not reward:
        compute = training.get("precision", {}).get("compute")
        if draft.has_option("autocast") and reader.look("bf16") != "full" and (
                compute == "bf16" or reader.look("fp16") is True):
            draft.infer("framework_options.autocast", True, "mixed precision: logits come out in fp32", where=where,  # noqa: FBT003 - a value
                        source="accelerate 1.15.0 utils/operations.py convert_outputs_to_fp32")
    turn_off_dropout(draft, where, "TRL 1.8.0 trainer/dpo_config.py disable_dropout", "rl: dropout is off")
    if training.get("method") == "qlora" and "dtype" in training.get("lora", {}) and reader.look("rl") != _ODDS:
        draft.infer("training.lora.dtype", "bf16", "rl: adapters beside a packed base", where=where,
                    source=f"{_TRAINER}: param.data.to(torch.bfloat16)")
