"""Options of Bridge's launchers are read as the overrides that they stand for, or refused at their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages, value
from simcore.errors import InputError
from simcore.recipes.answers import Answers
from simcore.recipes.bridge.named import launch_of
from simcore.recipes.importing import import_recipe

LLAMA = "llama3_8b_pretrain_2gpu_h100_bf16_config"
RUN = f"torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe {LLAMA}"
PERFORMANCE = f"python scripts/performance/run_script.py -ng 8 -mr {LLAMA}"


def test_options_are_the_overrides_that_upstream_makes_of_them(tmp_path: Path) -> None:
    """scripts/training/run_recipe.py 067f987d, COMMON_OVERRIDE_FIELDS."""
    found = imported(tmp_path, f"{RUN} --mode pretrain -tp 4 \\\n -pp=2 --context_parallel_size 1 -mb 2 "
                               "--global_batch_size=64 -sl 2048 --deterministic -ms 5 --lr 1e-4 --dump-env")
    assert messages(found) == ""
    assert (value(found, "mesh.tp"), value(found, "mesh.pp"), value(found, "mesh.cp")) == (4, 2, None)
    assert [value(found, f"training.{key}") for key in ("seq_len", "micro_batch_size", "global_batch_size")] == [
        2048, 2, 64]
    assert value(found, "framework_options.deterministic_mode") is True
    assert value(found, "framework_options.cross_entropy_loss_fusion") is False
    assert {"--mode", "--recipe", "--dump-env", "train.train_iters", "optimizer.lr"} <= {one.key for one in found.left}
    assert "run.sh:2" in str(found.origins["mesh", "pp"])


def test_a_trailing_override_goes_before_an_option_and_of_performance_behind_it(tmp_path: Path) -> None:
    """run_recipe.py: common options come first; run_script.py applies argparse's after Hydra's."""
    after = imported(tmp_path, f"{RUN} train.micro_batch_size=4 -mb 2")
    assert value(after, "training.micro_batch_size") == 4
    tuned = imported(tmp_path, f"{PERFORMANCE} train.micro_batch_size=4 -mb 2 -tp 2 -sl 4096")
    assert value(tuned, "training.micro_batch_size") == 2
    assert value(tuned, "training.sequence_parallel") is True
    assert (value(tuned, "training.seq_len"), value(tuned, "mesh.dp_shard")) == (4096, 2)  # cp 2


@pytest.mark.parametrize(("words", "told"), [
    ("--nonsense 12", "run.sh:1: --nonsense: no option of Bridge's launcher"),
    ("--seq-length 2048", "--seq-length: no option of Bridge's launcher .*did you mean '--seq_length'"),
    ("-tp", "-tp: has no value"), ("-tp four", "-tp: expected a whole number, got 'four'"),
    ("-tp $TP", "-tp: its value depends on"), ("$(cat args)", r"depends on"),
    ("~optimizer.lr", "not yet: ~optimizer.lr: keys that are taken out"), ("plain", "expected KEY=VALUE, got 'plain'"),
    ("--dataset squad", "not yet: --dataset squad"), ("--mode sft", "--mode sft contradicts the recipe"),
    ("--model llama3_8b", "--model: a recipe is named already")])
def test_what_is_no_option_is_an_error_at_its_line(words: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        launch_of(f"{RUN} {words}", "run.sh")


def test_a_script_is_read_as_if_started_without_arguments() -> None:
    assert launch_of(f'{RUN} -tp 2 "$@"', "run.sh").document.data["model"]["tensor_model_parallel_size"] == 2


MOE = "python scripts/performance/run_script.py -ng 16 -g h100 -mr qwen3_30b_a3b"


@pytest.mark.parametrize(("words", "key", "wanted"), [
    ("--cuda_graph_impl transformer_engine --cuda_graph_scope attn,mlp", "cuda_graph_scope", ["attn", "mlp"]),
    ("--cuda_graph_impl=local --cuda_graph_scope full_iteration", "cuda_graph_impl", "full_iteration"),
    ("model.cuda_graph_impl=transformer_engine --cuda_graph_impl none --cuda_graph_scope attn", "cuda_graph_impl",
     None), ("--nccl_ub yes", "nccl_ub", True), ("--nccl_ub False", "nccl_ub", None),
    ("-ol 3", "cpu_offloading_num_layers", 3), ("-ol 0", "cpu_offloading_num_layers", None)])
def test_switches_of_the_performance_launcher_set_what_upstream_sets(tmp_path: Path, words: str, key: str,
                                                                     wanted: object) -> None:
    """scripts/performance/utils/overrides.py 067f987d, set_user_overrides."""
    assert value(imported(tmp_path, f"{PERFORMANCE} {words}"), f"framework_options.{key}") == wanted


@pytest.mark.parametrize(("words", "wanted"), [
    ("-rl 3", {"mode": "block", "num_layers": 3}), ("-rl 0", "none"),
    ("--recompute_modules mlp,core_attn", ["mlp", "core_attn"]),
    ("-rl 3 --recompute_modules=mlp", ["mlp"])])
def test_recomputation_of_the_performance_launcher(tmp_path: Path, words: str, wanted: object) -> None:
    assert value(imported(tmp_path, f"{PERFORMANCE} {words}"), "training.recompute") == wanted


def test_megatron_fsdp_by_the_performance_launcher(tmp_path: Path) -> None:
    found = imported(tmp_path, f"{PERFORMANCE} --use_megatron_fsdp true")
    assert value(found, "framework") == "megatron_fsdp"
    assert value(found, "framework_options.data_parallel_sharding_strategy") == "optim_grads_params"
    assert value(found, "framework_options.init_model_with_meta_device") is True
    assert value(imported(tmp_path, f"{PERFORMANCE} --use_megatron_fsdp false"), "framework") == "megatron"


def test_experts_by_the_performance_launcher(tmp_path: Path) -> None:
    found = imported(tmp_path, f"{MOE} --moe_flex_dispatcher_backend None --moe_a2a_overlap 1 --vocab_size 7 --data c4")
    assert value(found, "framework_options.moe_token_dispatcher_type") == "alltoall"
    assert value(found, "framework_options.overlap_moe_expert_parallel_comm") is True
    assert value(found, "framework_options.delay_wgrad_compute") is True
    assert {"--vocab_size", "--data"} <= {one.key for one in found.left if one.kind == "no effect"}
    dropped = imported(tmp_path, f"{MOE} model.moe_token_dispatcher_type=alltoall --use_tokendrop true")
    assert value(dropped, "training.routing") == {"capacity_factor": 1.0}
    alone = imported(tmp_path, f"{MOE} model.moe_token_dispatcher_type=alltoall model.moe_expert_capacity_factor=1.0")
    assert value(alone, "training.routing") == {"capacity_factor": 1.0, "pad": False}


def test_a_model_without_experts_drops_no_tokens(tmp_path: Path) -> None:
    found = imported(tmp_path, f"{PERFORMANCE} --use_tokendrop true -et -ms 3")
    assert messages(found) == ""
    assert {"model.moe_expert_capacity_factor", "model.moe_pad_expert_input_to_capacity"} <= {
        one.key for one in found.left if one.kind == "no effect"}


def test_variables_and_clocks_of_the_performance_launcher_are_told(tmp_path: Path) -> None:
    found = imported(tmp_path, f"{PERFORMANCE} -ce PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False,OMP_NUM_THREADS=4 "
                               "-E NCCL_DEBUG=$LEVEL -E CUBLAS_WORKSPACE_CONFIG=:4096:2 "
                               "-lmc -1 -lgc 1200 -vb true -en -gn 8")
    assert value(found, "environment.expandable_segments") is False
    assert value(found, "environment.cublas_workspace_config") == ":4096:2"
    told = {one.key: one.kind for one in found.left}
    assert told["NCCL_DEBUG"] == told["-gn"] == told["-lmc"] == "no effect"
    assert told["-lgc"] == told["-vb"] == told["-en"] == "not modelled"


@pytest.mark.parametrize(("words", "told"), [
    ("--cuda_graph_impl graphs", "--cuda_graph_impl: expected none, local, transformer_engine, got 'graphs'"),
    ("--cuda_graph_impl local", "a full iteration alone"),
    ("--cuda_graph_impl transformer_engine --cuda_graph_scope full_iteration", "not captured by transformer_engine"),
    ("--cuda_graph_impl local --cuda_graph_scope full_iteration,attn", "combined with no other scope"),
    ("--nccl_ub maybe", "expected true or false, got 'maybe'"), ("--data squad", "not yet: squad"),
    ("--use_recipes", "--use_recipes: not yet: a recipe of the library"), ("--domain vlm", "not yet: a step over more"),
    ("--num_layers 4", "'int' object has no attribute 'count'"), ("-rl $N", "-rl: its value depends on"),
    ("-E PYTORCH_ALLOC_CONF=$CONF", "-E: its value depends on"),
    ("--first_k_dense_replace 1", "not yet: other layers without experts")])
def test_what_the_performance_launcher_does_not_take_is_an_error(words: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        launch_of(f"{PERFORMANCE} {words}", "run.sh")


def test_the_librarys_recipes_by_the_performance_launcher_are_refused() -> None:
    with pytest.raises(InputError, match=r"not yet: scripts/performance/run_recipe.py: a recipe of the library"):
        launch_of(f"python scripts/performance/run_recipe.py -ng 8 -mr {LLAMA}", "run.sh")


def test_adapters_that_the_mode_asks_for_are_those_of_the_recipe() -> None:
    with pytest.raises(InputError, match="not yet: --mode dora"):
        launch_of("run_recipe.py --recipe llama3_8b_peft_config --mode dora", "run.sh")
    launch_of("run_recipe.py --recipe llama3_8b_peft_config --mode lora", "run.sh")


def test_the_launcher_of_an_experiment_says_nodes_and_forwards_the_rest(tmp_path: Path) -> None:
    found = imported(tmp_path, f"scripts/training/train.sh --nodes 2 --gpus-per-node 8 --account me --recipe {LLAMA} "
                               "-tp 2")
    assert (value(found, "mesh.tp"), value(found, "mesh.dp_shard")) == (2, 4)  # cp 2


def test_a_path_that_is_not_known_stops_nothing_and_a_number_does(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        f"{RUN} --save_dir $OUT checkpoint.load=$HOME/ckpt train.train_iters=$ITERS\n", encoding="utf-8")
    found = import_recipe([str(tmp_path / "run.sh")], Answers.of_options(topology="dgx-h100"))
    assert not found.wrong
    assert {"checkpoint.save", "checkpoint.load"} <= {one.key for one in found.left if one.kind == "no effect"}
    with pytest.raises(InputError, match=r"train\.global_batch_size: its value depends on"):
        launch_of(f"{RUN} train.global_batch_size=$GBS", "run.sh")


def test_a_variable_of_the_script_goes_before_the_recipes(tmp_path: Path) -> None:
    """training/config.py:1984: a recipe's variables are set where the process has none."""
    found = imported(tmp_path, f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\n{RUN}")
    assert value(found, "environment.expandable_segments") is False
    (left,) = (one for one in found.left if one.key == "env_vars.PYTORCH_CUDA_ALLOC_CONF")
    assert left.why.startswith("PYTORCH_CUDA_ALLOC_CONF of the launch goes before it")
    assert value(imported(tmp_path, RUN), "environment.expandable_segments") is True


def test_a_key_that_is_there_is_not_added(tmp_path: Path) -> None:
    """Hydra: "Could not append to config. An item is already at"."""
    with pytest.raises(InputError, match=r"\+train.micro_batch_size: the recipe has this key"):
        launch_of(f"{RUN} +train.micro_batch_size=2", "run.sh")
    assert value(imported(tmp_path, f"{RUN} ++train.micro_batch_size=2"), "training.micro_batch_size") == 2


@pytest.mark.parametrize(("words", "told"), [
    ("train.skip_train=true", "no training"), ("dataset.seq_len=8192", "unknown key 'dataset.seq_len': Bridge's"),
    ("train.manual_gcc=true", "did you mean 'train.manual_gc'?"), ("rng.seeed=3", "did you mean 'rng.seed'?"),
    ("dataset.enable_offline_packing=true dataset.offline_packing_specs=null", "offline_packing_specs must be set"),
    ("model.enable_cuda_graph=true model.external_cuda_graph=true",
                                               "Do not use enable_cuda_graph or external_cuda_graph"),
    ("peft._target_=megatron.bridge.peft.lora.LoRA peft.lora_dtype=fp32", "adapters in a format of their own"),
    ("peft._target_=megatron.bridge.peft.lora.LoRA peft.share_expert_adapters=false", "an adapter for each expert")])
def test_fields_that_change_the_step_are_told(tmp_path: Path, words: str, told: str) -> None:
    assert told in messages(imported(tmp_path, f"{RUN} model.cuda_graph_impl=none {words}"))


def test_sgd_keeps_what_momentum_asks_for(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 core/optimizer/__init__.py:622."""
    found = imported(tmp_path, f"{RUN} optimizer.optimizer=sgd optimizer.sgd_momentum=0")
    assert value(found, "training.optimizer.momentum") == 0
    external = imported(tmp_path, f"{RUN} model.cuda_graph_impl=none model.external_cuda_graph=true")
    assert value(external, "framework_options.cuda_graph_impl") == "transformer_engine"
