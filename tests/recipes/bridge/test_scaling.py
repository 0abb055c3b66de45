"""Benchmarks of Megatron-Bridge on other GPUs than their name says."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import value
from simcore.recipes.bridge.named import is_benchmark, present_name, recipes

LLAMA = "llama3_8b_pretrain_8gpu_h100_bf16_config"
LIBRARY = "llama3_8b_pretrain_2gpu_h100_bf16_config"


def batch(folder: Path, text: str, gpus: int) -> object:
    return value(imported(folder, text, gpus), "training.global_batch_size")


def test_samples_a_rank_stay_unless_the_batch_is_given(tmp_path: Path) -> None:
    """scripts/training/run_recipe.py, _apply_benchmark_weak_scaling: 128 on 8 GPUs with cp 2, so 32 a rank."""
    assert [batch(tmp_path, LLAMA, gpus) for gpus in (8, 16, 64)] == [128, 256, 1024]
    assert batch(tmp_path, f"{LLAMA} model.context_parallel_size=1", 16) == 512
    assert batch(tmp_path, f"{LLAMA} train.global_batch_size=96", 16) == 96
    own = recipes()[LIBRARY]["train.global_batch_size"]
    assert batch(tmp_path, LIBRARY, 16) == own, "the library's recipes are not scaled"


@pytest.mark.parametrize(("name", "gpus", "told"), [
    ("deepseek_v3_pretrain_64gpu_h100_bf16_config", 1024, "on no number of GPUs: its own degrees do not divide the 64"),
    ("nemotronh_56b_pretrain_256gpu_b200_bf16_config", 2, "from DP 128 to DP 1 does not produce an integer")])
def test_what_the_launcher_refuses_is_refused_in_its_words(tmp_path: Path, name: str, gpus: int, told: str) -> None:
    assert any(told in problem.message for problem in imported(tmp_path, name, gpus).wrong)


def test_a_name_of_both_packages_is_the_benchmark_and_the_older_name_the_librarys(tmp_path: Path) -> None:
    """scripts/training/recipe_metadata.py, BENCHMARK_RECIPE_PRECEDENCE_COLLISIONS."""
    name, older = "deepseek_v3_pretrain_1024gpu_h100_bf16_config", "deepseek_v3_pretrain_config"
    assert (is_benchmark(name), is_benchmark(older), present_name(older)) == (True, False, name)
    assert [value(imported(tmp_path, one), "training.global_batch_size") for one in (name, older)] == [16384, 4096]


def test_benchmarks_have_what_the_launchers_give_them() -> None:
    """run_recipe.py: Adam in bf16 is precision-aware; fine-tuning reads mock samples, which are no packs."""
    tuned, low = recipes()["llama3_8b_sft_8gpu_h100_bf16_config"], recipes()["llama3_8b_sft_8gpu_h100_fp8cs_config"]
    assert tuned["optimizer.use_precision_aware_optimizer"]
    assert low["optimizer.use_precision_aware_optimizer"] is False
    assert "dataset.enable_offline_packing" not in tuned
    assert tuned["dataset.seq_length"] == tuned["model.seq_length"]


def test_recipes_that_apply_a_flex_dispatcher_have_it() -> None:
    """training/flex_dispatcher_backend.py: and shared experts no longer overlap, so that experts' exchanges may."""
    library = recipes()["deepseek_v3_pretrain_config"]
    made = recipes()["deepseek_v3_pretrain_256gpu_b200_fp8mx_config"]
    assert (library["model.moe_token_dispatcher_type"], library["model.moe_flex_dispatcher_backend"]) == (
        "flex", "hybridep")
    assert (made["model.moe_token_dispatcher_type"], made["model.moe_flex_dispatcher_backend"]) == ("flex", "deepep")
    assert made["model.moe_shared_expert_overlap"] is False
    assert made["comm_overlap.overlap_moe_expert_parallel_comm"]
