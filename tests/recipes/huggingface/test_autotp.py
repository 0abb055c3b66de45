"""`tensor_parallel` of DeepSpeed's JSON (AutoTP): read, refused by its key, written by `convert`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import IllegalLayout, RankscopeError
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.answers import Answers
from simcore.recipes.conversion.converting import convert
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.simulate import check

SCRIPT: dict[str, Any] = {"model": "qwen3-8b", "training.micro_batch_size": 2}
TRAINER = """\
model_name_or_path: Qwen/Qwen3-8B
dataset_name: some/data
max_length: 512
per_device_train_batch_size: 2
gradient_accumulation_steps: 3
deepspeed: zero.json
bf16: true
"""


SCENARIO = """\
name: autotp
model: qwen3-8b
framework: zero{stage}
topology: dgx-h100
mesh: {{dp_shard: 2, tp: 4}}
training: {{seq_len: 512, micro_batch_size: 2, global_batch_size: 12, precision: {{compute: bf16}}}}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(stage: int = 2, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}, "gradient_accumulation_steps": 3, **keys}


def alone(keys: dict[str, Any], gpus: int = 8, **more: Any) -> Imported:
    Path("zero.json").write_text(json.dumps(keys, indent=1), encoding="utf-8")
    given = SCRIPT | {key.replace("__", "."): value for key, value in more.items()}
    given = {key: value for key, value in given.items() if value is not None}
    return import_recipe(["zero.json"], Answers.of_options(gpus, 512, "dgx-h100", given)).with_settings(given)


def by_trainer(keys: dict[str, Any]) -> Imported:
    Path("zero.json").write_text(json.dumps({**keys, "gradient_accumulation_steps": "auto"}), encoding="utf-8")
    Path("sft.yaml").write_text(TRAINER, encoding="utf-8")
    return import_recipe(["sft.yaml", "zero.json"], Answers.of_options(8, None, "dgx-h100", {}))


def test_ranks_that_share_matrices_leave_the_others_to_zero_and_share_a_batch() -> None:
    for stage, axis in ((0, "dp_replicate"), (1, "dp_shard"), (2, "dp_shard"), (3, "dp_shard")):
        found = alone(config(stage, tensor_parallel={"autotp_size": 4, "tp": {"tp_size": 4}, "tp_overlap_comm": False}))
        found.expect_complete()
        assert found.values["mesh"] == {"tp": 4, axis: 2}, stage
        assert found.values["training"]["global_batch_size"] == 2 * 3 * 2
        assert check(parse_scenario(found.document())).problems == ()
    for off in (0, 1):
        assert alone(config(tensor_parallel={"autotp_size": off})).values["mesh"] == {"dp_shard": 8}


def test_a_batch_of_all_ranks_is_asked_for_unless_the_file_tells_how_it_is_divided() -> None:
    """With a script's `mpu` DeepSpeed divides it over ranks that share matrices once (0.19.6 runtime/config.py:711)."""
    split = config(tensor_parallel={"autotp_size": 4})
    parts = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
    for whole in (48, 12):  # by all 8 ranks, and by the 2 that have different sequences
        found = alone({**split, **parts, "train_batch_size": whole})
        found.expect_complete()
        assert found.values["training"]["global_batch_size"] == 12
    with pytest.raises(RankscopeError, match="24 is not 2 x 3 x 8 ranks"):
        alone({**split, **parts, "train_batch_size": 24}).expect_complete()
    open_ = {**split, "train_batch_size": 48, "gradient_accumulation_steps": "auto"}
    with pytest.raises(RankscopeError, match=r"counts every rank \(12\).*initialize \(48\)"):
        alone(open_).expect_complete()
    found = alone(open_, training__global_batch_size=24, training__micro_batch_size=None)
    found.expect_complete()
    assert found.values["training"] | {"precision": 0} == {
        "seq_len": 512, "micro_batch_size": 12, "global_batch_size": 24, "precision": 0}


def test_a_trainer_has_them_at_stages_0_to_2() -> None:
    found = by_trainer(config(tensor_parallel={"autotp_size": 2}))
    found.expect_complete()
    assert found.values["mesh"] == {"tp": 2, "dp_shard": 4}
    assert found.values["training"]["global_batch_size"] == 2 * 3 * 4
    with pytest.raises(RankscopeError, match="from_pretrained has loaded in the parts of stage 3"):
        by_trainer(config(3, tensor_parallel={"autotp_size": 2})).expect_complete()


@pytest.mark.parametrize("format_name", ["trl", "axolotl", "deepspeed", "accelerate"])
def test_a_scenario_is_written_with_its_ranks(format_name: str) -> None:
    text = SCENARIO.format(stage=2)
    made = convert(parse_scenario(parse_document(text, "s.yaml")), format_name)
    loss = {"training.loss"} if format_name != "axolotl" else set()  # that of TRL's trainer cuts the head
    assert {one.message.split(": ")[1] for one in made.refused} == loss
    assert format_name != "accelerate" or "num_processes: 8" in made.text
    assert any('"autotp_size": 4' in one or "autotp_size: 4" in one for one in (made.text, *made.beside.values()))


@pytest.mark.parametrize("format_name", ["trl", "axolotl", "deepspeed", "accelerate"])
def test_what_no_trainer_has_is_refused_with_what_has_it(format_name: str) -> None:
    """Matrices at stage 3, and DeepSpeed's experts; the head's loss of TRL's trainer beside shared matrices."""
    experts = SCENARIO.replace("qwen3-8b", "qwen3-30b-a3b\nimplementation: autoep").replace("tp: 4", "ep: 2")
    for text, told in ((SCENARIO.format(stage=3), "framework: zero2"), (experts.format(stage=2), "says expert_par")):
        with pytest.raises(IllegalLayout, match=told):
            convert(parse_scenario(parse_document(text, "s.yaml")), format_name)
    made = convert(parse_scenario(parse_document(SCENARIO.format(stage=2), "s.yaml")), format_name)
    assert ["--to axolotl makes them" in one.message for one in made.refused] == [True] * (format_name != "axolotl")


@pytest.mark.parametrize(("block", "told"), [
    ({"tp_overlap_comm": True}, "AsyncColumnParallel"), ({"preset_model": "llama"}, "another plan of matrices"),
    ({"partition_config": {"use_default_specs": False}}, "another plan of matrices"),
    ({"tp": {"tp_grain_size": 64}}, "tp_grain_size"), ({"tp": {"tp_size": 8}}, "does not match"),
    ({"autotp_size": 3}, "8 GPUs are no multiple of 3")])
def test_what_is_not_served_is_refused_by_its_key(block: dict[str, Any], told: str) -> None:
    with pytest.raises(RankscopeError, match=told):
        alone(config(tensor_parallel={"autotp_size": 4, **block})).expect_complete()
