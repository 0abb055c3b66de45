"""Rows of the vocabulary of Bridge's recipes: the tokenizer's in pretraining, the model's own elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.looked_into import value
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

KEY = "model.overrides.vocab_size"


def imported(folder: Path, text: str) -> Imported:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return import_recipe([str(folder / "run.sh")], Answers.of_options(8, 4096, "dgx-h100"))


@pytest.mark.parametrize(("launch", "rows"), [
    ("llama3_8b_pretrain_2gpu_h100_bf16_config", 32000),
    ("llama3_8b_pretrain_2gpu_h100_bf16_config tokenizer.vocab_size=32001", 32128),
    ("llama3_8b_pretrain_2gpu_h100_bf16_config model.tensor_model_parallel_size=8", 32768),
    ("qwen3_600m_pretrain_1gpu_h100_bf16_config", 151680),
    ("deepseek_v2_lite_pretrain_8gpu_h100_bf16_config model.tensor_model_parallel_size=2", 32000),
    ("nemotronh_8b_sft_2gpu_h100_bf16_config", 131072)])
def test_tokens_are_padded_as_bridge_pads_them(tmp_path: Path, launch: str, rows: int) -> None:
    assert value(imported(tmp_path, launch), KEY) == rows


@pytest.mark.parametrize("launch", [
    "llama3_8b_sft_2gpu_h100_bf16_config", "llama3_8b_pretrain_8gpu_h100_bf16_config",
    "llama3_8b_pretrain_2gpu_h100_bf16_config tokenizer.use_tokenizer_vocab_size=false"])
def test_elsewhere_the_model_has_its_own_rows(tmp_path: Path, launch: str) -> None:
    found = imported(tmp_path, launch)
    found.expect_complete()
    assert isinstance(value(found, "model"), str)


def test_rows_that_only_a_file_says_are_asked(tmp_path: Path) -> None:
    found = imported(tmp_path, "gemma2_2b_pretrain_2gpu_h100_bf16_config")
    assert KEY in [question.key for question in found.questions]
