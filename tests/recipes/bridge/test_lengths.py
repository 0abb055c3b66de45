"""The length of a sequence is that of the data set, as Bridge's launchers have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import RUN_CONFIG, imported
from recipes.looked_into import messages, value
from simcore.errors import InputError
from simcore.recipes.bridge.named import launch_of

LLAMA = "llama3_8b_pretrain_2gpu_h100_bf16_config"
TUNED = "gpt_oss_20b_pretrain_8gpu_b300_nvfp4_config"
RUN = "torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe"


@pytest.mark.parametrize(("line", "length", "left"), [
    (f"{LLAMA} dataset.seq_length=2048", 2048, ""),
    (f"{RUN} {LLAMA} dataset.seq_length=2048", 2048, ""),
    (f"{RUN} {LLAMA} model.seq_length=2048", 8192, "model.seq_length"),
    (f"{LLAMA} model.seq_length=2048 dataset.seq_length=2048", 2048, ""),
    (f"{RUN} {TUNED}", 4096, ""), (TUNED, 8192, "dataset.seq_length"),
    (f"{TUNED} model.seq_length=2048", 2048, "dataset.seq_length"), (f"{TUNED} dataset.seq_length=2048", 2048, ""),
    (f"{RUN} nemotron_3_super_sft_16gpu_h100_bf16_32k_config", 32768, ""),
    (f"{RUN} llama3_8b_sft_config dataset.offline_packing_specs.packed_sequence_size=512", 4096,
     "dataset.offline_packing_specs.packed_sequence_size")])
def test_the_data_set_owns_the_length(tmp_path: Path, line: str, length: int, left: str) -> None:
    """recipe_runner.py:471, sync_model_dataset_sequence_length; performance/utils/overrides.py:524."""
    found = imported(tmp_path, line, None if "--nproc" in line else 64)
    assert value(found, "training.seq_len") == length, messages(found)
    said = [one.key for one in found.left if one.key.endswith(("seq_length", "sequence_size"))]
    assert said == ([left] if left else [])


def test_a_line_without_a_launcher_must_not_contradict_itself() -> None:
    with pytest.raises(InputError, match=r"model.seq_length 2048 contradicts dataset.seq_length 8192 \(run.sh:1 llama"):
        launch_of(f"{LLAMA} model.seq_length=2048", "run.sh")


def test_a_configuration_with_two_lengths_is_an_error_as_it_is_there(tmp_path: Path) -> None:
    """training/config.py:1642."""
    found = imported(tmp_path, f"{RUN_CONFIG}dataset: {{seq_length: 2048}}\n", 8, "dgx-h100", "run_config.yaml")
    assert "dataset.seq_length 2048, model.seq_length 4096" in messages(found)


def test_batches_that_are_as_long_as_their_longest_sample_are_said(tmp_path: Path) -> None:
    """data/datasets/gpt_sft.py:620."""
    name = "llama3_8b_peft_1gpu_h100_bf16_config dataset.enable_offline_packing=false"
    for kwargs, kind in (("dataset.dataset_kwargs.pad_to_max_length=false", "not modelled"), ("", "no effect")):
        (left,) = (one for one in imported(tmp_path, f"{name} {kwargs}").left
                   if one.key == "dataset.enable_offline_packing")
        assert left.kind == kind, kwargs
