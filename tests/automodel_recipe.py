"""A recipe of Automodel in our own words, and its import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simcore.errors import RankscopeError
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

__all__ = ["ANSWERED", "RECIPE", "changed", "imported", "refusal"]

RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
seed: 7
step_scheduler: {global_batch_size: 48, local_batch_size: 3, max_steps: 40}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: qwen3-8b
  torch_dtype: bf16
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  dim: 24
  alpha: 48
  dropout: 0.1
  target_modules: "*_proj"
distributed:
  strategy: fsdp2
  dp_size: none
  dp_replicate_size: 2
  tp_size: 1
  activation_checkpointing: true
  defer_fsdp_grad_sync: false
loss_fn: {_target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy, fp32_upcast: false}
dataset: {_target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset, dataset_name: some/questions}
dataloader: {_target_: torchdata.stateful_dataloader.StatefulDataLoader, shuffle: true}
optimizer: {_target_: torch.optim.AdamW, lr: 2e-5, foreach: false}
"""
ANSWERED: dict[str, Any] = {"gpus": 16, "seq_len": 1024, "topology": "dgx-h100"}


def imported(text: str, *, loose: bool = False, **answers: Any) -> Imported:
    """Import of a recipe's text, written into the working folder; without `answers`, with all of them."""
    Path("mine.yaml").write_text(text, encoding="utf-8")
    return import_recipe(["mine.yaml"], Answers.of_options(**(answers or ANSWERED)), loose=loose)


def changed(old: str, new: str, text: str = RECIPE) -> str:
    """The recipe with a part of its text replaced."""
    assert old in text
    return text.replace(old, new)


def refusal(text: str, **answers: Any) -> str:
    """All problems for which a recipe is no scenario."""
    with pytest.raises(RankscopeError) as raised:
        imported(text, **answers).expect_complete()
    return str(raised.value)
