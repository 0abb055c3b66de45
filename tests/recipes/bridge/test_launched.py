"""Changes of Bridge's launchers after a recipe is built are told as theirs; the data set says the length."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import RUN_CONFIG, imported
from recipes.looked_into import messages, value
from simcore.errors import InputError
from simcore.recipes.bridge.named import launch_of
from simcore.recipes.imported import Imported

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


BENCHMARK = "llama3_8b_pretrain_8gpu_h100_bf16_config"
PRECISE = "optimizer.use_precision_aware_optimizer"
SCRIPT = "python scripts/performance/run_script.py -m llama -g h100 -c bf16"


def told(found: Imported, key: str) -> list[str]:
    """Fate of a key, list by list: place, kind, value and reason."""
    put = [f"{one.where} put" for one in found.origins.values() if one.kind == "recipe" and one.text == key]
    return put + [f"{one.where} {one.kind}: {one.value}: {one.why}" for one in found.left if one.key == key] + [
        f"{one.where} decides: {one.value}: {one.why}" for one in found.decides if one.key == key]


def test_what_a_launcher_sets_is_said_to_be_the_launchers(tmp_path: Path) -> None:
    """The recipe says false (recipes/common.py); run_recipe.py:393 and run_script.py:151 set true afterwards."""
    put, own = told(imported(tmp_path, BENCHMARK), PRECISE)
    assert put.endswith("run.sh: Bridge's launcher (scripts/training/run_recipe.py:393) put")
    assert own.endswith("no effect: false: Bridge's launcher sets true (scripts/training/run_recipe.py:393)")
    put, own = told(imported(tmp_path, f"{SCRIPT} -ng 8 -mr llama3_8b {PRECISE}=false"), PRECISE)
    assert put.endswith("Bridge's launcher (scripts/performance/run_script.py:151) put"), "an override does not stop it"
    assert own.endswith(":1 no effect: false: Bridge's launcher sets true (scripts/performance/run_script.py:151)")


def test_an_override_stops_the_training_launcher(tmp_path: Path) -> None:
    """run_recipe.py:385: explicit values, and other optimizers, stay."""
    for override in (f"{PRECISE}=false", "optimizer.optimizer=sgd"):
        (only,) = told(imported(tmp_path, f"{BENCHMARK} {override}"), PRECISE)
        assert "decides: false: off, as without it" in only, override


@pytest.mark.parametrize(("line", "key", "is_told"), [
    ("-ng 16 -mr llama3_70b --task peft -pp 2", "dist.use_tp_pp_dp_mapping", "overrides.py:637) not modelled: true"),
    ("-ng 16 -mr llama3_8b -tp 1 -pp 2 -vp 2", "optimizer.overlap_param_gather_with_optimizer_step",
     "overrides.py:687) not modelled: true"),
    ("-ng 8 -mr llama3_8b --cuda_graph_impl local --cuda_graph_scope full_iteration rerun_state_machine.check_for_nan_"
     "in_loss=true", "rerun_state_machine.check_for_nan_in_loss", "no effect: true: Bridge's launcher sets false"),
    ("-ng 8 -mr llama3_8b dataset.num_workers=3", "dataset.num_workers", "run.sh:1 no effect: 3: mock samples replace"),
    ("-ng 8 -mr llama3_8b -tp 2", "env_vars.CUDA_DEVICE_MAX_CONNECTIONS", "not modelled: 1"),
    ("-ng 8 -mr llama3_8b -tp 1 -cp 1", "env_vars.CUDA_DEVICE_MAX_CONNECTIONS", "run.sh:1 -tp not modelled: 8"),
    ("-ng 16 -mr llama3_70b --task sft -pp 2", "env_vars.NCCL_P2P_NET_CHUNKSIZE", "not modelled: 2097152"),
    ("-ng 8 -mr llama3_8b --nccl_ub true", "env_vars.NCCL_NVLS_ENABLE", "run.sh:1 --nccl_ub not modelled: 1"),
    ("-ng 8 -mr llama3_8b --nccl_ub true env_vars.NCCL_NVLS_ENABLE=0", "env_vars.NCCL_NVLS_ENABLE", "run.sh:1 not"),
    ("-ng 32 -mr qwen3_30b_a3b -ep 4", "env_vars.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "-ep not modelled: 4")])
def test_what_the_performance_launcher_changes_is_told_as_its(tmp_path: Path, line: str, key: str,
                                                              is_told: str) -> None:
    """scripts/performance/utils/overrides.py: set_user_overrides, _apply_flat_cli_environment_compatibility."""
    found = told(imported(tmp_path, f"{SCRIPT} {line}"), key)
    assert any(is_told in one for one in found), found


def test_fine_tuning_over_context_ranks_divides_by_tokens(tmp_path: Path) -> None:
    """scripts/training/recipe_runner.py:346, sync_finetuning_cp_invariants: of samples, not of a benchmark's mock."""
    tuned = "llama3_8b_sft_config model.context_parallel_size=2"
    (one,) = told(imported(tmp_path, tuned, 8, "dgx-h100"), "model.calculate_per_token_loss")
    assert "recipe_runner.py:368) no effect: true" in one
    benchmark = "llama3_8b_sft_8gpu_h100_bf16_config model.context_parallel_size=2"
    assert told(imported(tmp_path, benchmark), "model.calculate_per_token_loss") == []


def test_a_recipe_says_whether_losses_are_looked_at(tmp_path: Path) -> None:
    """perf_recipes/_common.py:62 switches it off; training/losses.py:72 has the host wait twice a microbatch."""
    key = "rerun_state_machine.check_for_nan_in_loss"
    (only,) = told(imported(tmp_path, BENCHMARK), key)
    assert "no effect: false: off: no loss is looked at" in only
    (only,) = told(imported(tmp_path, LLAMA), key)
    assert "not modelled: true: the default: losses" in only
    (only,) = told(imported(tmp_path, "nemotron_3_nano_pretrain_8gpu_h100_bf16_config"), key)
    assert "_config not modelled: true: losses" in only
    whole = "model.cuda_graph_impl=local model.cuda_graph_scope=[full_iteration]"
    assert "check_for_nan_in_loss must be disabled" in messages(imported(tmp_path, f"{LLAMA} {whole}"))
    assert "check_for_nan_in_loss" not in messages(imported(tmp_path, f"{LLAMA} {whole} {key}=false"))
