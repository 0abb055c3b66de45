"""Recipes of `trl dpo`: pairs, their reference, what tells them from other trainings, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.trl.test_recipe import LORA, RECIPE, imported, scenario
from simcore.errors import RankscopeError
from simcore.recipes.answers import Answers
from simcore.recipes.importing import import_recipe

DPO: dict[str, Any] = {**LORA, "lora_dropout": 0.05, "beta": 0.1, "max_length": 512, "per_device_train_batch_size": 2}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_pairs_are_two_sequences_and_dropout_is_off() -> None:
    training = scenario({**DPO, "gradient_accumulation_steps": 4}).training
    assert (training.loss, training.micro_batch_size, training.global_batch_size, training.seq_len) == (
        "preference_fused", 4, 128, 512)
    assert training.lora.dropout == 0
    assert training.recompute == "full"
    assert scenario({**DPO, "max_length": 500, "pad_to_multiple_of": 64}).training.seq_len == 512
    before = scenario({**DPO, "precompute_ref_log_probs": True, "loss_type": ["sigmoid", "sft"]}).training
    assert before.loss == "preference_fused_alone"


def test_in_full_a_second_model_rests_beside_the_policy() -> None:
    found = scenario({**RECIPE, "beta": 0.1}).training
    assert (found.method, found.loss, found.micro_batch_size) == ("full", "preference_fused", 16)


def test_what_starts_it_or_its_folder_tells_the_training() -> None:
    """A file without an argument of DPO's is one of `trl sft` unless its command says otherwise."""
    Path("plain.yaml").write_text("model_name_or_path: llama-3.2-1b\nmax_length: 512\n", encoding="utf-8")
    losses = []
    for number, command in enumerate(("trl sft --config", "trl dpo --config", "accelerate launch scripts/run_dpo.py",
                                      "accelerate launch -m trl.scripts.dpo --config")):
        Path(f"run{number}.sh").write_text(f"{command} plain.yaml\n", encoding="utf-8")
        found = import_recipe([f"run{number}.sh", "plain.yaml"], Answers.of_options(8, None, "dgx-h100"))
        losses.append(found.values["training"]["loss"])
    assert losses == ["fused_lm_head", *["preference_fused"] * 3]
    Path("orpo").mkdir()
    Path("orpo/config.yaml").write_text("model_name_or_path: llama-3.2-1b\nbeta: 0.1\n", encoding="utf-8")
    with pytest.raises(RankscopeError, match="trl orpo"):
        import_recipe(["orpo/config.yaml"], Answers.of_options(8, None, "dgx-h100")).expect_complete()
    Path("alone.sh").write_text("trl dpo --model_name_or_path llama-3.2-1b --max_length 512\n", encoding="utf-8")
    alone = import_recipe(["alone.sh"], Answers.of_options(8, None, "dgx-h100"))
    assert alone.values["training"]["loss"] == "preference_fused"


def test_a_file_alone_is_of_the_training_in_its_name_or_says_that_it_is_taken_for_sft() -> None:
    for name in ("llama-dpo.yaml", "llama.yaml"):
        Path(name).write_text("model_name_or_path: llama-3.2-1b\nmax_length: 512\n", encoding="utf-8")
    named, plain = (import_recipe([name], Answers.of_options(8, None, "dgx-h100"))
                    for name in ("llama-dpo.yaml", "llama.yaml"))
    assert named.values["training"]["loss"] == "preference_fused"
    assert plain.values["training"]["loss"] == "fused_lm_head"
    assert "no command, argument or name" in str(plain.origins["training", "loss"])


@pytest.mark.parametrize(("said", "told"), [
    ({"loss_type": "orca"}, "Unknown loss type: orca"), ({"loss_type": "exo_pair"}, "must be greater than 0.0"),
    ({"disable_dropout": False}, "with dropout"), ({"sync_ref_model": True}, "follows the policy"),
    ({"packing": True}, "packing"),
    ({"activation_offloading": True}, "wait on the host"), ({"max_length": None}, "nothing is cut")])
def test_what_is_not_followed_is_refused_by_its_key(said: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError, match=told):
        imported({**DPO, **said}).expect_complete()


