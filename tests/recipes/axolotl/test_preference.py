"""Recipes of axolotl that train by preferences: what TRL's trainer makes of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.axolotl.test_recipe import RECIPE, changed, imported
from simcore.errors import RankscopeError

DPO = {"rl": "dpo", "adapter": "lora", "lora_target_linear": True, "lora_r": 8, "lora_dropout": 0.05, "bf16": True,
       "micro_batch_size": 2, "gradient_accumulation_steps": 4, "attn_implementation": "flash_attention_2"}


def test_pairs_are_counted_as_two_sequences_and_dropout_is_off(tmp_path: Path) -> None:
    """Without training by rl axolotl's fused adapters would be told of, which it then leaves off."""
    found = imported(tmp_path, changed(RECIPE, **DPO))
    training = found.values["training"]
    assert (training["loss"], training["micro_batch_size"], training["global_batch_size"], training["lora"]["dropout"]
            ) == ("preference_rows", 4, 64, 0.0)
    assert training["lora"]["dtype"] == "fp32"
    assert not [one.key for one in found.left if one.key.startswith("lora_") and one.key.endswith("kernel")]
    packed = imported(tmp_path, changed(RECIPE, **DPO | {"load_in_8bit": True}))
    assert packed.values["training"]["lora"]["dtype"] == "bf16"


def test_orpo_and_log_probabilities_made_before_have_no_reference(tmp_path: Path) -> None:
    """ORPO is given the adapters that axolotl makes, in fp32 beside a packed base too."""
    odds = imported(tmp_path, changed(RECIPE, **DPO | {"rl": "orpo", "orpo_alpha": 0.1, "load_in_8bit": True})).values
    training = odds["training"]
    assert (training["loss"], training["micro_batch_size"], training["lora"]["dropout"], training["lora"]["dtype"]) == (
        "preference_odds", 4, 0.0, "fp32")
    before = imported(tmp_path, changed(RECIPE, **DPO | {"precompute_ref_log_probs": True})).values
    assert before["training"]["loss"] == "preference_rows_alone"


def test_in_full_logits_come_out_in_fp32_under_mixed_precision(tmp_path: Path) -> None:
    full = {key: value for key, value in DPO.items() if key != "adapter"} | {"lora_target_linear": None}
    found = [imported(tmp_path, changed(RECIPE, **full | {"bf16": bf16})).values for bf16 in (True, "full")]
    assert [one["framework_options"].get("autocast") for one in found] == [True, None]


def test_kto_has_no_pairs_and_passes_over_completions_of_other_prompts(tmp_path: Path) -> None:
    kto = DPO | {"rl": "kto", "remove_unused_columns": False, "kto_desirable_weight": 0.2}
    training = imported(tmp_path, changed(RECIPE, **kto)).values["training"]
    assert (training["loss"], training["micro_batch_size"], training["global_batch_size"], training["lora"]["dropout"]
            ) == ("kto_rows", 2, 32, 0.0)
    wrong = []
    for keys, told in (({"remove_unused_columns": None}, "Set `remove_unused_columns: False`"),
                       ({"sample_packing": True}, "sample_packing"), ({"dpo_loss_type": ["ipo"]}, "for DPO only")):
        try:
            imported(tmp_path, changed(RECIPE, **kto | keys)).expect_complete()
            wrong.append((keys, "taken"))
        except RankscopeError as error:
            wrong += [(keys, str(error))] if told not in str(error) else []
    assert not wrong


REWARD = {"reward_model": True, "model_type": "AutoModelForSequenceClassification", "num_labels": 1}


def test_a_reward_model_counts_pairs_and_has_one_label(tmp_path: Path) -> None:
    training = imported(tmp_path, changed(RECIPE, **REWARD, micro_batch_size=2, gradient_accumulation_steps=4)
                        ).values["training"]
    assert (training["loss"], training["micro_batch_size"], training["global_batch_size"]) == ("rewards", 4, 64)
    wrong = []
    for keys, told in (({"num_labels": 2}, "a reward model of 2 labels"), ({"sample_packing": True}, "packing"),
                       ({"model_type": "AutoModelForTokenClassification"}, "another class of model"),
                       ({"rl": "dpo"}, "a reward model beside rl")):
        try:
            imported(tmp_path, changed(RECIPE, **REWARD | keys)).expect_complete()
            wrong.append((keys, "taken"))
        except RankscopeError as error:
            wrong += [(keys, str(error))] if told not in str(error) else []
    assert not wrong


def test_what_else_a_trainer_of_preferences_does_is_refused_by_its_key(tmp_path: Path) -> None:
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"sample_packing": True}, "does not work with RLHF training"),
        ({"dpo_use_weighting": True}, "weights of WPO"),
        ({"dpo_use_liger_kernel": True}, "Liger's loss of preferences"),
        ({"precompute_ref_log_probs": True, "adapter": None, "lora_target_linear": None}, "before the first step"),
        ({"rl_adapter_ref_model": True}, "a reference model of its own"),
        ({"dpo_loss_type": ["sigmoid", "sft"]}, "beside that of pairs"),
        ({"rl": "ipo", "dpo_loss_type": ["sigmoid"]}, "are for DPO only"),
        ({"peft_autocast_adapter_dtype": False}, "TRL's own adapters do not read"),
        ({"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"], "cut_cross_entropy": True},
         "a loss of preferences beside a plugin's"),
        ({"rl": "orpo", "dpo_loss_type": ["sigmoid"]}, "are for DPO only"), ({"rl": "simpo"}, "training by simpo")]
    wrong = []
    for keys, told in refusals:
        try:
            imported(tmp_path, changed(RECIPE, **DPO | keys)).expect_complete()
            wrong.append((keys, "taken"))
        except RankscopeError as error:
            wrong += [(keys, str(error))] if told not in str(error) else []
    assert not wrong
