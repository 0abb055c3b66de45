"""Recipes of LLaMA-Factory that train by preferences: pairs, a reference or none, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.llamafactory.test_recipe import LORA, imported, refusal, scenario

DPO: dict[str, Any] = {**LORA, "stage": "dpo", "lora_dropout": 0.1, "per_device_train_batch_size": 1,
                       "gradient_accumulation_steps": 8}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_pairs_are_two_sequences_and_dropout_is_off() -> None:
    training = scenario(DPO).training
    assert (training.loss, training.micro_batch_size, training.global_batch_size, training.lora.dropout) == (
        "preference_softmax", 2, 128, 0.0)
    assert scenario({**DPO, "packing": True, "cutoff_len": 1000}).training.seq_len == 1000, "pairs are never packed"
    same = scenario({key: value for key, value in DPO.items() if not key.startswith("lora_")} | {
        "finetuning_type": "full", "pure_bf16": True, "bf16": False, "ref_model": DPO["model_name_or_path"]}).training
    assert (same.method, same.loss) == ("full", "preference_softmax")
    for kind in ("orpo", "simpo"):
        assert imported({**DPO, "pref_loss": kind}).values["training"]["loss"] == "preference_softmax_alone"


def test_kto_has_no_pairs() -> None:
    training = scenario({**DPO, "stage": "kto", "kto_chosen_weight": 1.0, "pref_beta": 0.1, "packing": True}).training
    assert (training.loss, training.micro_batch_size, training.global_batch_size, training.lora.dropout) == (
        "kto_softmax", 1, 64, 0.0)


def test_what_else_its_trainer_does_is_refused() -> None:
    wrong = []
    for changed, told in (({"ref_model": "other"}, "a reference model of its own"),
                          ({"pref_loss": "sppo"}, "pref_loss: expected sigmoid"),
                          ({"neat_packing": True}, "except SFT"),
                          ({"stage": "kto", "ref_model": "other"}, "a reference model of its own"),
                          ({"stage": "rm"}, "training by rm")):
        found = refusal({**DPO, **changed})
        wrong += [] if told in found else [(changed, found)]
    assert not wrong
