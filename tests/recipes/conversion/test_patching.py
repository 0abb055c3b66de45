"""A recipe of the user's is changed only where it asks for something else, and keeps its comments."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from recipes.conversion.test_converting import AUTOMODEL, scenario
from simcore.errors import NotYet
from simcore.recipes.conversion.converting import convert

MINE = """\
# mine
recipe: TrainFinetuneRecipeForNextTokenPrediction
seed: 7  # lucky
step_scheduler:
  global_batch_size: 48
  local_batch_size: 2   # as it fits
  max_steps: 40
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-8B
  torch_dtype: bfloat16  # not bf16, and not fp32
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  dim: 24
distributed:
  strategy: fsdp2
  dp_size: none
  activation_checkpointing: true
dataset:
  _target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset  # ours
  dataset_name: some/questions
optimizer: {_target_: torch.optim.AdamW, lr: 2e-5}
"""


def changes(folder: Path, text: str) -> list[str]:
    file = folder / "recipe.yaml"
    file.write_text(MINE, encoding="utf-8")
    made = convert(scenario(text), "automodel", str(file))
    made.expect_complete()
    assert made.launch == "automodel recipe.yaml --nproc-per-node 8\n"
    found = list(unified_diff(MINE.splitlines(), made.text.splitlines(), lineterm="", n=0))
    return [line for line in found[2:] if not line.startswith("@@")]


def test_only_what_differs_is_changed(tmp_path: Path) -> None:
    assert changes(tmp_path, AUTOMODEL) == [
        "-  global_batch_size: 48", "+  global_batch_size: 32", "-peft:",
        "-  _target_: nemo_automodel.components._peft.lora.PeftConfig", "-  dim: 24",
        "-  activation_checkpointing: true"]


def test_missing_keys_are_added(tmp_path: Path) -> None:
    text = (AUTOMODEL.replace("{dp_shard: 8}", "{dp_shard: 4, dp_replicate: 2}").replace("size: 32", "size: 48")
            .replace("size: 2", "size: 2\n  method: lora\n  lora: {rank: 24}\n  recompute: full"))
    assert changes(tmp_path, text + "framework_options: {defer_fsdp_grad_sync: false}\n") == [
        "+  dp_replicate_size: 2", "+  defer_fsdp_grad_sync: false"]


def test_a_recipe_that_is_a_name_is_not_patched(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("torchrun run_recipe.py --recipe nemotron_3_nano_sft_config\n", encoding="utf-8")
    with pytest.raises(NotYet, match="recipes of bridge are written whole"):
        convert(scenario(AUTOMODEL.replace("framework: automodel", "framework: megatron")), "bridge",
                str(tmp_path / "run.sh"))