def test_a_recipe_of_an_older_release_makes_whole_logits() -> None:
    """v0.24.0 trainer/dpo_trainer.py, where an argument says that the recipe is so old."""
    training = scenario({**DPO, "max_prompt_length": 256, "generate_during_eval": False}).training
    assert (training.loss, training.micro_batch_size) == ("preference_whole", 4)
    assert scenario({**DPO, "max_prompt_length": 256, "precompute_ref_log_probs": True}).training.loss == (
        "preference_whole_alone")
    wrong = []
    for said, told in (({"use_liger_loss": True}, "Liger's loss"), ({"rpo_alpha": 1.0}, "chosen sequences"),
                       ({"use_logits_to_keep": True}, "answers alone"), ({"padding_free": True}, "without padding"),
                       ({"loss_type": ["sigmoid", "sft"]}, "chosen sequences"),
                       ({"ref_model_init_kwargs": {"torch_dtype": "bfloat16"}}, "of its own")):
        try:
            imported({**DPO, "max_prompt_length": 256, **said}).expect_complete()
            wrong.append((said, "taken"))
        except RankscopeError as error:
            wrong += [(said, str(error))] if told not in str(error) else []
    assert not wrong


def test_kto_has_no_pairs_and_needs_more_than_one_sequence() -> None:
    kto = {**DPO, "desirable_weight": 1.0, "undesirable_weight": 1.0, "loss_type": "kto"}
    training = scenario({**kto, "gradient_accumulation_steps": 4}).training
    assert (training.loss, training.micro_batch_size, training.global_batch_size, training.lora.dropout) == (
        "kto_fused", 2, 64, 0.0)
    assert scenario({**kto, "precompute_ref_log_probs": True}).training.loss == "kto_fused_alone"
    full = {key: value for key, value in kto.items() if not key.startswith("lora_")} | {"use_peft": False}
    assert scenario({**full, "max_prompt_length": 256, "precompute_ref_log_probs": True}).training.loss == (
        "kto_whole_alone")
    wrong = []
    for said, told in (({"loss_type": "apo_zero_unpaired"}, "without completions of other prompts"),
                       ({"loss_type": "bco"}, "expected kto or apo_zero_unpaired"),
                       ({"train_sampling_strategy": "random"}, "requires train_sampling_strategy='sequential'"),
                       ({"max_prompt_length": 256}, "a second model beside adapters"),
                       ({"label_smoothing": 0.1}, "label_smoothing")):
        try:
            imported({**kto, **said}).expect_complete()
            wrong.append((said, "taken"))
        except RankscopeError as error:
            wrong += [(said, str(error))] if told not in str(error) else []
    assert not wrong


def test_a_reward_model_is_one_number_for_each_sequence_of_a_pair() -> None:
    reward = {**RECIPE, "center_rewards_coefficient": 0.01, "max_length": 512, "per_device_train_batch_size": 2,
              "pad_to_multiple_of": "auto"}
    training = scenario(reward).training
    assert (training.loss, training.micro_batch_size, training.seq_len) == ("rewards", 4, 512)
    for said, told in (({"disable_dropout": False}, "with dropout"), ({"warmup_ratio": 0.1}, "pass apart"),
                       ({"packing": True}, "packing")):
        with pytest.raises(RankscopeError, match=told):
            imported({**reward, **said}).expect_complete()


@pytest.mark.parametrize(("dtype", "rests"), [("bfloat16", "bf16"), ("float32", None)])
def test_a_reference_under_fsdp2_rests_as_it_is_read(dtype: str, rests: str | None) -> None:
    """accelerate upcasts the policy of mixed precision, and TRL's prepare_fsdp upcasts nothing."""
    Path("acc.yaml").write_text("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\nfsdp_config:\n"
                                "  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n",
                                encoding="utf-8")
    Path("dpo.yaml").write_text(f"model_name_or_path: llama-3.2-1b\ndtype: {dtype}\nbf16: true\nbeta: 0.1\n"
                                "per_device_train_batch_size: 2\nmax_length: 512\n", encoding="utf-8")
    Path("run.sh").write_text("accelerate launch --config_file acc.yaml scripts/dpo.py --config dpo.yaml\n",
                              encoding="utf-8")
    found = import_recipe(["run.sh", "dpo.yaml", "acc.yaml"], Answers.of_options(None, None, "dgx-h100"))
    assert found.values["training"]["precision"]["params"] == "fp32"
    assert found.values["framework_options"].get("reference_dtype") == rests
