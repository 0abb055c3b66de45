"""A launch selects a recipe by the model, as Bridge's launchers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages, value
from simcore.errors import InputError
from simcore.recipes.bridge.named import launch_of

RUN = "torchrun --nproc_per_node=8 --nnodes 2 scripts/training/run_recipe.py"
PERFORMANCE = "python scripts/performance/setup_experiment.py --account a --partition b -m llama"


@pytest.mark.parametrize(("words", "name"), [
    (f"{RUN} --model nemotronh_47b --mode sft", "nemotronh_47b_sft_config"),
    ("bash scripts/training/train.sh --mode=lora --model=qwen3_4b", "qwen3_4b_peft_config"),
    (f"{PERFORMANCE} -mr llama3_8b --task sft -ng 8 -g h100 -c fp8_cs", "llama3_8b_sft_8gpu_h100_fp8cs_config"),
    (f"{PERFORMANCE} --model_recipe_name=llama3_8b --num_gpus 8 -g GB300", "llama3_8b_pretrain_8gpu_gb300_bf16_config"),
    ("python run_script.py -mr deepseek_v3 -ng 1024 -g h100 -c fp8_sc -cv large_scale",
     "deepseek_v3_pretrain_1024gpu_h100_fp8sc_large_scale_config")])
def test_a_model_and_a_mode_name_the_recipe(tmp_path: Path, words: str, name: str) -> None:
    assert launch_of(words, "run.sh").name == name
    assert messages(imported(tmp_path, words, topology="dgx-h100")).count("number of GPUs") <= 1


def test_the_performance_launcher_scales_a_recipe_of_other_gpus_alone(tmp_path: Path) -> None:
    """scripts/performance/utils/utils.py:67: the one of 8 GPUs stands for other numbers, not the largest."""
    found = imported(tmp_path, f"{PERFORMANCE} -mr llama3_8b -ng 32 -g h100")
    assert value(found, "name") == "llama3_8b_pretrain_8gpu_h100_bf16_config"
    assert (value(found, "mesh.dp_shard"), value(found, "training.global_batch_size")) == (16, 512)
    same = imported(tmp_path, f"{PERFORMANCE} -mr llama3_8b -ng 8 -g h100 -tp 2")
    assert (value(same, "mesh.dp_shard"), value(same, "training.global_batch_size")) == (2, 128)
    run = imported(tmp_path, "torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe "
                             "llama3_8b_pretrain_8gpu_h100_bf16_config -tp 2")
    assert (value(run, "mesh.dp_shard"), value(run, "training.global_batch_size")) == (2, 64)


@pytest.mark.parametrize(("words", "told"), [
    (f"{RUN} --model nemotronh_47", "run.sh:1 --model: --mode: expected pretrain, sft, lora, dora"),
    (f"{RUN} --model nemotronh_47 --mode sft", "no recipe nemotronh_47_sft_config; did you mean nemotronh_47b_sft_"),
    (f"{RUN} --model $MODEL --mode sft", "--model: its value depends on $MODEL"),
    (f"{PERFORMANCE} -mr llama3_8b -g h100", "the launcher needs -ng"),
    (f"{RUN} --model qwen3_4b --recipe qwen3_4b_sft_config --mode sft", "--model: a recipe is named already")])
def test_a_model_without_a_recipe_is_named(words: str, told: str) -> None:
    with pytest.raises(InputError) as problem:
        launch_of(words, "run.sh")
    assert told in str(problem.value)


def test_a_name_without_a_gpu_says_which_it_stands_for(tmp_path: Path) -> None:
    run = "python scripts/training/run_recipe.py --recipe"
    found = imported(tmp_path, f"{run} qwen3_8b_sft_config")
    told = "qwen3_8b_sft_4gpu_h100_bf16_config"
    assert found.origins["topology",].text == f"stands for {told}, whose name says the GPU"
    assert f"{told} (its name says 4 GPUs)" in str(found.origins["mesh", "dp_shard"])
    found = imported(tmp_path, f"{run} {told}")
    assert found.origins["topology",].text == "the recipe's name says the GPU"
