"""Lengths that nothing limits: a public count of the data set says them, without one they are asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe

TRL: dict[str, Any] = {"model_name_or_path": "qwen3-8b", "max_length": None}
AUTOMODEL: dict[str, Any] = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
              "pretrained_model_name_or_path": "qwen3-8b"}}
COLUMNS = "nemo_automodel.components.datasets.llm.column_mapped.ColumnMappedTextInstructionDataset"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def imported(values: dict[str, Any], seq_len: int | None = None) -> Imported:
    Path("mine.yaml").write_text(json.dumps(values, indent=1), encoding="utf-8")
    return import_recipe(["mine.yaml"], Answers.of_options(8, seq_len, "dgx-h100"))


def columns(name: str, **more: Any) -> dict[str, Any]:
    return {**AUTOMODEL, "dataset": {"_target_": COLUMNS, "path_or_dataset_id": name}, **more}


def test_the_longest_sample_is_inferred_with_its_source() -> None:
    found = imported({**TRL, "dataset_name": "Databricks/databricks-dolly-15k"})
    found.expect_complete()
    assert found.values["training"]["seq_len"] == 5987
    origin = found.origins["training", "seq_len"]
    assert origin.kind == "inferred"
    assert "5,987 tokens, on average 199, by Qwen 2.5's tokenizer" in origin.text
    assert origin.source.startswith("ms-swift 3602360a")


def test_it_is_padded_as_the_recipe_pads() -> None:
    plain = imported(columns("yahma/alpaca-cleaned"))
    assert plain.values["training"]["seq_len"] == 1028
    padded = columns("yahma/alpaca-cleaned", dataloader={"collate_fn": {"pad_seq_len_divisible": 64}})
    assert imported(padded).values["training"]["seq_len"] == 1088


@pytest.mark.parametrize("values", [
    {**TRL, "dataset_name": "allenai/tulu-3-sft-mixture"}, columns("allenai/tulu-3-sft-mixture")])
def test_without_a_count_the_question_stays_and_says_so(values: dict[str, Any]) -> None:
    [question] = [one for one in imported(values).questions if one.key == "training.seq_len"]
    assert "no public count of the tokens of allenai/tulu-3-sft-mixture is known" in str(question)


def test_the_answer_goes_before_it() -> None:
    assert imported({**TRL, "dataset_name": "yahma/alpaca-cleaned"}, 300).values["training"]["seq_len"] == 300


def test_a_limit_of_the_recipe_goes_before_it() -> None:
    found = imported({**TRL, "max_length": 4096, "dataset_name": "yahma/alpaca-cleaned"})
    assert found.values["training"]["seq_len"] == 4096
